//! What must hold for any bytes. Shared by the fuzz targets and by the test that replays their corpora.

use _core::body::scan::{scan as run, Item, Limits, Modality, Scan};
use _core::body::splice::{item_pieces, Edits, Piece};
use _core::http::chunked::Decoder;
use _core::http::framer::Framer;
use _core::http::head::{request, response};
use _core::media::identity::{clean_text, item_bytes, name_bytes, name_item};
use _core::media::Limits as Media;
use serde_json::{Map, Value};

const LIMITS: Limits = Limits { depth: 100, items: 64 };

/// serde_json refuses lone surrogate escapes, numbers beyond f64 and deep nesting, which are all accepted here: then
/// nothing is said.
fn parse(text: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(text).ok()
}

fn repeats(scan: &Scan) -> bool {
    let mut names: Vec<_> = scan.members.iter().map(|member| &member.name).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

fn joined(body: &[u8], pieces: Vec<Piece>) -> Vec<u8> {
    let bytes = |piece| match piece {
        Piece::Owned(bytes) => bytes,
        Piece::Kept(range) => body[range].to_vec(),
        Piece::Url(_) => b"data:,".to_vec(),
    };
    pieces.into_iter().flat_map(bytes).collect()
}

/// The scanner takes what serde_json takes, and its spans are where it says.
pub fn scan(data: &[u8]) {
    let found = run(data, LIMITS);
    match &found {
        Ok(found) => {
            for item in &found.items {
                assert!(data[item.start] == b'{' && data[item.end - 1] == b'}');
                name(data, item);
            }
            for member in &found.members {
                assert!(member.start < member.value && member.value < member.end);
            }
            if let (Some(value), false) = (parse(data), repeats(found)) {
                assert_eq!(value.len(), found.members.len());
            }
        }
        Err(error) => {
            assert!(error.offset <= data.len());
            assert!(error.code.name() == "invalid_value" || parse(data).is_none());
        }
    }
}

/// The name of an item is that of its bytes, and its clean spelling has the same name.
fn name(data: &[u8], item: &Item) {
    let limits = Media::default();
    let Ok(Some(named)) = name_item(data, item, b"salt", &limits) else { return };
    let clean = clean_text(data, item).ok().flatten().unwrap_or_default();
    if let Ok(Some(bytes)) = item_bytes(data, item) {
        if item.modality != Modality::Video {
            assert_eq!(name_bytes(&bytes, item.modality, b"salt", &limits).map(|other| other.id), Ok(named.id.clone()));
        }
    }
    let text = item.text.map_or(0..0, |text| text.start..text.end);
    let edited = [&data[..text.start], &clean, &data[text.end..]].concat();
    let again = run(&edited, LIMITS).ok().and_then(|found| {
        let item = found.items.iter().find(|other| other.start == item.start)?;
        name_item(&edited, item, b"salt", &limits).ok().flatten()
    });
    let again = again.map(|again| (again.id, again.canonical));
    assert_eq!(again, Some((named.id, true)));
}

/// Edited bytes are what editing the parsed document gives.
pub fn splice(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let Ok(found) = run(data, LIMITS) else { return };
    let unedited = joined(data, Edits::default().apply(data, &found));
    assert_eq!(unedited, data);
    let Some(mut value) = parse(data).filter(|_| !repeats(&found)) else { return };
    let mut edits = Edits::default();
    for (bit, member) in found.members.iter().enumerate().take(6) {
        if choice >> bit & 1 == 1 {
            edits.remove(&member.name);
            value.remove(&member.name);
        }
    }
    if choice & 0x40 != 0 {
        edits.set("model", b"[1]");
        value.insert("model".into(), serde_json::json!([1]));
    }
    if choice & 0x80 != 0 {
        for (index, item) in found.items.iter().enumerate() {
            edits.set_uuid(index, (choice & 1 == 1).then_some("ab"));
            let Some(mut part) = parse(&data[item.start..item.end]) else { return };
            part.insert("uuid".into(), "ab".into());
            let own = joined(data, item_pieces(data, item, "ab", false));
            assert_eq!(parse(&own), Some(part));
        }
    }
    let edited = joined(data, edits.apply(data, &found));
    let parsed = parse(&edited);
    assert!(parsed.is_some(), "{}", String::from_utf8_lossy(&edited));
    if choice & 0x80 == 0 {
        assert_eq!(parsed, Some(value));
    }
}

/// A head that is taken ends at its first empty line and has one reading.
pub fn heads(data: &[u8]) {
    let ends = |size: usize| data[..size].ends_with(b"\r\n\r\n");
    if let Ok(Some(head)) = request(data, 4096) {
        assert!(ends(head.size) && head.size <= data.len());
        assert!(head.target.starts_with('/') || head.target == "*");
        assert!(!head.chunked || (head.content_length.is_none() && head.minor == 1));
        let _ = (head.request_id(), head.path(), head.get("host"));
        let again = request(&data[..head.size], 4096);
        assert!(matches!(again, Ok(Some(again)) if again.size == head.size));
    }
    if let Ok(Some(head)) = response(data, 4096) {
        assert!(ends(head.size) && head.size <= data.len());
        assert!(!head.chunked || head.content_length.is_none());
    }
}

/// The way bytes are split changes nothing.
pub fn framer(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let step = usize::from(choice >> 3) % 9 + 1;
    let (chunked, sse) = (choice & 1 == 1, choice & 2 == 2);
    let length = (choice & 4 == 4).then_some(u64::from(choice));
    let mut whole = Framer::new(length, chunked, sse);
    let mut split = Framer::new(length, chunked, sse);
    let one = whole.feed(data);
    let mut many = Ok(0);
    let mut last = 0;
    for piece in data.chunks(step) {
        many = split.feed(piece);
        let Ok(passed) = many else { break };
        assert!(passed >= last);
        last = passed;
    }
    assert_eq!(one.is_ok(), many.is_ok());
    if let (Ok(one), Ok(many)) = (one, many) {
        assert!(one <= data.len() as u64);
        assert_eq!((one, whole.done, whole.first_event()), (many, split.done, split.first_event()));
        assert_eq!(whole.error_event(), split.error_event());
        if !data.is_empty() {
            assert_eq!(whole.excess, split.excess);
        }
    }
    let mut decoder = Decoder::new(1 << 20);
    let mut pieces = Decoder::new(1 << 20);
    let one = decoder.feed(data).ok();
    let many: Option<Vec<_>> = data.chunks(step).map(|piece| pieces.feed(piece).ok()).collect();
    assert_eq!(one, many.map(|parts| parts.concat()));
}
