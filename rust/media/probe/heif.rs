//! AVIF and HEIF: size and turn of the primary item from its properties.

use super::reader::{Order::Big, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

type Boxed<'a> = ([u8; 4], &'a [u8]);

/// The next box: its kind and body. A body of size 0 goes to the end, which is there when the data are `complete`.
fn next<'a>(reader: &mut Reader<'a>, complete: bool) -> Result<Boxed<'a>, Stop> {
    let start = reader.at;
    let mut size = reader.u32(Big)? as usize;
    let kind: [u8; 4] = reader.take(4)?.try_into().map_err(|_| Stop::Short)?;
    if size == 1 {
        if reader.u32(Big)? != 0 {
            return Err(Stop::Bad("a box of more than 4 GiB"));
        }
        size = reader.u32(Big)? as usize;
    } else if size == 0 && !complete {
        return Err(Stop::Short);
    } else if size == 0 {
        size = reader.data.len() - start;
    }
    let body = size.checked_sub(reader.at - start).ok_or(Stop::Bad("a box smaller than its header"))?;
    Ok((kind, reader.take(body)?))
}

fn children(body: &[u8]) -> impl Iterator<Item = Boxed<'_>> {
    let mut reader = Reader::new(body, 0);
    std::iter::from_fn(move || next(&mut reader, true).ok())
}

fn child<'a>(body: &'a [u8], kind: &[u8; 4]) -> Result<&'a [u8], Stop> {
    children(body)
        .find(|(found, _)| found == kind)
        .map(|(_, body)| body)
        .ok_or(Stop::Bad("a box that every picture has is missing"))
}

fn inner(body: &[u8]) -> Result<&[u8], Stop> {
    body.get(4..).ok_or(Stop::Bad("a box that is too short"))
}

/// Read the boxes up to the metadata.
pub fn probe(data: &[u8], format: Format, complete: bool) -> Result<Probe, Stop> {
    let mut reader = Reader::new(data, 0);
    let meta = loop {
        let (kind, body) = next(&mut reader, complete)?;
        if &kind == b"meta" {
            break inner(body)?;
        }
    };
    picture(meta, format).map_err(|stop| match stop {
        // The metadata are complete: nothing that follows helps.
        Stop::Short => Stop::Bad("a box that is too short"),
        stop => stop,
    })
}

fn picture(meta: &[u8], format: Format) -> Result<Probe, Stop> {
    let item = child(meta, b"pitm")?;
    let wide = item.first().is_some_and(|&version| version > 0);
    let mut item = Reader::new(item, 4);
    let primary = if wide { item.u32(Big)? } else { item.u16(Big)?.into() };
    let properties = child(meta, b"iprp")?;
    let all: Vec<Boxed> = children(child(properties, b"ipco")?).collect();
    let mut probe = Probe { channels: 3, ..Probe::new(format, 0, 0) };
    let (mut turns, mut mirror) = (0, None);
    for index in associations(child(properties, b"ipma")?, primary)? {
        let Some((kind, body)) = index.checked_sub(1).and_then(|index| all.get(index)) else { continue };
        let mut reader = Reader::new(body, 4);
        match kind {
            b"ispe" => (probe.width, probe.height) = (reader.u32(Big)?, reader.u32(Big)?),
            b"pixi" => probe.depth = body.get(5).copied().unwrap_or(8),
            b"irot" => turns = body.first().map_or(0, |byte| byte & 3),
            b"imir" => mirror = body.first().map(|byte| byte & 1),
            _ => {}
        }
    }
    probe.alpha = all.iter().any(|(kind, body)| kind == b"auxC" && memchr::memmem::find(body, b":alpha").is_some())
        || all.iter().any(|(kind, body)| kind == b"auxC" && memchr::memmem::find(body, b"auxid:1").is_some());
    probe.orientation = turned(turns, mirror);
    Ok(probe)
}

fn associations(body: &[u8], item: u32) -> Result<Vec<usize>, Stop> {
    let mut reader = Reader::new(body, 0);
    let head = reader.u32(Big)?;
    let (wide, large) = (head >> 24 > 0, head & 1 != 0);
    for _ in 0..reader.u32(Big)? {
        let id = if wide { reader.u32(Big)? } else { reader.u16(Big)?.into() };
        let count = reader.u8()?;
        let mut found = Vec::new();
        for _ in 0..count {
            found.push(if large { reader.u16(Big)? & 0x7fff } else { (reader.u8()? & 0x7f).into() }.into());
        }
        if id == item {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// EXIF orientation of quarter turns to the left, then a mirror (0: top and bottom change places, 1: left and right).
fn turned(turns: u8, mirror: Option<u8>) -> u8 {
    match (mirror, turns) {
        (None, turns) => [1, 8, 3, 6][usize::from(turns & 3)],
        (Some(0), turns) => [4, 5, 2, 7][usize::from(turns & 3)],
        (Some(_), turns) => [2, 7, 4, 5][usize::from(turns & 3)],
    }
}
