//! Base64 payloads as clients write them, decoded block by block into a visitor so that no decoded copy of a picture exists.
//!
//! The plain standard alphabet goes to the SIMD engine as it is. From the first block that is anything else (JSON or percent
//! escapes, white space, the URL-safe alphabet) the rest is brought to it first, so that two spellings of one picture are
//! one picture.

use std::sync::LazyLock;

use base64::engine::general_purpose::GeneralPurposeConfig;
use base64::engine::DecodePaddingMode;
use base64::Engine;

const BLOCK: usize = 256 << 10; // characters at a time: 192 KiB decoded, which BLAKE3 hashes in whole subtrees and L2 holds

const TOLERANT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static ENGINE: LazyLock<base64::engine::Simd> = LazyLock::new(|| base64::engine::Simd::standard(TOLERANT));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static ENGINE: LazyLock<base64::engine::GeneralPurpose> =
    LazyLock::new(|| base64::engine::GeneralPurpose::new(&base64::alphabet::STANDARD, TOLERANT));

/// Decode `text` and hand every block to `visit`. `url`: percent escapes are undone. True when it is spelled as strict
/// decoders take it: the standard alphabet, padded. Err says what is wrong.
pub fn decode(text: &[u8], url: bool, visit: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
    let Err((at, _)) = blocks(text, visit) else { return Ok(text.len() % 4 == 0) };
    // What was decoded so far was plain: it only has a say in which alphabet this is.
    let rest = normalise(&text[at..], url, memchr::memchr2(b'+', b'/', &text[..at]).is_some())?;
    blocks(&rest, visit).map_err(|(_, error)| error)?;
    Ok(false)
}

/// Append `data` as base64, padded.
pub fn encode(data: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + data.len().div_ceil(3) * 4, 0);
    // The room is exactly what the alphabet needs.
    let written = ENGINE.encode_slice(data, &mut out[start..]).unwrap_or_default();
    out.truncate(start + written);
}

/// Decode plain base64; Err has the first character of the block that is not.
fn blocks(text: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<(), (usize, String)> {
    let mut buffer = vec![0_u8; text.len().min(BLOCK).div_ceil(4) * 3];
    let mut at = 0;
    loop {
        let end = text.len().min(at + BLOCK);
        let size = ENGINE
            .decode_slice(&text[at..end], &mut buffer)
            .map_err(|error| (at, format!("invalid base64: {error}")))?;
        if end < text.len() && size < BLOCK / 4 * 3 {
            return Err((at, "invalid base64: padding in the middle".into()));
        }
        visit(&buffer[..size]);
        if end == text.len() {
            return Ok(());
        }
        at = end;
    }
}

fn normalise(text: &[u8], url: bool, mut standard: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut url_safe = false;
    let mut at = 0;
    while at < text.len() {
        let (mut byte, taken) = character(&text[at..])?;
        at += taken;
        if byte == b'%' && url {
            let mut code = [0; 2];
            for digit in &mut code {
                let (byte, taken) = character(&text[at..])?;
                *digit = byte;
                at += taken;
            }
            byte = hex(&code).ok_or("invalid percent escape")?;
        }
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0c => continue,
            b'+' | b'/' => standard = true,
            b'-' | b'_' => url_safe = true,
            _ => {}
        }
        out.push(match byte {
            b'-' => b'+',
            b'_' => b'/',
            byte => byte,
        });
    }
    if standard && url_safe {
        return Err("invalid base64: two alphabets mixed".into());
    }
    Ok(out)
}

/// The character at the start of the inside of a JSON string and how many bytes spell it.
pub(super) fn character(text: &[u8]) -> Result<(u8, usize), String> {
    match text {
        [] => Err("it ends in the middle of an escape".into()),
        [b'\\', b'u', b'0', b'0', high, low, ..] => match hex(&[*high, *low]) {
            Some(byte @ ..=0x7f) => Ok((byte, 6)),
            _ => Err("a character beyond ASCII".into()),
        },
        [b'\\', kind, ..] => match kind {
            b'b' => Ok((8, 2)),
            b'f' => Ok((0x0c, 2)),
            b'n' => Ok((b'\n', 2)),
            b'r' => Ok((b'\r', 2)),
            b't' => Ok((b'\t', 2)),
            b'"' | b'\\' | b'/' => Ok((*kind, 2)),
            _ => Err("a character beyond ASCII".into()),
        },
        [byte, ..] => Ok((*byte, 1)),
    }
}

fn hex(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let digit = |byte: u8| (byte as char).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}
