//! Message heads, parsed by httparse and then held to RFC 9112.
//!
//! A proxy that reads a head differently from the worker behind it can be made to see another request than the worker sees.
//! So whatever the RFC calls invalid or leaves to choice about framing is refused here.

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
    pub fields: Vec<(String, Vec<u8>)>,
    pub forward: Vec<u8>,
}

impl Head {
    /// First value of a field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_slice())
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
    if !matches!(parsed.parse(&text[lead..]).map_err(refuse)?, httparse::Status::Complete(_)) {
        return Err(HttpError::bad("the head is incomplete"));
    }
    let mut head = Head {
        method: parsed.method.unwrap_or("").to_owned(),
        target: origin_form(parsed.path.unwrap_or(""))?,
        minor: parsed.version.unwrap_or(1),
        size,
        ..Head::default()
    };
    collect(&mut head, parsed.headers, REQUEST_ONLY)?;
    match head.fields.iter().filter(|(name, _)| name == "host").count() {
        1 => {}
        0 if head.minor == 0 => {}
        _ => return Err(HttpError::bad("there must be one Host field")),
    }
    if head.chunked && head.minor == 0 {
        return Err(HttpError::bad("HTTP/1.0 has no Transfer-Encoding"));
    }
    Ok(Some(head))
}

/// Parse a response head; None while it is incomplete.
pub fn response(buffer: &[u8], limit: usize) -> Result<Option<Head>, HttpError> {
    let Some(size) = end_of_head(buffer, limit)? else {
        return Ok(None);
    };
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    if !matches!(parsed.parse(&buffer[..size]).map_err(refuse)?, httparse::Status::Complete(_)) {
        return Err(HttpError::bad("the head is incomplete"));
    }
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
        Some(found) if start + found <= limit => Ok(Some(start + found + 4)),
        None if buffer.len() <= limit => match bare_line_feed(buffer) {
            true => Err(HttpError::bad("a line ends without carriage return")),
            false => Ok(None),
        },
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

fn bare_line_feed(text: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', text).any(|at| at == 0 || text[at - 1] != b'\r')
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

fn origin_form(target: &str) -> Result<String, HttpError> {
    if target.starts_with('/') || target == "*" {
        return Ok(target.to_owned());
    }
    let rest = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    match rest {
        Some(rest) => Ok(rest.find('/').map_or_else(|| "/".to_owned(), |at| rest[at..].to_owned())),
        None => Err(HttpError::bad("the request target is not a path")),
    }
}

fn collect(head: &mut Head, fields: &[httparse::Header<'_>], dropped: &[&str]) -> Result<(), HttpError> {
    let mut coding = false;
    let mut named: Vec<String> = Vec::new();
    let mut close = false;
    let mut persist = false;
    for field in fields {
        let name = field.name.to_ascii_lowercase();
        if field.value.iter().any(|&byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(HttpError::bad(format!("a line break in the value of {name}")));
        }
        match name.as_str() {
            "content-length" => {
                let length = length(field.value)?;
                if head.content_length.is_some_and(|before| before != length) {
                    return Err(HttpError::bad("two differing Content-Length fields"));
                }
                head.content_length = Some(length);
            }
            "transfer-encoding" => {
                if coding || !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(HttpError::bad("the only transfer coding taken is a single chunked"));
                }
                coding = true;
            }
            "connection" => {
                for option in String::from_utf8_lossy(field.value).to_ascii_lowercase().split(',') {
                    match option.trim() {
                        "close" => close = true,
                        "keep-alive" => persist = true,
                        other => named.push(other.to_owned()),
                    }
                }
            }
            _ => {}
        }
        head.fields.push((name, field.value.to_vec()));
    }
    if coding && head.content_length.is_some() {
        return Err(HttpError::bad("both Content-Length and Transfer-Encoding"));
    }
    head.chunked = coding;
    head.keep_alive = !close && (head.minor == 1 || persist);
    for (name, value) in &head.fields {
        let hop = HOP.contains(&name.as_str()) || dropped.contains(&name.as_str());
        if !hop && !named.contains(name) {
            head.forward.extend_from_slice(name.as_bytes());
            head.forward.extend_from_slice(b": ");
            head.forward.extend_from_slice(value);
            head.forward.extend_from_slice(b"\r\n");
        }
    }
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
