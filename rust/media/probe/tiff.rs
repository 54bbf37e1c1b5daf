//! TIFF: the first directory.

use std::collections::HashMap;

use super::exif;
use super::reader::{Order, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

const XMP: u16 = 700;
const MOST_FRAMES: usize = 1024;

/// The first directory of a file.
#[derive(Clone, Debug)]
pub struct Directory<'a> {
    /// Byte order.
    pub order: Order,
    /// Where it starts.
    pub offset: usize,
    tags: HashMap<u16, (u16, &'a [u8])>,
    skipped: bool,
}

impl<'a> Directory<'a> {
    /// Read the first directory. `complete`: `data` is the whole file.
    pub fn read(data: &'a [u8], complete: bool) -> Result<(Self, Reader<'a>), Stop> {
        let (order, offset) = exif::header(data).ok_or(Stop::Short)?;
        let mut reader = Reader::new(data, offset);
        let entries = reader.u16(order)?;
        let (mut tags, mut total, mut skipped) = (HashMap::new(), 0, false);
        for _ in 0..entries {
            match exif::entry(data, order, &mut reader, &mut total, complete)? {
                Some((tag, kind, value)) => skipped |= tags.insert(tag, (kind, value)).is_some(),
                None => skipped = true,
            }
        }
        Ok((Directory { order, offset, tags, skipped }, reader))
    }

    /// Whole numbers of a tag; empty where it is missing or holds something else.
    pub fn numbers(&self, tag: u16) -> Vec<u32> {
        let Some(&(kind, value)) = self.tags.get(&tag) else { return Vec::new() };
        match kind {
            1 => value.iter().map(|&byte| byte.into()).collect(),
            3 => value.chunks_exact(2).map(|pair| self.order.u16([pair[0], pair[1]]).into()).collect(),
            4 => value.chunks_exact(4).map(|four| self.order.u32([four[0], four[1], four[2], four[3]])).collect(),
            _ => Vec::new(),
        }
    }

    /// The first number of a tag.
    pub fn number(&self, tag: u16) -> Option<u32> {
        self.numbers(tag).first().copied()
    }

    /// Readers differ in what they make of it: an entry is unreadable or there twice, or one that shapes the pixels has
    /// another type or number of values than the standard gives it.
    pub fn odd(&self) -> bool {
        const SINGLE: [u16; 12] = [256, 257, 259, 262, 266, 274, 277, 278, 284, 317, 322, 323];
        const LISTS: [u16; 8] = [258, 273, 279, 320, 324, 325, 338, 339];
        self.skipped
            || self.tags.iter().any(|(tag, (kind, value))| {
                let single = SINGLE.contains(tag);
                let plain = match kind {
                    3 => !single || value.len() == 2,
                    4 => !single || value.len() == 4,
                    _ => false,
                };
                !plain && (single || LISTS.contains(tag))
            })
    }

    /// It holds the tag.
    pub fn has(&self, tag: u16) -> bool {
        self.tags.contains_key(&tag)
    }
}

/// Read the header, which may be anywhere in the file.
pub fn probe(data: &[u8], complete: bool) -> Result<Probe, Stop> {
    if matches!(data.get(..4), Some(b"MM\0+" | b"II+\0")) {
        return Err(Stop::Bad("a BigTIFF"));
    }
    let (directory, reader) = Directory::read(data, complete)?;
    let side = |tag| directory.number(tag).filter(|&side| side > 0).ok_or(Stop::Bad("a TIFF without a size"));
    let (width, height) = (side(256)?, side(257)?);
    let xmp = directory.tags.get(&XMP).map(|(_, value)| *value);
    let mut probe = Probe::new(Format::Tiff, width, height);
    probe.orientation = exif::of_file(data, directory.order, directory.offset, xmp);
    probe.depth = u8::try_from(directory.number(258).unwrap_or(1)).unwrap_or(u8::MAX);
    probe.channels = u8::try_from(directory.number(277).unwrap_or(1)).unwrap_or(u8::MAX);
    probe.alpha = directory.numbers(338).iter().any(|&kind| kind != 0);
    probe.palette = directory.number(262) == Some(3);
    (probe.frames, probe.settled) = pages(reader, &directory);
    probe.settled |= complete;
    Ok(probe)
}

/// Pages, and whether the list of them was there to its end. `reader` is behind the entries of the first directory.
fn pages(mut reader: Reader<'_>, first: &Directory<'_>) -> (u32, bool) {
    let mut seen = vec![first.offset];
    loop {
        let count = seen.len() as u32;
        let Ok(next) = reader.u32(first.order).map(|next| next as usize) else { return (count, false) };
        if next == 0 || seen.contains(&next) || seen.len() > MOST_FRAMES {
            return (count, true);
        }
        reader.at = next;
        let Ok(entries) = reader.u16(first.order) else { return (count, false) };
        seen.push(next);
        reader.at = reader.at.saturating_add(usize::from(entries) * 12);
    }
}
