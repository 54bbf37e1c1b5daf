//! PNG: one walk over the chunks, for the probe and for the decoder.
//!
//! Check sums count only before the picture data, and what is broken behind it only costs the orientation: so it is in the
//! engine, which reads that part after the pixels and forgives errors there.

use std::borrow::Cow;
use std::io::Read as _;
use std::ops::Range;

use super::exif;
use super::reader::{Order::Big, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

const TEXT: u64 = 1 << 20; // a longer compressed text is refused
const TEXTS: usize = 64 << 20; // all texts together, and all colour profiles

/// The chunks that matter.
#[derive(Clone, Debug, Default)]
pub struct Chunks<'a> {
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bits a sample.
    pub depth: u8,
    /// Colour type of the header.
    pub color: u8,
    /// In seven passes.
    pub interlaced: bool,
    /// `PLTE`.
    pub palette: Option<&'a [u8]>,
    /// `tRNS`.
    pub trns: Option<&'a [u8]>,
    /// Where the payloads of the data chunks of the default image are.
    pub idat: Vec<Range<usize>>,
    /// Something that is no chunk follows the data.
    pub torn: bool,
    /// Frames announced.
    pub frames: u32,
    /// The default image is a part of the canvas, or its data come in frame chunks.
    pub odd: bool,
    /// From wherever it hides.
    pub orientation: u8,
    /// The whole file was there.
    pub settled: bool,
    exif: Option<Cow<'a, [u8]>>,
    raw_profile: Option<Vec<u8>>,
    xmp: Option<Cow<'a, [u8]>>,
    sequence: Option<u32>,
    texts: usize,
    profiles: usize,
}

struct Chunk<'a> {
    kind: [u8; 4],
    body: &'a [u8],
    /// The body is cut short.
    cut: bool,
}

fn next<'a>(reader: &mut Reader<'a>) -> Result<Chunk<'a>, Stop> {
    let size = reader.u32(Big)? as usize;
    let kind: [u8; 4] = reader.take(4)?.try_into().map_err(|_| Stop::Short)?;
    if !kind.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        return Err(Stop::Bad("a broken PNG chunk"));
    }
    let rest = reader.data.len() - reader.at;
    let body = reader.take(size.min(rest))?;
    Ok(Chunk { kind, body, cut: size > rest })
}

/// Walk the chunks. With `complete` a picture that ends early is taken as far as it goes.
pub fn chunks(data: &[u8], complete: bool) -> Result<Chunks<'_>, Stop> {
    let mut reader = Reader::new(data, 8);
    let mut png = Chunks { frames: 1, orientation: 1, ..Chunks::default() };
    let mut announced = None;
    loop {
        let chunk = next(&mut reader)?;
        match &chunk.kind {
            b"IDAT" => {
                png.idat.push(reader.at - chunk.body.len()..reader.at);
                break;
            }
            b"IEND" => return Err(Stop::Bad("a PNG without picture data")),
            _ if chunk.cut => return Err(Stop::Short),
            b"fdAT" => return Err(Stop::Bad("a PNG whose first data are a frame")),
            b"acTL" => announced = frames(chunk.body, announced)?,
            _ => png.take(&chunk)?,
        }
        let mut check = crc32fast::Hasher::new();
        check.update(&chunk.kind);
        check.update(chunk.body);
        if reader.u32(Big)? != check.finalize() {
            return Err(Stop::Bad("a PNG chunk with a wrong check sum"));
        }
    }
    if png.width == 0 || png.height == 0 {
        return Err(Stop::Bad("a PNG without a header"));
    }
    let animated = announced.is_some_and(|count| count + u32::from(png.sequence.is_none()) > 1);
    // A default image that is no frame counts too.
    png.frames = announced.map_or(1, |count: u32| count.saturating_add(u32::from(png.sequence.is_none())));
    let before = png.clone();
    let rest = png.rest(&mut reader, animated, complete);
    png.settled = complete || rest.as_ref().is_ok_and(|ended| *ended);
    if let Err(Stop::Bad(_)) = rest {
        // The pixels are there by now, but nothing that follows them is believed.
        png = Chunks { idat: png.idat, torn: png.torn, trns: png.trns, orientation: 1, settled: true, ..before };
    } else {
        png.orientation = png.oriented();
    }
    Ok(png)
}

fn frames(body: &[u8], known: Option<u32>) -> Result<Option<u32>, Stop> {
    let &[a, b, c, d, _, _, _, _, ..] = body else { return Err(Stop::Bad("a PNG animation header that is too short")) };
    let count = u32::from_be_bytes([a, b, c, d]);
    // A second header, or an empty one, makes it a still picture.
    Ok((known.is_none() && (1..=1 << 31).contains(&count)).then_some(count))
}

impl<'a> Chunks<'a> {
    /// What follows the first data chunk; true once the end is reached. Err(Bad) for what the engine stumbles over.
    fn rest(&mut self, reader: &mut Reader<'a>, animated: bool, complete: bool) -> Result<bool, Stop> {
        let mut data = true;
        loop {
            // A missing or broken chunk here is the end, not an error.
            if reader.take(4).is_err() {
                return Ok(false);
            }
            let chunk = match next(reader) {
                Ok(chunk) => chunk,
                Err(Stop::Bad(_)) => {
                    self.torn = data;
                    return Ok(true);
                }
                Err(Stop::Short) => return Ok(false),
            };
            if data && &chunk.kind == b"IDAT" {
                self.idat.push(reader.at - chunk.body.len()..reader.at);
                continue;
            }
            data = false;
            match &chunk.kind {
                b"IEND" => return Ok(true),
                b"fcTL" if animated => return Ok(true),
                _ if chunk.cut && !complete => return Ok(false),
                _ if chunk.cut => return Err(Stop::Bad("a PNG chunk that is cut")),
                b"IDAT" | b"acTL" => {}
                b"fdAT" => self.in_sequence(chunk.body)?,
                _ => self.take(&chunk)?,
            }
        }
    }

    fn in_sequence(&mut self, body: &[u8]) -> Result<(), Stop> {
        let &[a, b, c, d, ..] = body else { return Err(Stop::Bad("a PNG frame that is too short")) };
        let number = u32::from_be_bytes([a, b, c, d]);
        if self.sequence.map_or(0, |last| last.wrapping_add(1)) != number {
            return Err(Stop::Bad("a PNG animation out of order"));
        }
        self.sequence = Some(number);
        Ok(())
    }

    fn take(&mut self, chunk: &Chunk<'a>) -> Result<(), Stop> {
        let body = chunk.body;
        let least = |size: usize| {
            if body.len() < size {
                Err(Stop::Bad("a PNG chunk that is too short"))
            } else {
                Ok(())
            }
        };
        match &chunk.kind {
            b"IHDR" => self.header(body)?,
            b"PLTE" => self.palette = Some(body),
            b"tRNS" => {
                least(match self.color {
                    0 => 2,
                    2 => 6,
                    _ => 0,
                })?;
                self.trns = Some(body);
            }
            b"fcTL" => {
                least(26)?;
                self.in_sequence(body)?;
                let field = |at| Reader::new(body, at).u32(Big).map(u64::from);
                let (width, height, left, top) = (field(4)?, field(8)?, field(12)?, field(16)?);
                if left + width > self.width.into() || top + height > self.height.into() {
                    return Err(Stop::Bad("a PNG frame beyond its canvas"));
                }
                self.odd = (width, height) != (self.width.into(), self.height.into());
            }
            b"gAMA" => least(4)?,
            b"cHRM" => least(32)?,
            b"sRGB" => least(1)?,
            b"pHYs" => least(9)?,
            b"iCCP" => self.profile(body)?,
            b"eXIf" => self.exif = Some(Cow::Borrowed(body)),
            b"tEXt" => self.text(body)?,
            b"zTXt" => self.packed(body)?,
            b"iTXt" => self.international(body)?,
            _ => {}
        }
        Ok(())
    }

    fn header(&mut self, body: &[u8]) -> Result<(), Stop> {
        let &[w0, w1, w2, w3, h0, h1, h2, h3, depth, color, _, filter, interlace, ..] = body else {
            return Err(Stop::Bad("a PNG header that is too short"));
        };
        let known = matches!((color, depth), (0, 1 | 2 | 4) | (0 | 2 | 4 | 6, 8 | 16) | (3, 1 | 2 | 4 | 8));
        if !known || filter != 0 || self.width != 0 {
            return Err(Stop::Bad("a PNG header with unknown values"));
        }
        (self.width, self.height) = (u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]));
        (self.depth, self.color, self.interlaced) = (depth, color, interlace != 0);
        Ok(())
    }

    fn text(&mut self, body: &'a [u8]) -> Result<(), Stop> {
        let (key, value) = split(body).unwrap_or((body, &[]));
        match key {
            b"exif" => self.exif = Some(Cow::Borrowed(value)),
            _ => self.keyword(key, Cow::Borrowed(value)),
        }
        self.remember(key, value.len())
    }

    /// Many short chunks unpack to a gigabyte as easily as one; the engine has this bound too.
    fn remember(&mut self, key: &[u8], size: usize) -> Result<(), Stop> {
        self.texts += if key.is_empty() { 0 } else { size };
        if self.texts > TEXTS {
            return Err(Stop::Bad("a PNG with too much text"));
        }
        Ok(())
    }

    fn packed(&mut self, body: &'a [u8]) -> Result<(), Stop> {
        let (key, value) = split(body).unwrap_or((body, &[]));
        let Some((&method, value)) = value.split_first() else { return Ok(()) };
        if method != 0 {
            return Err(Stop::Bad("a PNG text of unknown compression"));
        }
        let value = inflate(value)?.unwrap_or_default();
        let size = value.len();
        self.keyword(key, Cow::Owned(value));
        self.remember(key, size)
    }

    fn keyword(&mut self, key: &[u8], value: Cow<'a, [u8]>) {
        match key {
            b"Raw profile type exif" => self.raw_profile = Some(value.into_owned()),
            b"XML:com.adobe.xmp" => self.xmp = Some(value),
            _ => {}
        }
    }

    fn international(&mut self, body: &'a [u8]) -> Result<(), Stop> {
        let Some((key, rest)) = split(body) else { return Ok(()) };
        let &[packed, method, ref rest @ ..] = rest else { return Ok(()) };
        let Some((_, value)) = split(rest).and_then(|(_, rest)| split(rest)) else { return Ok(()) };
        let value = match (packed, method) {
            (0, _) => Cow::Borrowed(value),
            (_, 0) => match inflate(value)? {
                Some(value) => Cow::Owned(value),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        // Characters count, and what is not UTF-8 does not.
        let size = std::str::from_utf8(&value).map_or(0, |text| text.chars().count());
        self.keyword(key, value);
        self.remember(b"any", size)
    }

    /// Only checked: the pixels are not converted by it.
    fn profile(&mut self, body: &[u8]) -> Result<(), Stop> {
        let rest = match split(body) {
            Some((_, rest)) => rest,
            None => body,
        };
        let Some((0, packed)) = rest.split_first() else {
            return Err(Stop::Bad("a PNG colour profile of unknown compression"));
        };
        self.profiles += inflate(packed)?.map_or(0, |profile| profile.len());
        if self.profiles > TEXTS {
            return Err(Stop::Bad("a PNG with too many colour profiles"));
        }
        Ok(())
    }

    fn oriented(&self) -> u8 {
        let raw = self.raw_profile.as_deref().filter(|_| self.exif.is_none());
        let decoded = match raw.map(profile_bytes) {
            Some(None) => return 1,
            Some(decoded) => decoded,
            None => None,
        };
        exif::orientation(self.exif.as_deref().or(decoded.as_deref()), self.xmp.as_deref())
    }
}

fn split(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(0, body)?;
    Some((&body[..at], &body[at + 1..]))
}

/// None for data that are damaged, an error for too many.
fn inflate(packed: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
    let mut out = Vec::new();
    match flate2::read::ZlibDecoder::new(packed).take(TEXT + 1).read_to_end(&mut out) {
        Ok(_) if out.len() as u64 > TEXT => Err(Stop::Bad("a PNG text that is too long")),
        // A stream that merely ends early gives what it has.
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Ok(Some(out)),
    }
}

/// `\nexif\n  <length>\n<hex digits in lines>`
fn profile_bytes(text: &[u8]) -> Option<Vec<u8>> {
    let mut digits = text.splitn(4, |&byte| byte == b'\n').nth(3)?.iter().filter(|byte| !byte.is_ascii_whitespace());
    let mut out = Vec::new();
    while let Some(&high) = digits.next() {
        let digit = |byte: u8| (byte as char).to_digit(16);
        out.push((digit(high)? * 16 + digit(*digits.next()?)?) as u8);
    }
    Some(out)
}

/// Read the header.
pub fn probe(data: &[u8], complete: bool) -> Result<Probe, Stop> {
    let png = chunks(data, complete)?;
    Ok(Probe {
        orientation: png.orientation,
        alpha: matches!(png.color, 4 | 6) || png.trns.is_some(),
        depth: png.depth,
        channels: [1, 0, 3, 1, 2, 0, 4].get(usize::from(png.color)).copied().unwrap_or(0),
        palette: png.color == 3,
        frames: png.frames,
        settled: png.settled,
        ..Probe::new(Format::Png, png.width, png.height)
    })
}
