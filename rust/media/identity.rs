//! Content identity: BLAKE3 over length-framed parts, 64 lower-case hex characters.
//!
//! It becomes the `uuid` of a media part, which engines use as the key of every cache and as a path component, so it holds
//! nothing but hex digits and never anything a client chose. One pass over the bytes hashes them, looks at the header of a
//! picture and sees whether an engine would take the spelling of the data URL.

use super::base64;
use super::limits::Limits;
use super::probe::{probe, Found, Probe};
use super::MediaError;
use crate::body::scan::{Item, Modality, Source};
use crate::error::{BodyError, Code};

const HEADER: usize = 64 << 10; // bytes of a picture that are kept for the look at its header; 16 KiB are usually enough

/// What is known of an item whose bytes are at hand.
#[derive(Clone, Debug)]
pub struct Named {
    /// Identity of its bytes within the scope of the salt.
    pub id: String,
    /// Bytes, decoded from base64.
    pub size: u64,
    /// Engines take the URL as it is spelled.
    pub canonical: bool,
    /// The header of a picture, if it is of a known format.
    pub probe: Option<Probe>,
}

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

fn start(salt: &[u8], kind: &[u8]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    for part in [b"epd-router media 1", salt, kind] {
        frame(&mut hasher, part);
    }
    hasher
}

/// Name an item whose bytes are in the body; None for others.
pub fn name_item(body: &[u8], item: &Item, salt: &[u8], limits: &Limits) -> Result<Option<Named>, BodyError> {
    let Some((raw, refuse)) = inline(body, item) else { return Ok(None) };
    let payload = Payload::of(raw, item).map_err(|message| refuse(Code::InvalidValue, message))?;
    let kind = if payload.frames { b"video/jpeg" } else { kind(item.modality) };
    let mut hasher = start(salt, kind);
    let mut header = Vec::new();
    let (mut total, mut canonical) = (0_u64, payload.plain);
    for part in payload.parts() {
        let mut size = 0_u64;
        let mut keep = item.modality == Modality::Image;
        let plain = base64::decode(part, !item.bare, &mut |block| {
            size += block.len() as u64;
            hasher.update(block);
            if keep {
                keep = false; // blocks are longer than any header that counts
                header.extend_from_slice(&block[..block.len().min(HEADER)]);
            }
        })
        .map_err(|message| refuse(Code::InvalidValue, message))?;
        if size == 0 {
            return Err(refuse(Code::InvalidValue, "the data URL is empty".into()));
        }
        if payload.frames {
            hasher.update(&size.to_le_bytes());
        }
        canonical &= plain;
        total += size;
    }
    let look = |error: MediaError| refuse(error.code, error.message);
    check_size(total, limits).map_err(look)?;
    let probe = look_at(&header, total, limits).map_err(look)?;
    Ok(Some(Named { id: hasher.finalize().to_hex().to_string(), size: total, canonical, probe }))
}

/// Name bytes that are not in a body: the same bytes have the same name as in one.
pub fn name_bytes(data: &[u8], modality: Modality, salt: &[u8], limits: &Limits) -> Result<Named, MediaError> {
    let size = data.len() as u64;
    check_size(size, limits)?;
    let mut hasher = start(salt, kind(modality));
    hasher.update(data);
    let header = if modality == Modality::Image { &data[..data.len().min(HEADER)] } else { &[] };
    let probe = look_at(header, size, limits)?;
    Ok(Named { id: hasher.finalize().to_hex().to_string(), size, canonical: true, probe })
}

fn check_size(size: u64, limits: &Limits) -> Result<(), MediaError> {
    if size > limits.bytes as u64 {
        let message = format!("{size} bytes, more than the {} allowed", limits.bytes);
        return Err(MediaError { code: Code::MediaTooLarge, message });
    }
    Ok(())
}

/// The header of a picture. What is wrong with it is left for the engine to say, but for what no engine takes and what is
/// beyond the limits.
fn look_at(header: &[u8], size: u64, limits: &Limits) -> Result<Option<Probe>, MediaError> {
    match probe(header, header.len() as u64 == size, limits) {
        Ok(Found::Header(probe)) => Ok(Some(probe)),
        Err(error) if error.code == Code::MediaTooLarge || super::sniff::is_heif(header) => Err(error),
        _ => Ok(None),
    }
}

/// The string of an item that holds its bytes, and how to refuse it.
fn inline<'a>(body: &'a [u8], item: &'a Item) -> Option<(&'a [u8], impl Fn(Code, String) -> BodyError + 'a)> {
    let (Source::Data, Some(text)) = (item.source, item.text) else { return None };
    let refuse = move |code, message: String| BodyError {
        code,
        message: format!("{}: {message}", item.param),
        param: Some(item.param.clone()),
        offset: text.start,
    };
    Some((body.get(text.start..text.end).unwrap_or_default(), refuse))
}

/// The bytes of an item whose bytes are in the body; None for others.
pub fn item_bytes(body: &[u8], item: &Item) -> Result<Option<Vec<u8>>, BodyError> {
    let Some((raw, refuse)) = inline(body, item) else { return Ok(None) };
    let payload = Payload::of(raw, item).map_err(|message| refuse(Code::InvalidValue, message))?;
    let mut out = Vec::with_capacity(payload.text.len() / 4 * 3 + 3);
    base64::decode(payload.text, !item.bare, &mut |block| out.extend_from_slice(block))
        .map_err(|message| refuse(Code::InvalidValue, message))?;
    Ok(Some(out))
}

/// The string of an item in the one spelling that every engine takes; None for items without bytes. A picture gets the type
/// that its bytes have.
pub fn clean_text(body: &[u8], item: &Item) -> Result<Option<Vec<u8>>, BodyError> {
    let Some((raw, refuse)) = inline(body, item) else { return Ok(None) };
    let refuse = |message| refuse(Code::InvalidValue, message);
    let payload = Payload::of(raw, item).map_err(refuse)?;
    let mut parts = Vec::new();
    for part in payload.parts() {
        let mut bytes = Vec::new();
        base64::decode(part, !item.bare, &mut |block| bytes.extend_from_slice(block)).map_err(refuse)?;
        parts.push(bytes);
    }
    let mut out = Vec::with_capacity(raw.len() + 32);
    if !item.bare {
        let first = parts.first().map_or(&[][..], Vec::as_slice);
        out.extend_from_slice(
            format!("data:{};base64,", media_type(first, item.modality, &payload.declared)).as_bytes(),
        );
    }
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        base64::encode(part, &mut out);
    }
    Ok(Some(out))
}

/// A data URL of bytes.
pub fn data_url(data: &[u8], modality: Modality, declared: &str) -> Vec<u8> {
    // The name of a list of pictures, which bytes from elsewhere are not.
    let declared = if declared == "video/jpeg" { "" } else { declared };
    let head = format!("data:{};base64,", media_type(data, modality, declared));
    let mut out = Vec::with_capacity(head.len() + data.len().div_ceil(3) * 4);
    out.extend_from_slice(head.as_bytes());
    base64::encode(data, &mut out);
    out
}

/// What the bytes of a picture are, whatever was declared; for other media what was declared, if that is a type at all.
fn media_type<'a>(data: &[u8], modality: Modality, declared: &'a str) -> &'a str {
    use super::sniff::{sniff, Sniff};
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"/.+-".contains(&byte);
    let prefix = match modality {
        Modality::Image | Modality::Prompt => {
            return match sniff(data) {
                Sniff::Known(format) => format.mime(),
                _ => "image/png",
            }
        }
        Modality::Audio => "audio/",
        Modality::Video => "video/",
    };
    if declared.starts_with(prefix) && declared.len() < 64 && declared.bytes().all(plain) {
        declared
    } else if modality == Modality::Audio {
        "audio/wav"
    } else {
        "video/mp4"
    }
}

fn kind(modality: Modality) -> &'static [u8] {
    match modality {
        Modality::Image => b"image",
        Modality::Audio => b"audio",
        Modality::Video => b"video",
        Modality::Prompt => b"prompt",
    }
}

/// A data URL taken apart.
struct Payload<'a> {
    /// Its type, in lower case.
    declared: String,
    /// The base64.
    text: &'a [u8],
    /// The part before the comma is spelled as every engine takes it.
    plain: bool,
    /// A list of pictures, which vLLM takes as a video: `data:video/jpeg;base64,F1,F2`.
    frames: bool,
}

impl<'a> Payload<'a> {
    fn of(raw: &'a [u8], item: &Item) -> Result<Self, String> {
        if item.bare {
            return Ok(Payload { declared: String::new(), text: raw, plain: true, frames: false });
        }
        let (head, text) = split(raw)?;
        let lower = head.to_ascii_lowercase();
        // The Fetch standard ends the parameters with `;base64`, in any case.
        let Some((kind, "base64")) = lower.rsplit_once(';').map(|(kind, last)| (kind, last.trim())) else {
            return Err("a data URL that is not base64".into());
        };
        let declared = kind.split_once(':').map_or("", |(_, kind)| kind);
        let declared = declared.split(';').next().unwrap_or_default().trim().to_owned();
        let frames = item.modality == Modality::Video && declared == "video/jpeg";
        let plain = head.starts_with("data:") && head.ends_with(";base64") && (!frames || lower == head);
        Ok(Payload { declared, text, plain, frames })
    }

    fn parts(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let frames = self.frames;
        self.text.split(move |&byte| frames && byte == b',')
    }
}

/// What stands before the comma of a data URL, escapes resolved, and what stands behind it.
fn split(raw: &[u8]) -> Result<(String, &[u8]), String> {
    let mut head = String::new();
    let mut rest = raw;
    loop {
        let (byte, taken) = base64::character(rest).map_err(|_| "a data URL without a comma")?;
        rest = &rest[taken..];
        match byte {
            b',' => return Ok((head, rest)),
            byte => head.push(byte as char),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_sniffed_or_harmless() {
        let url =
            |data: &[u8], modality, declared: &str| String::from_utf8(data_url(data, modality, declared)).unwrap();
        assert_eq!(url(b"GIF89a", Modality::Image, "image/jpeg"), "data:image/gif;base64,R0lGODlh");
        assert_eq!(url(b"abc", Modality::Video, "video/jpeg"), "data:video/mp4;base64,YWJj");
        assert_eq!(url(b"abc", Modality::Video, "video/webm"), "data:video/webm;base64,YWJj");
        assert_eq!(url(b"abc", Modality::Audio, "audio/x\"y"), "data:audio/wav;base64,YWJj");
    }
}
