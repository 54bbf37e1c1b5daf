//! Content identity: BLAKE3 over length-framed parts, 64 lower-case hex characters.
//!
//! It becomes the `uuid` of a media part, which engines use as the key of every cache and as a path component, so it holds
//! nothing but hex digits and never anything a client chose.

use super::base64;
use crate::body::scan::{Item, Modality, Source};
use crate::error::{BodyError, Code};

/// Identity of length-framed parts.
pub fn derive(parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        frame(&mut hasher, part);
    }
    hasher.finalize().to_hex().to_string()
}

fn frame(hasher: &mut blake3::Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_le_bytes());
    hasher.update(part);
}

/// Identity of an item whose bytes are in the body; None for others.
pub fn media_id(body: &[u8], item: &Item, salt: &[u8]) -> Result<Option<String>, BodyError> {
    let (Source::Data, Some(text)) = (item.source, item.text) else {
        return Ok(None);
    };
    let raw = body.get(text.start..text.end).unwrap_or_default();
    let refuse = |message: String| BodyError {
        code: Code::InvalidValue,
        message: format!("{}: {message}", item.param),
        param: Some(item.param.clone()),
        offset: text.start,
    };
    let (head, payload) = if item.bare { (String::new(), raw) } else { split(raw).map_err(refuse)? };
    let frames = item.modality == Modality::Video && head.trim_start().starts_with("video/jpeg");
    let mut hasher = blake3::Hasher::new();
    frame(&mut hasher, b"epd-router media 1");
    frame(&mut hasher, salt);
    frame(&mut hasher, if frames { b"video/jpeg" } else { modality(item.modality) });
    // vLLM takes a list of pictures as a video: `data:video/jpeg;base64,F1,F2`.
    for part in payload.split(|&byte| frames && byte == b',') {
        let mut size = 0_u64;
        base64::decode(part, !item.bare, &mut |block| {
            size += block.len() as u64;
            hasher.update(block);
        })
        .map_err(refuse)?;
        if size == 0 {
            return Err(refuse("the data URL is empty".into()));
        }
        if frames {
            hasher.update(&size.to_le_bytes());
        }
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

fn modality(modality: Modality) -> &'static [u8] {
    match modality {
        Modality::Image => b"image",
        Modality::Audio => b"audio",
        Modality::Video => b"video",
        Modality::Prompt => b"prompt",
    }
}

/// Parameters, in lower case, and payload of a data URL. The Fetch standard ends the parameters with `;base64`, in any case.
fn split(raw: &[u8]) -> Result<(String, &[u8]), String> {
    let mut head = String::new();
    let mut rest = raw;
    loop {
        let (byte, taken) = base64::character(rest).map_err(|_| "a data URL without a comma")?;
        rest = &rest[taken..];
        match byte {
            b',' => break,
            byte => head.push((byte as char).to_ascii_lowercase()),
        }
    }
    let Some((kind, "base64")) = head.rsplit_once(';').map(|(kind, last)| (kind, last.trim())) else {
        return Err("a data URL that is not base64".into());
    };
    let kind = kind.split_once(':').map_or("", |(_, kind)| kind).to_owned();
    Ok((kind, rest))
}
