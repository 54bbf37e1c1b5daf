//! Where a response body ends and, for an event stream, where another event may be put in.
//!
//! A cut is a chunk boundary at which an event has just ended. Passing on only up to the last cut costs nothing while
//! workers send whole events, as they do, and lets the router add an error event of its own to a stream that breaks.

use super::chunked::{Chunked, Step};
use crate::error::HttpError;

const MAX_HELD: u64 = 1 << 20;
const MAX_EVENT: usize = 1 << 20; // bytes of an event that are looked at

/// Follows one body.
#[derive(Debug)]
pub struct Framer {
    chunked: Option<Chunked>,
    remaining: Option<u64>,
    events: Option<Events>,
    fed: u64,
    allowed: u64,
    /// The body is complete.
    pub done: bool,
    /// Bytes fed beyond its end.
    pub excess: u64,
}

impl Framer {
    /// A body of this framing; `sse` for an event stream.
    pub fn new(content_length: Option<u64>, chunked: bool, sse: bool) -> Self {
        Self {
            chunked: chunked.then(Chunked::default),
            remaining: if chunked { None } else { content_length },
            events: sse.then(Events::default),
            fed: 0,
            allowed: 0,
            done: !chunked && content_length == Some(0),
            excess: 0,
        }
    }

    /// Take bytes; how many of all fed so far may be passed on.
    pub fn feed(&mut self, data: &[u8]) -> Result<u64, HttpError> {
        if self.done {
            self.excess += data.len() as u64;
            return Ok(self.allowed);
        }
        let start = self.fed;
        let used = match &mut self.chunked {
            Some(chunked) => {
                let mut at = 0;
                loop {
                    match chunked.step(data, &mut at)? {
                        Step::Data(range) => {
                            if let Some(events) = &mut self.events {
                                events.feed(&data[range]);
                            }
                        }
                        Step::Boundary => {
                            // A stream may run for hours: the bound on extensions is for each chunk here.
                            chunked.overhead = 0;
                            if self.events.as_ref().is_some_and(Events::between) {
                                self.allowed = start + at as u64;
                            }
                        }
                        Step::Need => break,
                        Step::End => {
                            self.done = true;
                            break;
                        }
                    }
                }
                at
            }
            None => {
                let used = self
                    .remaining
                    .map_or(data.len(), |left| usize::try_from(left).unwrap_or(usize::MAX).min(data.len()));
                if let Some(left) = &mut self.remaining {
                    *left -= used as u64;
                    self.done = *left == 0;
                }
                if let Some(events) = &mut self.events {
                    if let Some(cut) = events.feed(&data[..used]) {
                        self.allowed = start + cut as u64;
                    }
                }
                used
            }
        };
        self.fed += used as u64;
        self.excess = (data.len() - used) as u64;
        if self.events.is_none() || self.done || self.fed - self.allowed > MAX_HELD {
            self.allowed = self.fed;
        }
        Ok(self.allowed)
    }

    /// Data of the first event.
    pub fn first_event(&self) -> Option<&[u8]> {
        self.events.as_ref()?.first.as_deref()
    }

    /// Data of the first event that is an error.
    pub fn error_event(&self) -> Option<&[u8]> {
        self.events.as_ref()?.error.as_deref()
    }
}

/// Splits an event stream into events; keeps the first and the first that is an error.
#[derive(Debug)]
struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    line_empty: bool,
    after_cr: bool,
    between: bool,
    first: Option<Vec<u8>>,
    error: Option<Vec<u8>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            line_empty: true,
            after_cr: false,
            between: true,
            first: None,
            error: None,
        }
    }
}

impl Events {
    /// No event is under way.
    fn between(&self) -> bool {
        self.between
    }

    /// Take payload; one past the last end of an event in it, if any.
    fn feed(&mut self, payload: &[u8]) -> Option<usize> {
        let mut cut = None;
        let mut at = 0;
        while at < payload.len() {
            if std::mem::take(&mut self.after_cr) && payload[at] == b'\n' {
                at += 1;
                if self.between {
                    cut = Some(at);
                }
                continue;
            }
            let Some(found) = memchr::memchr2(b'\n', b'\r', &payload[at..]) else {
                self.text(&payload[at..]);
                break;
            };
            self.text(&payload[at..at + found]);
            at += found + 1;
            self.after_cr = payload[at - 1] == b'\r';
            if self.line_empty {
                self.end_event();
                cut = Some(at);
            } else {
                self.end_line();
            }
        }
        cut
    }

    fn text(&mut self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        self.line_empty = false;
        self.between = false;
        let room = MAX_EVENT.saturating_sub(self.line.len());
        self.line.extend_from_slice(&text[..text.len().min(room)]);
    }

    fn end_line(&mut self) {
        let value = if self.line == b"data" { Some(&b""[..]) } else { self.line.strip_prefix(b"data:") };
        if let Some(value) = value {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            let value = value.strip_prefix(b" ").unwrap_or(value);
            let room = MAX_EVENT.saturating_sub(self.data.len());
            self.data.extend_from_slice(&value[..value.len().min(room)]);
        }
        self.line.clear();
        self.line_empty = true;
    }

    fn end_event(&mut self) {
        self.between = true;
        if std::mem::take(&mut self.has_data) {
            if self.error.is_none() && is_error(&self.data) {
                self.error = Some(self.data.clone());
            }
            if self.first.is_none() {
                self.first = Some(self.data.clone());
            }
        }
        self.data.clear();
    }
}

/// The object starts with an `error` member.
fn is_error(data: &[u8]) -> bool {
    let rest = data.trim_ascii_start();
    rest.strip_prefix(b"{").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\"error\""))
}
