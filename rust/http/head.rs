//! Message heads, parsed by httparse and then held to RFC 9112.
//!
//! A proxy that reads a head differently from the worker behind it can be made to see another request than the worker sees.
//! So whatever the RFC calls invalid or leaves to choice about framing is refused here.

use std::ops::Range;

use crate::error::{Code, HttpError};

const MAX_FIELDS: usize = 128;

/// Fields that mean something on one connection only, or that the router sets itself.
const HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
];
const REQUEST_ONLY: &[&str] = &[
    "host",
    "expect",
    "accept-encoding",
    "authorization",
    "x-api-key",
    "x-request-id",
    "x-correlation-id",
    "x-trace-id",
    "request-id",
];
const RESPONSE_ONLY: &[&str] = &["x-request-id"];

/// A parsed head. Names are lower case.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Head {
    pub method: String,
    pub target: String,
    pub status: u16,
    pub reason: String,
    pub minor: u8,
    pub size: usize,
    pub content_length: Option<u64>,
    pub chunked: bool,
    pub keep_alive: bool,
    /// The bytes that the fields are ranges of.
    text: Vec<u8>,
    fields: Vec<(Range<usize>, Range<usize>)>,
    /// Options of `Connection`: names of fields that are not passed on.
    named: Vec<String>,
    own: &'static [&'static str],
}

impl Head {
    /// First value of a field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields().find(|(field, _)| *field == name.as_bytes()).map(|(_, value)| value)
    }

    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(name, value)| (&self.text[name.clone()], &self.text[value.clone()]))
    }

    /// Lines of the fields to pass on.
    pub fn forward(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text.len() + 4 * self.fields.len());
        for (name, value) in self.fields() {
            // Servers of the CGI kind take `_` for `-`, so a length could come in under another name.
            let is = |word: &&str| {
                word.len() == name.len() && word.bytes().zip(name).all(|(a, &b)| a == b || (a == b'-' && b == b'_'))
            };
            if HOP.iter().any(is) || self.own.iter().any(is) || self.named.iter().any(|word| word.as_bytes() == name) {
                continue;
            }
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    /// Path of the target.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or("")
    }

    /// The client's id of the request, if it is harmless.
    pub fn request_id(&self) -> Option<&str> {
        ["x-request-id", "x-correlation-id", "x-trace-id", "request-id"].iter().find_map(|name| {
            let id = std::str::from_utf8(self.get(name)?).ok()?;
            let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
            ((1..=128).contains(&id.len()) && id.bytes().all(harmless)).then_some(id)
        })
    }
}

/// Parse a request head; None while it is incomplete.
pub fn request(buffer: &[u8], limit: usize) -> Result<Option<Head>, HttpError> {
    let Some(size) = end_of_head(buffer, limit)? else {
        return Ok(None);
    };
    let text = &buffer[..size];
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let lead = text.len() - trim_start(text).len();
    whole(parsed.parse(&text[lead..]).map_err(refuse)?, size - lead)?;
    let method = parsed.method.unwrap_or("");
    let mut head = Head {
        target: origin_form(parsed.path.unwrap_or(""), method)?,
        method: method.to_owned(),
        minor: parsed.version.unwrap_or(1),
        size,
        ..Head::default()
    };
    collect(&mut head, parsed.headers, REQUEST_ONLY)?;
    check_host(&head)?;
    Ok(Some(head))
}

fn check_host(head: &Head) -> Result<(), HttpError> {
    let mut hosts = head.fields().filter(|(name, _)| *name == b"host");
    match (hosts.next(), hosts.next()) {
        (Some((_, host)), None) if host.iter().all(in_host) => Ok(()),
        (None, None) if head.minor == 0 => Ok(()),
        _ => Err(HttpError::bad("there must be one valid Host field")),
    }
}

fn in_host(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%[]".contains(byte)
}

/// httparse must have read exactly what was cut out: it also ends lines at a bare LF.
fn whole(status: httparse::Status<usize>, size: usize) -> Result<(), HttpError> {
    match status {
        httparse::Status::Complete(read) if read == size => Ok(()),
        _ => Err(HttpError::bad("the head does not end at its empty line")),
    }
}

/// Parse a response head; None while it is incomplete.
pub fn response(buffer: &[u8], limit: usize) -> Result<Option<Head>, HttpError> {
    let Some(size) = end_of_head(buffer, limit)? else {
        return Ok(None);
    };
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let lead = size - trim_start(&buffer[..size]).len();
    whole(parsed.parse(&buffer[lead..size]).map_err(refuse)?, size - lead)?;
    let mut head = Head {
        status: parsed.code.unwrap_or(0),
        reason: parsed.reason.unwrap_or("").to_owned(),
        minor: parsed.version.unwrap_or(1),
        size,
        ..Head::default()
    };
    collect(&mut head, parsed.headers, RESPONSE_ONLY)?;
    Ok(Some(head))
}

/// Size of the head including its blank line, once that has come.
fn end_of_head(buffer: &[u8], limit: usize) -> Result<Option<usize>, HttpError> {
    let start = buffer.len() - trim_start(buffer).len();
    if start > 8 {
        return Err(HttpError::bad("empty lines before the head"));
    }
    match memchr::memmem::find(&buffer[start..], b"\r\n\r\n") {
        Some(found) if start + found + 4 <= limit => {
            no_bare_line_feed(&buffer[..start + found + 4])?;
            Ok(Some(start + found + 4))
        }
        None if buffer.len() <= limit => no_bare_line_feed(buffer).map(|()| None),
        _ => Err(HttpError { code: Code::HeaderTooLarge, message: format!("the head is longer than {limit} bytes") }),
    }
}

fn trim_start(buffer: &[u8]) -> &[u8] {
    let mut rest = buffer;
    while let Some(after) = rest.strip_prefix(b"\r\n") {
        rest = after;
    }
    rest
}

/// Servers do not agree on whether LF alone ends a line.
fn no_bare_line_feed(text: &[u8]) -> Result<(), HttpError> {
    match memchr::memchr_iter(b'\n', text).any(|at| at == 0 || text[at - 1] != b'\r') {
        true => Err(HttpError::bad("a line ends without carriage return")),
        false => Ok(()),
    }
}

fn refuse(error: httparse::Error) -> HttpError {
    match error {
        httparse::Error::Version => {
            HttpError { code: Code::HttpVersion, message: "only HTTP/1.0 and 1.1 are spoken".into() }
        }
        httparse::Error::TooManyHeaders => {
            HttpError { code: Code::HeaderTooLarge, message: format!("more than {MAX_FIELDS} header fields") }
        }
        other => HttpError::bad(format!("malformed head: {other}")),
    }
}

fn origin_form(target: &str, method: &str) -> Result<String, HttpError> {
    let bad = HttpError::bad("the request target is not a path");
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(bad);
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok(target.to_owned());
    }
    let scheme = ["http://", "https://"]
        .iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let Some(rest) = scheme.and_then(|scheme| target.get(scheme.len()..)) else { return Err(bad) };
    match rest.find(['/', '?']) {
        None if !rest.is_empty() => Ok("/".to_owned()),
        Some(at) if at > 0 && rest[at..].starts_with('/') => Ok(rest[at..].to_owned()),
        Some(at) if at > 0 => Ok(format!("/{}", &rest[at..])),
        _ => Err(bad),
    }
}

fn collect(head: &mut Head, fields: &[httparse::Header<'_>], own: &'static [&'static str]) -> Result<(), HttpError> {
    let mut close = false;
    let mut persist = false;
    head.own = own;
    head.fields.reserve_exact(fields.len());
    head.text.reserve_exact(fields.iter().map(|field| field.name.len() + field.value.len()).sum());
    for field in fields {
        let start = head.text.len();
        head.text.extend(field.name.bytes().map(|byte| byte.to_ascii_lowercase()));
        let middle = head.text.len();
        head.text.extend_from_slice(field.value);
        head.fields.push((start..middle, middle..head.text.len()));
        match &head.text[start..middle] {
            b"content-length" => {
                let length = length(field.value)?;
                if head.content_length.is_some_and(|before| before != length) {
                    return Err(HttpError::bad("two differing Content-Length fields"));
                }
                head.content_length = Some(length);
            }
            b"transfer-encoding" => {
                if head.chunked || !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(HttpError::bad("the only transfer coding taken is a single chunked"));
                }
                head.chunked = true;
            }
            b"connection" => {
                for option in String::from_utf8_lossy(field.value).to_ascii_lowercase().split(',') {
                    match option.trim() {
                        "close" => close = true,
                        "keep-alive" => persist = true,
                        other => head.named.push(other.to_owned()),
                    }
                }
            }
            _ => {}
        }
    }
    if head.chunked && head.content_length.is_some() {
        return Err(HttpError::bad("both Content-Length and Transfer-Encoding"));
    }
    if head.chunked && head.minor == 0 {
        return Err(HttpError::bad("HTTP/1.0 has no Transfer-Encoding"));
    }
    head.keep_alive = !close && (head.minor == 1 || persist);
    Ok(())
}

fn length(value: &[u8]) -> Result<u64, HttpError> {
    let digits = value.trim_ascii();
    let valid = !digits.is_empty() && digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).unwrap_or("");
    match (valid, text.parse()) {
        (true, Ok(length)) => Ok(length),
        _ => Err(HttpError::bad("Content-Length is not a number")),
    }
}
