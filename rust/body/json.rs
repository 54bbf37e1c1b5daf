//! The JSON lexer: RFC 8259 with byte offsets, nothing built.

use crate::error::{BodyError, Code};

/// Position in a JSON text.
pub struct Lexer<'a> {
    /// The whole text.
    pub text: &'a [u8],
    /// Next byte.
    pub at: usize,
    depth: usize,
    max_depth: usize,
}

/// A string: the bytes between its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Str {
    /// First byte after the opening quote.
    pub start: usize,
    /// The closing quote.
    pub end: usize,
    /// It has backslash escapes.
    pub escaped: bool,
}

/// What a value starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

/// Result of a lexing step.
pub type Lexed<T> = Result<T, BodyError>;

impl<'a> Lexer<'a> {
    /// Start at the beginning of `text`.
    pub fn new(text: &'a [u8], max_depth: usize) -> Self {
        Self { text, at: 0, depth: 0, max_depth }
    }

    /// A syntax error here.
    pub fn error<T>(&self, message: &str) -> Lexed<T> {
        Err(BodyError {
            code: Code::InvalidJson,
            message: format!("{message} at byte {}", self.at),
            param: None,
            offset: self.at,
        })
    }

    /// Go to the next byte that is not white space and return it (0 at the end).
    pub fn peek(&mut self) -> u8 {
        while let Some(&byte) = self.text.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return byte;
            }
            self.at += 1;
        }
        0
    }

    /// What the next value is.
    pub fn kind(&mut self) -> Lexed<Kind> {
        Ok(match self.peek() {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' => Kind::True,
            b'f' => Kind::False,
            b'n' => Kind::Null,
            b'-' | b'0'..=b'9' => Kind::Number,
            _ if self.at >= self.text.len() => return self.error("unexpected end of JSON"),
            _ => return self.error("a JSON value is expected"),
        })
    }

    /// Enter an object or array; its opening bracket is next.
    pub fn open(&mut self) -> Lexed<()> {
        self.depth += 1;
        if self.depth > self.max_depth {
            return Err(BodyError {
                code: Code::InvalidValue,
                message: format!("the body is nested more than {} levels deep", self.max_depth),
                param: None,
                offset: self.at,
            });
        }
        self.at += 1;
        Ok(())
    }

    /// True when another element or member follows; `first` before any. Consumes the comma or closing bracket.
    pub fn more(&mut self, close: u8, first: bool) -> Lexed<bool> {
        let byte = self.peek();
        if byte == close {
            self.at += 1;
            self.depth -= 1;
            return Ok(false);
        }
        if first {
            return Ok(true);
        }
        if byte != b',' {
            return self.error(if self.at >= self.text.len() {
                "unexpected end of JSON"
            } else {
                "a comma is expected"
            });
        }
        self.at += 1;
        if self.peek() == close {
            return self.error("nothing follows the comma");
        }
        Ok(true)
    }

    /// A member name and its colon.
    pub fn key(&mut self) -> Lexed<Str> {
        if self.peek() != b'"' {
            return self.error("a member name is expected");
        }
        let key = self.string()?;
        if self.peek() != b':' {
            return self.error("a colon is expected");
        }
        self.at += 1;
        Ok(key)
    }

    /// A string; its opening quote is next.
    pub fn string(&mut self) -> Lexed<Str> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            let Some(found) = find_quote_or_escape(&self.text[self.at..]) else {
                self.at = self.text.len();
                return self.error("a string is not closed");
            };
            let run = &self.text[self.at..self.at + found];
            if let Some(bad) = first_bad(run) {
                self.at += bad;
                return self.error("a string has a control character or bytes that are not UTF-8");
            }
            self.at += found;
            if self.text[self.at] == b'"' {
                break;
            }
            escaped = true;
            self.escape()?;
        }
        self.at += 1;
        Ok(Str { start, end: self.at - 1, escaped })
    }

    fn escape(&mut self) -> Lexed<()> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u')
                if self.text.len() >= self.at + 6
                    && self.text[self.at + 2..self.at + 6].iter().all(u8::is_ascii_hexdigit) =>
            {
                self.at += 6;
            }
            _ => return self.error("an invalid escape"),
        }
        Ok(())
    }

    /// A number; returns its text.
    pub fn number(&mut self) -> Lexed<&'a [u8]> {
        let start = self.at;
        if self.byte() == b'-' {
            self.at += 1;
        }
        match self.byte() {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            _ => return self.error("an invalid number"),
        }
        if self.byte() == b'.' {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.byte(), b'+' | b'-') {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    fn byte(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn digits(&mut self) {
        while self.byte().is_ascii_digit() {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Lexed<()> {
        if !self.byte().is_ascii_digit() {
            return self.error("an invalid number");
        }
        self.digits();
        Ok(())
    }

    /// One of the three literal names.
    pub fn literal(&mut self, word: &[u8]) -> Lexed<()> {
        if !self.text[self.at..].starts_with(word) {
            return self.error("a JSON value is expected");
        }
        self.at += word.len();
        Ok(())
    }

    /// Validate any value without looking at it.
    pub fn skip(&mut self) -> Lexed<()> {
        match self.kind()? {
            Kind::String => self.string().map(drop),
            Kind::Number => self.number().map(drop),
            Kind::True => self.literal(b"true"),
            Kind::False => self.literal(b"false"),
            Kind::Null => self.literal(b"null"),
            Kind::Array => {
                self.open()?;
                let mut first = true;
                while self.more(b']', first)? {
                    first = false;
                    self.skip()?;
                }
                Ok(())
            }
            Kind::Object => {
                self.open()?;
                let mut first = true;
                while self.more(b'}', first)? {
                    first = false;
                    self.key()?;
                    self.skip()?;
                }
                Ok(())
            }
        }
    }
}

fn find_quote_or_escape(bytes: &[u8]) -> Option<usize> {
    // Most strings are short: a plain loop beats the set-up of the vector search.
    let near = bytes.len().min(24);
    if let Some(found) = bytes[..near].iter().position(|&byte| byte == b'"' || byte == b'\\') {
        return Some(found);
    }
    memchr::memchr2(b'"', b'\\', &bytes[near..]).map(|found| near + found)
}

/// Position of the first control character or invalid UTF-8, in blocks that the compiler vectorises.
fn first_bad(run: &[u8]) -> Option<usize> {
    let (mut low, mut high) = (0xff_u8, 0_u8);
    for block in run.chunks(256) {
        for &byte in block {
            low = low.min(byte);
            high |= byte;
        }
        if low < 0x20 {
            return run.iter().position(|&byte| byte < 0x20);
        }
    }
    if high < 0x80 {
        return None;
    }
    std::str::from_utf8(run).err().map(|error| error.valid_up_to())
}

/// The text of a string, escapes resolved; lone surrogates become U+FFFD.
pub fn unescape(text: &[u8], string: Str) -> String {
    let raw = &text[string.start..string.end];
    let valid = String::from_utf8_lossy(raw);
    if !string.escaped {
        return valid.into_owned();
    }
    let mut out = String::with_capacity(raw.len());
    let mut chars = valid.char_indices();
    while let Some((at, char)) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        let Some((_, kind)) = chars.next() else { break };
        match kind {
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'u' => {
                let first = hex4(&valid, at + 2);
                let pair = (0xd800..0xdc00).contains(&first) && valid[at + 6..].starts_with("\\u");
                let second = if pair { hex4(&valid, at + 8) } else { 0 };
                let (code, taken) = if (0xdc00..0xe000).contains(&second) {
                    (0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 10)
                } else {
                    (first, 4)
                };
                out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                for _ in 0..taken {
                    chars.next();
                }
            }
            other => out.push(other),
        }
    }
    out
}

fn hex4(text: &str, at: usize) -> u32 {
    text.get(at..at + 4).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
}
