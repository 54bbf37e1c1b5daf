//! EXIF and XMP orientation, as tolerant of broken directories as Pillow is.

use super::reader::{Order, Reader, Stop};

const ORIENTATION: u16 = 0x0112;

/// What a directory says of a tag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tag {
    /// It is not there.
    Absent,
    /// It is there; None for a value that is no orientation.
    Value(Option<f64>),
    /// The structure is no TIFF at all, so that whatever else the file says is not looked at either.
    Broken,
}

/// Orientation, 1 to 8, from an EXIF block (with or without its `Exif` mark) and an XMP packet, which counts only where
/// EXIF has none.
pub fn orientation(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> u8 {
    let tag = exif.map_or(Tag::Absent, block);
    of_tag(tag, xmp)
}

/// As `orientation`, from the directory of a TIFF file at `offset`.
pub fn of_file(data: &[u8], order: Order, offset: usize, xmp: Option<&[u8]>) -> u8 {
    of_tag(directory(data, order, offset), xmp)
}

fn of_tag(tag: Tag, xmp: Option<&[u8]>) -> u8 {
    let value = match tag {
        Tag::Absent => xmp.and_then(of_xmp),
        Tag::Value(value) => value,
        Tag::Broken => None,
    };
    (2..=8).find(|&known| value == Some(f64::from(known))).unwrap_or(1)
}

fn block(exif: &[u8]) -> Tag {
    const MARK: &[u8] = b"Exif\0\0";
    let data = exif.strip_prefix(MARK).unwrap_or(exif);
    let data = data.strip_prefix(MARK).unwrap_or(data);
    if data.is_empty() {
        return Tag::Absent;
    }
    match header(data) {
        Some((order, offset)) => directory(data, order, offset),
        None => Tag::Broken,
    }
}

/// Byte order and offset of the first directory of a TIFF structure.
pub fn header(data: &[u8]) -> Option<(Order, usize)> {
    let order = match data.get(..4)? {
        b"II*\0" | b"II\0*" => Order::Little,
        b"MM\0*" | b"MM*\0" => Order::Big,
        _ => return None,
    };
    Some((order, Reader::new(data, 4).u32(order).ok()? as usize))
}

/// Bytes of one value of a type; None for an unknown type.
pub fn unit(kind: u16) -> Option<usize> {
    Some(match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 => 8,
        _ => return None,
    })
}

fn directory(data: &[u8], order: Order, offset: usize) -> Tag {
    let mut reader = Reader::new(data, offset);
    let Ok(entries) = reader.u16(order) else { return Tag::Absent };
    let mut total = 0_u64;
    for _ in 0..entries {
        match entry(data, order, &mut reader, &mut total, true) {
            Ok(Some((ORIENTATION, kind, value))) => return Tag::Value(number(value, kind, order)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Tag::Absent
}

type Entry<'a> = (u16, u16, &'a [u8]);

/// Tag, type and bytes of the next entry; None for one to be skipped. `total` sums up the bytes of all values so far.
pub fn entry<'a>(
    data: &'a [u8],
    order: Order,
    reader: &mut Reader<'a>,
    total: &mut u64,
    complete: bool,
) -> Result<Option<Entry<'a>>, Stop> {
    let (tag, kind, count) = (reader.u16(order)?, reader.u16(order)?, reader.u32(order)?);
    let mut field = Reader::new(reader.take(4)?, 0);
    let Some(unit) = unit(kind) else { return Ok(None) };
    let size = u64::from(count) * unit as u64;
    if size > 4 {
        // Values that together exceed the file are a bomb, not a picture.
        *total = total.saturating_add(size);
        if *total > data.len() as u64 {
            return if complete { Ok(None) } else { Err(Stop::Short) };
        }
        field = Reader::new(data, field.u32(order)? as usize);
    }
    let value = field.take(usize::try_from(size).map_err(|_| Stop::Short)?)?;
    Ok((!value.is_empty()).then_some((tag, kind, value)))
}

fn number(value: &[u8], kind: u16, order: Order) -> Option<f64> {
    let mut reader = Reader::new(value, 0);
    match kind {
        3 => reader.u16(order).ok().map(f64::from),
        4 | 13 => reader.u32(order).ok().map(f64::from),
        6 => reader.u8().ok().map(|byte| f64::from(byte as i8)),
        8 => reader.u16(order).ok().map(|value| f64::from(value as i16)),
        9 => reader.u32(order).ok().map(|value| f64::from(value as i32)),
        5 | 10 => {
            let (over, under) = (reader.u32(order).ok()?, reader.u32(order).ok()?);
            (under != 0 && over % under == 0).then(|| f64::from(over / under))
        }
        11 => reader.u32(order).ok().map(|bits| f64::from(f32::from_bits(bits))),
        _ => None,
    }
}

fn of_xmp(xmp: &[u8]) -> Option<f64> {
    let mark = b"tiff:Orientation";
    memchr::memmem::find_iter(xmp, mark).find_map(|at| {
        let rest = &xmp[at + mark.len()..];
        let value = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?;
        value.first().filter(|byte| byte.is_ascii_digit()).map(|byte| f64::from(byte - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(kind: u16, count: u32, value: [u8; 4]) -> Vec<u8> {
        let mut data = b"II*\0\x08\0\0\0\x01\0\x12\x01".to_vec();
        data.extend(kind.to_le_bytes());
        data.extend(count.to_le_bytes());
        data.extend(value);
        data.extend([0; 4]);
        data
    }

    #[test]
    fn values_of_many_types() {
        assert_eq!(orientation(Some(&exif(3, 1, [6, 0, 0, 0])), None), 6);
        assert_eq!(orientation(Some(&exif(4, 1, [8, 0, 0, 0])), None), 8);
        assert_eq!(orientation(Some(&exif(11, 1, 3_f32.to_le_bytes())), None), 3);
        assert_eq!(orientation(Some(&exif(3, 1, [9, 0, 0, 0])), None), 1);
        assert_eq!(orientation(Some(&exif(1, 1, [6, 0, 0, 0])), None), 1, "bytes are no number");
    }

    #[test]
    fn xmp_counts_only_without_exif() {
        let xmp = b"<x tiff:Orientation=\"6\"/>";
        assert_eq!(orientation(None, Some(xmp)), 6);
        assert_eq!(orientation(Some(b"Exif\0\0"), Some(b"<tiff:Orientation>8</tiff:Orientation>")), 8);
        assert_eq!(orientation(Some(&exif(3, 1, [1, 0, 0, 0])), Some(xmp)), 1);
        assert_eq!(orientation(Some(&exif(3, 0, [6, 0, 0, 0])), Some(xmp)), 6, "an empty value is no value");
        assert_eq!(orientation(Some(b"nonsense"), Some(xmp)), 1);
    }
}
