//! Base64 payloads as clients write them, decoded block by block into a visitor so that no decoded copy of a picture exists.
//!
//! The plain standard alphabet takes the fast path. Anything else (JSON or percent escapes, white space, the URL-safe
//! alphabet, missing padding) is brought to it first, so that two spellings of one picture are one picture.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::DecodePaddingMode;
use base64::{alphabet, Engine};

const BLOCK: usize = 32 << 10; // characters at a time; a multiple of 4 that stays in the first-level cache

const TOLERANT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Decode `text` and hand every block to `visit`. Err says what is wrong.
pub fn decode(text: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<(), String> {
    let plain = !text.iter().any(|byte| matches!(byte, b'\\' | b'%' | b'-' | b'_' | b' ' | b'\n' | b'\r' | b'\t'));
    if plain && text.len() % 4 == 0 {
        return blocks(text, visit);
    }
    blocks(&normalise(text)?, visit)
}

fn blocks(text: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<(), String> {
    let mut buffer = [0_u8; BLOCK / 4 * 3];
    let mut rest = text;
    while rest.len() > BLOCK {
        let (block, after) = rest.split_at(BLOCK);
        let size = STANDARD.decode_slice(block, &mut buffer).map_err(|error| format!("invalid base64: {error}"))?;
        if size != buffer.len() {
            return Err("invalid base64: padding in the middle".into());
        }
        visit(&buffer);
        rest = after;
    }
    let size = TOLERANT.decode_slice(rest, &mut buffer).map_err(|error| format!("invalid base64: {error}"))?;
    visit(&buffer[..size]);
    Ok(())
}

fn normalise(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len() + 4);
    let mut at = 0;
    while at < text.len() {
        let (byte, taken) = match text[at] {
            b'\\' => json_escape(&text[at..])?,
            b'%' => match text.get(at + 1..at + 3).and_then(hex) {
                Some(byte) => (byte, 3),
                None => return Err("invalid percent escape".into()),
            },
            byte => (byte, 1),
        };
        at += taken;
        if !byte.is_ascii_whitespace() {
            out.push(byte);
        }
    }
    let standard = out.iter().any(|byte| matches!(byte, b'+' | b'/'));
    let url_safe = out.iter().any(|byte| matches!(byte, b'-' | b'_'));
    if standard && url_safe {
        return Err("invalid base64: two alphabets mixed".into());
    }
    for byte in &mut out {
        match *byte {
            b'-' => *byte = b'+',
            b'_' => *byte = b'/',
            _ => {}
        }
    }
    Ok(out)
}

fn json_escape(text: &[u8]) -> Result<(u8, usize), String> {
    match text.get(1) {
        Some(b'n' | b'r' | b't') => Ok((b' ', 2)),
        Some(b'u') => match (text.get(2..4), text.get(4..6).and_then(hex)) {
            (Some(b"00"), Some(byte)) => Ok((byte, 6)),
            _ => Err("invalid base64: a character beyond ASCII".into()),
        },
        Some(&byte) => Ok((byte, 2)),
        None => Err("invalid escape".into()),
    }
}

fn hex(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
