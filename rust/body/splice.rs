//! Byte edits of a scanned body. What is not edited stays as it came, large ranges without a copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::scan::{Item, Member, Scan};

/// Unchanged ranges from this size on are referred to, not copied.
pub const VIEW: usize = 32 << 10;

/// A run of the edited body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// New or copied bytes.
    Owned(Vec<u8>),
    /// A range of the original.
    Kept(Range<usize>),
    /// The text that stands in for the URL of this media part. The caller has it.
    Url(usize),
}

/// What to do with a top-level member.
#[derive(Clone, Debug)]
enum Change {
    Set(Vec<u8>),
    Remove,
}

/// Edits, gathered and then applied at once.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    top: BTreeMap<String, Change>,
    uuids: BTreeMap<usize, Option<String>>,
    items: BTreeMap<usize, Vec<u8>>,
    urls: BTreeSet<usize>,
}

/// Replace a range.
#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    with: With,
}

#[derive(Debug)]
enum With {
    Bytes(Vec<u8>),
    Url(usize),
}

impl Edit {
    fn new(range: Range<usize>, with: Vec<u8>) -> Self {
        Edit { range, with: With::Bytes(with) }
    }
}

impl Edits {
    /// Give a top-level member a value.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.top.insert(name.to_owned(), Change::Set(value.to_vec()));
    }

    /// Remove a top-level member.
    pub fn remove(&mut self, name: &str) {
        self.top.insert(name.to_owned(), Change::Remove);
    }

    /// Set or remove the uuid of a media part.
    pub fn set_uuid(&mut self, index: usize, uuid: Option<&str>) {
        self.uuids.insert(index, uuid.map(str::to_owned));
    }

    /// Replace a media part.
    pub fn set_item(&mut self, index: usize, part: &[u8]) {
        self.items.insert(index, part.to_vec());
    }

    /// Replace the URL (or bare base64) of a media part by a text that the caller keeps.
    pub fn set_url(&mut self, index: usize) {
        self.urls.insert(index);
    }

    /// The edited body.
    pub fn apply(&self, body: &[u8], scan: &Scan) -> Vec<Piece> {
        let mut edits = self.top_edits(scan);
        for (&index, part) in &self.items {
            if let Some(item) = scan.items.get(index) {
                edits.push(Edit::new(item.start..item.end, part.clone()));
            }
        }
        for (index, uuid) in &self.uuids {
            if let (Some(item), false) = (scan.items.get(*index), self.items.contains_key(index)) {
                edits.extend(uuid_edit(item, uuid.as_deref()));
            }
        }
        let urls = self.urls.iter().filter(|index| !self.items.contains_key(index));
        edits.extend(urls.filter_map(|&index| url_edit(scan.items.get(index)?, index)));
        join(body, edits, 0..body.len())
    }

    fn top_edits(&self, scan: &Scan) -> Vec<Edit> {
        let mut edits = Vec::new();
        let mut removed = vec![false; scan.members.len()];
        let mut inserted = Vec::new();
        for (name, change) in &self.top {
            let mut found = false;
            // Of a repeated member parsers take the last one.
            for (index, member) in scan.members.iter().enumerate().rev().filter(|(_, member)| member.name == *name) {
                match change {
                    Change::Set(value) if !found => {
                        edits.push(Edit::new(member.value..member.end, value.clone()));
                    }
                    _ => removed[index] = true,
                }
                found = true;
            }
            if let (Change::Set(value), false) = (change, found) {
                if !inserted.is_empty() {
                    inserted.push(b',');
                }
                push_name(&mut inserted, name);
                inserted.extend_from_slice(value);
            }
        }
        edits.extend(removals(&scan.members, &removed));
        if !inserted.is_empty() {
            if removed.iter().any(|&gone| !gone) {
                inserted.push(b',');
            }
            edits.push(Edit::new(scan.start + 1..scan.start + 1, inserted));
        }
        edits
    }
}

/// One media part with its uuid set, and with `url` another URL, which is its `Piece::Url(0)`.
pub fn item_pieces(body: &[u8], item: &Item, uuid: &str, url: bool) -> Vec<Piece> {
    let edits = uuid_edit(item, Some(uuid)).into_iter().chain(url.then(|| url_edit(item, 0)).flatten());
    join(body, edits.collect(), item.start..item.end)
}

fn url_edit(item: &Item, index: usize) -> Option<Edit> {
    let text = item.text?;
    Some(Edit { range: text.start..text.end, with: With::Url(index) })
}

fn push_name(out: &mut Vec<u8>, name: &str) {
    push_quoted(out, name);
    out.push(b':');
}

fn push_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

fn uuid_edit(item: &Item, uuid: Option<&str>) -> Option<Edit> {
    let quoted = uuid.map(|uuid| {
        let mut out = Vec::new();
        push_quoted(&mut out, uuid);
        String::from_utf8_lossy(&out).into_owned()
    });
    match (item.uuid, quoted) {
        (Some(index), Some(quoted)) => {
            let member = item.members.get(index)?;
            Some(Edit::new(member.value..member.end, quoted.into_bytes()))
        }
        (Some(index), None) => {
            let mut removed = vec![false; item.members.len()];
            *removed.get_mut(index)? = true;
            removals(&item.members, &removed).pop()
        }
        (None, Some(quoted)) => {
            let comma = if item.members.is_empty() { "" } else { "," };
            Some(Edit::new(item.start + 1..item.start + 1, format!("\"uuid\":{quoted}{comma}").into_bytes()))
        }
        (None, None) => None,
    }
}

/// Each run of removed members goes with the comma after it, the last run with the comma before it.
fn removals(members: &[Member], removed: &[bool]) -> Vec<Edit> {
    let mut edits = Vec::new();
    let mut index = 0;
    while index < members.len() {
        if !removed[index] {
            index += 1;
            continue;
        }
        let first = index;
        while index < members.len() && removed[index] {
            index += 1;
        }
        let before = first.checked_sub(1).and_then(|before| members.get(before));
        let range = match (members.get(index), before) {
            (Some(next), _) => members[first].start..next.start,
            (None, Some(before)) => before.end..members[index - 1].end,
            (None, None) => members[first].start..members[index - 1].end,
        };
        edits.push(Edit::new(range, Vec::new()));
    }
    edits
}

/// The range of the body with the edits made. An edit inside a replaced range is dropped.
fn join(body: &[u8], mut edits: Vec<Edit>, range: Range<usize>) -> Vec<Piece> {
    edits.sort_by_key(|edit| (edit.range.start, !edit.range.is_empty(), usize::MAX - edit.range.end));
    let mut pieces = Vec::new();
    let mut copied = Vec::new();
    let mut at = range.start;
    for edit in edits {
        if edit.range.start < at {
            continue;
        }
        keep(body, at..edit.range.start, &mut copied, &mut pieces);
        match edit.with {
            With::Bytes(bytes) => copied.extend_from_slice(&bytes),
            With::Url(index) => {
                if !copied.is_empty() {
                    pieces.push(Piece::Owned(std::mem::take(&mut copied)));
                }
                pieces.push(Piece::Url(index));
            }
        }
        at = edit.range.end;
    }
    keep(body, at..range.end, &mut copied, &mut pieces);
    if !copied.is_empty() {
        pieces.push(Piece::Owned(copied));
    }
    pieces
}

fn keep(body: &[u8], range: Range<usize>, copied: &mut Vec<u8>, pieces: &mut Vec<Piece>) {
    if range.len() < VIEW {
        copied.extend_from_slice(&body[range]);
        return;
    }
    if !copied.is_empty() {
        pieces.push(Piece::Owned(std::mem::take(copied)));
    }
    pieces.push(Piece::Kept(range));
}
