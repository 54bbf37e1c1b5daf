//! The format of a picture from its first bytes; what a client declares is never looked at.

/// Formats told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG.
    Jpeg,
    /// PNG, animated or not.
    Png,
    /// WebP.
    Webp,
    /// GIF.
    Gif,
    /// Windows bitmap.
    Bmp,
    /// TIFF.
    Tiff,
    /// AVIF.
    Avif,
    /// HEIC and other HEIF without AV1, which engines do not open.
    Heif,
    /// PBM, PGM, PPM and PFM.
    Ppm,
}

impl Format {
    /// Name as Pillow has it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
            Format::Webp => "WEBP",
            Format::Gif => "GIF",
            Format::Bmp => "BMP",
            Format::Tiff => "TIFF",
            Format::Avif => "AVIF",
            Format::Heif => "HEIF",
            Format::Ppm => "PPM",
        }
    }

    /// Registered media type.
    pub fn mime(self) -> &'static str {
        match self {
            Format::Jpeg => "image/jpeg",
            Format::Png => "image/png",
            Format::Webp => "image/webp",
            Format::Gif => "image/gif",
            Format::Bmp => "image/bmp",
            Format::Tiff => "image/tiff",
            Format::Avif => "image/avif",
            Format::Heif => "image/heif",
            Format::Ppm => "image/x-portable-anymap",
        }
    }
}

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// One of the formats.
    Known(Format),
    /// Too few bytes to tell.
    More,
    /// None of the formats.
    Unknown,
}

const TIFF: [&[u8]; 6] = [b"MM\0*", b"II*\0", b"MM*\0", b"II\0*", b"MM\0+", b"II+\0"];

/// Tell the format; 16 bytes are always enough.
pub fn sniff(data: &[u8]) -> Sniff {
    let start = |magic: &[u8]| {
        let size = data.len().min(magic.len());
        (data[..size] == magic[..size]).then_some(size == magic.len())
    };
    let magics = [
        (Format::Jpeg, start(b"\xff\xd8\xff")),
        (Format::Png, start(b"\x89PNG\r\n\x1a\n")),
        (Format::Gif, start(b"GIF87a").or(start(b"GIF89a"))),
        (Format::Bmp, start(b"BM")),
        (Format::Tiff, TIFF.iter().find_map(|magic| start(magic))),
        (Format::Webp, riff(data)),
        (Format::Ppm, netpbm(data)),
    ];
    let mut more = false;
    for (format, found) in magics {
        match found {
            Some(true) => return Sniff::Known(format),
            Some(false) => more = true,
            None => {}
        }
    }
    match boxes(data) {
        Sniff::Unknown if more => Sniff::More,
        found => found,
    }
}

/// HEIC and its like, which no engine opens.
pub fn is_heif(data: &[u8]) -> bool {
    sniff(data) == Sniff::Known(Format::Heif)
}

fn riff(data: &[u8]) -> Option<bool> {
    if data.len() >= 16 {
        return (data.starts_with(b"RIFF") && matches!(&data[8..16], b"WEBPVP8 " | b"WEBPVP8L" | b"WEBPVP8X"))
            .then_some(true);
    }
    let size = data.len().min(4);
    let kind = data.get(8..).unwrap_or_default();
    (data[..size] == b"RIFF"[..size] && b"WEBPVP8"[..].starts_with(&kind[..kind.len().min(7)])).then_some(false)
}

fn netpbm(data: &[u8]) -> Option<bool> {
    match data {
        [] | [b'P'] => Some(false),
        [b'P', b'0'..=b'6' | b'f' | b'y', ..] => Some(true),
        _ => None,
    }
}

fn boxes(data: &[u8]) -> Sniff {
    let Some(kind) = data.get(4..12) else {
        let seen = data.get(4..).unwrap_or_default();
        return if b"ftyp"[..].starts_with(&seen[..seen.len().min(4)]) { Sniff::More } else { Sniff::Unknown };
    };
    match kind {
        // A container brand may hold either; Pillow tries AVIF.
        b"ftypavif" | b"ftypavis" | b"ftypmif1" | b"ftypmsf1" => Sniff::Known(Format::Avif),
        b"ftypheic" | b"ftypheix" | b"ftyphevc" | b"ftyphevx" | b"ftypheim" | b"ftypheis" => Sniff::Known(Format::Heif),
        _ => Sniff::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_ask_for_more() {
        for (magic, format) in [
            (&b"\xff\xd8\xff"[..], Format::Jpeg),
            (b"\x89PNG\r\n\x1a\n", Format::Png),
            (b"GIF89a", Format::Gif),
            (b"RIFF\x10\0\0\0WEBPVP8L", Format::Webp),
            (b"II*\0", Format::Tiff),
            (b"MM\0*", Format::Tiff),
            (b"BM", Format::Bmp),
            (b"P6", Format::Ppm),
            (b"\0\0\0\x1cftypavif", Format::Avif),
            (b"\0\0\0\x18ftypheic", Format::Heif),
        ] {
            assert_eq!(sniff(magic), Sniff::Known(format));
            for cut in 0..magic.len() {
                assert_eq!(sniff(&magic[..cut]), Sniff::More, "{format:?} {cut}");
            }
        }
        assert_eq!(sniff(b"RIFF\x10\0\0\0AVI LIST"), Sniff::Unknown);
        assert_eq!(sniff(b"<html><body></body>"), Sniff::Unknown);
        assert_eq!(sniff(b"\0\0\0\x18ftypmp42"), Sniff::Unknown);
    }
}
