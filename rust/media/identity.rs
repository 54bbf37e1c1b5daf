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
    let payload = if item.bare { raw } else { payload(raw).map_err(refuse)? };
    let mut hasher = blake3::Hasher::new();
    frame(&mut hasher, b"epd-router media 1");
    frame(&mut hasher, salt);
    frame(&mut hasher, modality(item.modality));
    let mut size = 0;
    base64::decode(payload, &mut |block| {
        size += block.len();
        hasher.update(block);
    })
    .map_err(refuse)?;
    if size == 0 {
        return Err(refuse("the data URL is empty".into()));
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

/// What follows the comma of a data URL. The Fetch standard ends the parameters with `;base64`, in any case.
fn payload(raw: &[u8]) -> Result<&[u8], String> {
    let comma = memchr::memchr(b',', raw).ok_or("a data URL without a comma")?;
    let head = String::from_utf8_lossy(&raw[..comma]).replace("\\/", "/").to_ascii_lowercase();
    let last = head.rsplit(';').next().unwrap_or("").trim();
    if !head.contains(';') || last != "base64" {
        return Err("a data URL that is not base64".into());
    }
    Ok(&raw[comma + 1..])
}
