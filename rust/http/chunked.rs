//! The chunked coding as a state machine over pieces of any size.

use std::ops::Range;

use crate::error::{Code, HttpError};

const MAX_OVERHEAD: usize = 16 << 10; // bytes of extensions and trailers

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size { digits: u8 },
    SizeSpace,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// Position in a chunked body.
#[derive(Debug)]
pub struct Chunked {
    state: State,
    remaining: u64,
    /// Bytes of extensions and trailers so far.
    pub(super) overhead: usize,
}

/// What one step found.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Payload, a range of the fed bytes.
    Data(Range<usize>),
    /// A whole chunk has ended here.
    Boundary,
    /// More bytes are needed.
    Need,
    /// The body has ended.
    End,
}

impl Default for Chunked {
    fn default() -> Self {
        Self { state: State::Size { digits: 0 }, remaining: 0, overhead: 0 }
    }
}

impl Chunked {
    /// The body is complete.
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Go on from `at`, to the next thing worth telling.
    pub fn step(&mut self, data: &[u8], at: &mut usize) -> Result<Step, HttpError> {
        while self.state != State::Done {
            if self.state == State::Data {
                let size = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(data.len() - *at);
                if size == 0 {
                    return Ok(Step::Need);
                }
                self.remaining -= size as u64;
                *at += size;
                if self.remaining == 0 {
                    self.state = State::DataCr;
                }
                return Ok(Step::Data(*at - size..*at));
            }
            let Some(&byte) = data.get(*at) else {
                return Ok(Step::Need);
            };
            *at += 1;
            if self.advance(byte)? {
                return Ok(Step::Boundary);
            }
        }
        Ok(Step::End)
    }

    /// Take one byte of framing; true when it ends a chunk.
    fn advance(&mut self, byte: u8) -> Result<bool, HttpError> {
        self.overhead += usize::from(matches!(
            self.state,
            State::SizeSpace | State::Extension | State::TrailerStart | State::Trailer
        ));
        if self.overhead > MAX_OVERHEAD {
            return Err(HttpError {
                code: Code::HeaderTooLarge,
                message: "chunk extensions or trailers too long".into(),
            });
        }
        self.state = match (self.state, byte) {
            (State::Size { digits }, _) if byte.is_ascii_hexdigit() && digits < 15 => {
                let value = u64::from((byte as char).to_digit(16).unwrap_or(0));
                self.remaining = self.remaining << 4 | value;
                State::Size { digits: digits + 1 }
            }
            (State::Size { digits: 1.. }, b'\r') => State::SizeLf,
            (State::Size { digits: 1.. } | State::SizeSpace, b';') => State::Extension,
            // White space may only stand before an extension.
            (State::Size { digits: 1.. } | State::SizeSpace, b' ' | b'\t') => State::SizeSpace,
            (State::Extension, b'\r') => State::SizeLf,
            (State::Extension, b'\n') => return Err(HttpError::bad("a chunk size line ends without carriage return")),
            (State::Extension, _) if text(byte) => State::Extension,
            (State::SizeLf, b'\n') if self.remaining == 0 => State::TrailerStart,
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => {
                self.state = State::Size { digits: 0 };
                return Ok(true);
            }
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::TrailerStart | State::Trailer, b'\n') => {
                return Err(HttpError::bad("a trailer ends without carriage return"))
            }
            (State::Trailer, b'\r') => State::TrailerLf,
            (State::TrailerStart, b' ' | b'\t' | b':') => return Err(HttpError::bad("a trailer without a name")),
            (State::TrailerStart | State::Trailer, _) if text(byte) => State::Trailer,
            (State::TrailerLf, b'\n') => State::TrailerStart,
            (State::EndLf, b'\n') => State::Done,
            _ => return Err(HttpError::bad("broken chunk framing")),
        };
        Ok(false)
    }
}

fn text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Takes the payload out of a chunked body.
#[derive(Debug)]
pub struct Decoder {
    chunked: Chunked,
    limit: u64,
    size: u64,
    /// Bytes of the last fed data beyond the end.
    pub excess: usize,
}

impl Decoder {
    /// At most `limit` bytes of payload.
    pub fn new(limit: u64) -> Self {
        Self { chunked: Chunked::default(), limit, size: 0, excess: 0 }
    }

    /// The body is complete.
    pub fn done(&self) -> bool {
        self.chunked.done()
    }

    /// Payload of `data`.
    pub fn feed(&mut self, data: &[u8]) -> Result<Vec<u8>, HttpError> {
        let mut out = Vec::with_capacity(data.len());
        let mut at = 0;
        loop {
            match self.chunked.step(data, &mut at)? {
                Step::Data(range) => {
                    self.size += range.len() as u64;
                    if self.size > self.limit {
                        let message = format!("the body has more than {} bytes", self.limit);
                        return Err(HttpError { code: Code::PayloadTooLarge, message });
                    }
                    out.extend_from_slice(&data[range]);
                }
                Step::Boundary => {}
                Step::Need => return Ok(out),
                Step::End => {
                    self.excess = data.len() - at;
                    return Ok(out);
                }
            }
        }
    }
}
