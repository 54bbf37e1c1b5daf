//! One pass over a request body: model, stream, limits, media parts and where everything stands.
//!
//! Any object below `messages`, `input` or `content_parts` that has a media member is a media part, whatever its `type`
//! says: the engines differ in what they accept, and a part that is not seen here would reach one unchecked. A member that
//! the router reads must not be repeated, because parsers differ in which of the two they take.

use super::json::{unescape, Kind, Lexed, Lexer, Str};
use crate::error::{BodyError, Code};

/// Limits of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deepest nesting.
    pub depth: usize,
    /// Most media parts.
    pub items: usize,
}

/// A member of an object, enough to edit it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Name, escapes resolved.
    pub name: String,
    /// Opening quote of the name.
    pub start: usize,
    /// First byte of the value.
    pub value: usize,
    /// One past the value.
    pub end: usize,
}

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Modality {
    Image,
    Audio,
    Video,
    Prompt,
}

/// Where its media come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A data URL or inline base64.
    Data,
    /// An http(s) URL.
    Http,
    /// Another scheme.
    Other,
    /// Nothing: null, empty or absent.
    None,
    /// Precomputed embeddings.
    Embeds,
}

/// One media part.
#[derive(Clone, Debug)]
pub struct Item {
    /// Kind of media.
    pub modality: Modality,
    /// Where they come from.
    pub source: Source,
    /// The object, braces included.
    pub start: usize,
    /// One past the object.
    pub end: usize,
    /// The string with the URL or base64, if any.
    pub text: Option<Str>,
    /// The string is bare base64, not a URL.
    pub bare: bool,
    /// Members of the object.
    pub members: Vec<Member>,
    /// Index of `uuid` among them.
    pub uuid: Option<usize>,
    /// Where it stands: `messages[0].content[1]`.
    pub param: String,
}

/// What a scan found.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Scan {
    pub model: Option<String>,
    pub stream: bool,
    pub max_tokens: Option<u64>,
    pub n: u64,
    pub items: Vec<Item>,
    pub text_bytes: usize,
    pub members: Vec<Member>,
    /// The opening brace of the body.
    pub start: usize,
    /// Length of the scanned body.
    pub length: usize,
}

/// Members read or written by the router at the top level; not to be repeated.
const TOP: &[&str] = &[
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "min_tokens",
    "stream_options",
    "messages",
    "prompt",
    "input",
    "content_parts",
    "ec_transfer_params",
    "kv_transfer_params",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "best_of",
    "use_beam_search",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "cache_salt",
    "vllm_xargs",
    "sampling_params",
    "prompt_embeds",
];

/// Members read in media parts and around them; not to be repeated.
const PART: &[&str] = &[
    "type",
    "uuid",
    "content",
    "source",
    "url",
    "data",
    "image_url",
    "image_embeds",
    "image_pil",
    "audio_url",
    "input_audio",
    "audio_embeds",
    "video_url",
    "video_embeds",
    "prompt_embeds",
    "output",
];

enum Step {
    Key(String),
    Index(usize),
}

struct Scanner<'a> {
    lexer: Lexer<'a>,
    limits: Limits,
    path: Vec<Step>,
    scan: Scan,
}

/// Scan a body.
pub fn scan(text: &[u8], limits: Limits) -> Result<Scan, BodyError> {
    let scan = Scan { n: 1, length: text.len(), ..Scan::default() };
    let mut scanner = Scanner { lexer: Lexer::new(text, limits.depth), limits, path: Vec::new(), scan };
    scanner.top()?;
    scanner.lexer.peek();
    if scanner.lexer.at < text.len() {
        return scanner.lexer.error("something follows the JSON object");
    }
    Ok(scanner.scan)
}

impl Scanner<'_> {
    fn top(&mut self) -> Lexed<()> {
        if self.lexer.kind()? != Kind::Object {
            return self.lexer.error("the body must be a JSON object");
        }
        self.scan.start = self.lexer.at;
        self.lexer.open()?;
        let mut seen = 0;
        let mut limit_rank = 0;
        while self.lexer.more(b'}', self.scan.members.is_empty())? {
            let (name, start, value) = self.name(TOP, &mut seen)?;
            match name.as_str() {
                "model" => self.scan.model = self.text_value(&name)?,
                "stream" => self.scan.stream = self.bool_value(&name)?,
                "n" => self.scan.n = self.integer_value(&name)?.filter(|&n| n > 0).unwrap_or(1),
                "max_completion_tokens" | "max_tokens" | "max_output_tokens" => {
                    let rank = match name.as_str() {
                        "max_completion_tokens" => 3,
                        "max_tokens" => 2,
                        _ => 1,
                    };
                    let found = self.integer_value(&name)?;
                    if found.is_some() && rank > limit_rank {
                        limit_rank = rank;
                        self.scan.max_tokens = found;
                    }
                }
                "messages" | "input" | "content_parts" | "prompt" => {
                    self.path.push(Step::Key(name.clone()));
                    self.tree(name != "prompt")?;
                    self.path.pop();
                }
                _ => self.lexer.skip()?,
            }
            self.scan.members.push(Member { name, start, value, end: self.lexer.at });
        }
        Ok(())
    }

    /// A member's name, start and start of value; refuses the second of a watched name.
    fn name(&mut self, watched: &[&str], seen: &mut u64) -> Lexed<(String, usize, usize)> {
        self.lexer.peek();
        let start = self.lexer.at;
        let key = self.lexer.key()?;
        let name = unescape(self.lexer.text, key);
        self.lexer.peek();
        if let Some(bit) = watched.iter().position(|&word| word == name) {
            if *seen & (1 << bit) != 0 {
                let param = self.param(Some(&name));
                return self.invalid(format!("{param} is given twice"), param, start);
            }
            *seen |= 1 << bit;
        }
        Ok((name, start, self.lexer.at))
    }

    fn invalid<T>(&self, message: String, param: String, offset: usize) -> Lexed<T> {
        Err(BodyError { code: Code::InvalidValue, message, param: Some(param), offset })
    }

    fn param(&self, last: Option<&str>) -> String {
        let mut out = String::new();
        for step in &self.path {
            match step {
                Step::Key(name) if out.is_empty() => out.push_str(name),
                Step::Key(name) => {
                    out.push('.');
                    out.push_str(name);
                }
                Step::Index(index) => out.push_str(&format!("[{index}]")),
            }
        }
        match last {
            Some(name) if out.is_empty() => name.to_owned(),
            Some(name) => out + "." + name,
            None => out,
        }
    }

    fn text_value(&mut self, name: &str) -> Lexed<Option<String>> {
        match self.lexer.kind()? {
            Kind::String => {
                let string = self.lexer.string()?;
                Ok(Some(unescape(self.lexer.text, string)))
            }
            Kind::Null => self.lexer.literal(b"null").map(|()| None),
            _ => self.invalid(format!("{name} must be a string"), name.to_owned(), self.lexer.at),
        }
    }

    fn bool_value(&mut self, name: &str) -> Lexed<bool> {
        match self.lexer.kind()? {
            Kind::True => self.lexer.literal(b"true").map(|()| true),
            Kind::False => self.lexer.literal(b"false").map(|()| false),
            Kind::Null => self.lexer.literal(b"null").map(|()| false),
            _ => self.invalid(format!("{name} must be true or false"), name.to_owned(), self.lexer.at),
        }
    }

    /// A whole number; None for null and for numbers that engines refuse themselves.
    fn integer_value(&mut self, name: &str) -> Lexed<Option<u64>> {
        match self.lexer.kind()? {
            Kind::Number => {
                let text = std::str::from_utf8(self.lexer.number()?).unwrap_or("");
                Ok(text.parse().ok().or_else(|| {
                    let float: f64 = text.parse().ok()?;
                    (float.fract() == 0.0 && (0.0..9e15).contains(&float)).then_some(float as u64)
                }))
            }
            Kind::Null => self.lexer.literal(b"null").map(|()| None),
            _ => self.invalid(format!("{name} must be a number"), name.to_owned(), self.lexer.at),
        }
    }

    /// A value below messages, input or prompt: count text, find media parts.
    fn tree(&mut self, media: bool) -> Lexed<()> {
        match self.lexer.kind()? {
            Kind::String => {
                let string = self.lexer.string()?;
                self.scan.text_bytes += string.end - string.start;
                Ok(())
            }
            Kind::Array => {
                self.lexer.open()?;
                let mut index = 0;
                while self.lexer.more(b']', index == 0)? {
                    self.path.push(Step::Index(index));
                    self.tree(media)?;
                    self.path.pop();
                    index += 1;
                }
                Ok(())
            }
            Kind::Object if media => self.object(),
            _ => self.lexer.skip(),
        }
    }

    fn object(&mut self) -> Lexed<()> {
        let mut part = Part { start: self.lexer.at, ..Part::default() };
        let place = self.scan.items.len();
        self.lexer.open()?;
        let mut seen = 0;
        while self.lexer.more(b'}', part.members.is_empty())? {
            let (name, start, value) = self.name(PART, &mut seen)?;
            self.member(&name, &mut part)?;
            part.members.push(Member { name, start, value, end: self.lexer.at });
        }
        let end = self.lexer.at;
        if part.modality.is_some() && part.text.0.is_some() && part.source.0.is_some() {
            let param = self.param(None);
            return self.invalid(format!("{param} holds more than one medium"), param, part.start);
        }
        let Some(item) = part.finish(self.lexer.text, end, || self.param(None)) else { return Ok(()) };
        if self.scan.items.len() >= self.limits.items {
            let message = format!("more than {} media parts", self.limits.items);
            return self.invalid(message, item.param, item.start);
        }
        // An outer part stands before the parts inside it.
        self.scan.items.insert(place, item);
        Ok(())
    }

    fn member(&mut self, name: &str, part: &mut Part) -> Lexed<()> {
        match name {
            "type" if self.lexer.kind()? == Kind::String => {
                let string = self.lexer.string()?;
                part.kind = unescape(self.lexer.text, string);
                Ok(())
            }
            "uuid" => {
                part.uuid = Some(part.members.len());
                self.lexer.skip()
            }
            "image_url" | "image_pil" => self.media(name, part, Modality::Image),
            "audio_url" | "input_audio" => self.media(name, part, Modality::Audio),
            "video_url" => self.media(name, part, Modality::Video),
            "source" => {
                part.has_source = true;
                part.source = self.reference(name)?;
                Ok(())
            }
            "image_embeds" => self.embeds(part, Modality::Image),
            "audio_embeds" => self.embeds(part, Modality::Audio),
            "video_embeds" => self.embeds(part, Modality::Video),
            "prompt_embeds" => self.embeds(part, Modality::Prompt),
            _ => {
                self.path.push(Step::Key(name.to_owned()));
                self.tree(true)?;
                self.path.pop();
                Ok(())
            }
        }
    }

    fn embeds(&mut self, part: &mut Part, modality: Modality) -> Lexed<()> {
        part.modality = Some(modality);
        part.embeds = true;
        self.lexer.skip()
    }

    fn media(&mut self, name: &str, part: &mut Part, modality: Modality) -> Lexed<()> {
        let found = self.reference(name)?;
        if part.text.0.is_some() && found.0.is_some() {
            let param = self.param(None);
            return self.invalid(format!("{param} holds more than one medium"), param, self.lexer.at);
        }
        part.modality = part.modality.or(Some(modality));
        if found.0.is_some() {
            part.text = found;
        }
        Ok(())
    }

    /// A URL string, or an object with `url` or `data` (then bare base64). Anything else but null is refused: some
    /// engine might find a URL in it that was not seen here.
    fn reference(&mut self, name: &str) -> Lexed<(Option<Str>, bool)> {
        match self.lexer.kind()? {
            Kind::String => return Ok((Some(self.lexer.string()?), false)),
            Kind::Null => return self.lexer.skip().map(|()| (None, false)),
            Kind::Object => {}
            _ => return self.no_reference(name),
        }
        self.lexer.open()?;
        let (mut found, mut bare, mut first, mut seen) = (None, false, true, 0);
        while self.lexer.more(b'}', first)? {
            first = false;
            let (name, _, _) = self.name(PART, &mut seen)?;
            match (name.as_str(), self.lexer.kind()?) {
                ("url" | "data", Kind::String) => {}
                ("url" | "data", Kind::Null) => {
                    self.lexer.skip()?;
                    continue;
                }
                ("url" | "data", _) => return self.no_reference(&name),
                // A document may hold parts of its own.
                ("content", _) => {
                    self.path.push(Step::Key("source.content".to_owned()));
                    self.tree(true)?;
                    self.path.pop();
                    continue;
                }
                _ => {
                    self.lexer.skip()?;
                    continue;
                }
            }
            let string = self.lexer.string()?;
            if found.is_some() {
                let param = self.param(None);
                return self.invalid(format!("{param} has both url and data"), param, self.lexer.at);
            }
            bare = name == "data";
            found = Some(string);
        }
        Ok((found, bare))
    }

    fn no_reference<T>(&self, name: &str) -> Lexed<T> {
        let param = self.param(Some(name));
        self.invalid(format!("{param} must be a string"), param, self.lexer.at)
    }
}

#[derive(Default)]
struct Part {
    start: usize,
    kind: String,
    modality: Option<Modality>,
    embeds: bool,
    text: (Option<Str>, bool),
    source: (Option<Str>, bool),
    has_source: bool,
    uuid: Option<usize>,
    members: Vec<Member>,
}

impl Part {
    /// The item that the object is, if it is one.
    fn finish(self, body: &[u8], end: usize, param: impl FnOnce() -> String) -> Option<Item> {
        let by_type = match self.kind.as_str() {
            "image" | "image_url" | "input_image" | "image_pil" | "image_embeds" => Some(Modality::Image),
            "audio" | "audio_url" | "input_audio" | "audio_embeds" => Some(Modality::Audio),
            "video" | "video_url" | "input_video" | "video_embeds" => Some(Modality::Video),
            "prompt_embeds" => Some(Modality::Prompt),
            // A part without a type may still be taken for the picture that its source is.
            "" if self.has_source && self.source.0.is_some() => Some(Modality::Image),
            _ => None,
        };
        let modality = self.modality.or(by_type)?;
        let (text, bare) = if self.text.0.is_none() { self.source } else { self.text };
        let embeds = self.embeds || self.kind.ends_with("_embeds");
        let source = if embeds { Source::Embeds } else { source_of(body, text, bare) };
        let (start, members, uuid) = (self.start, self.members, self.uuid);
        Some(Item { modality, source, start, end, text, bare, members, uuid, param: param() })
    }
}

fn source_of(body: &[u8], string: Option<Str>, bare: bool) -> Source {
    let Some(string) = string else { return Source::None };
    if bare {
        return if string.start == string.end { Source::None } else { Source::Data };
    }
    let start = blank(&body[string.start..string.end]) + string.start;
    if start == string.end {
        return Source::None;
    }
    let head = unescape(body, Str { start, end: string.end.min(start + 64), ..string }).to_ascii_lowercase();
    match head.split(':').next().unwrap_or("") {
        "data" => Source::Data,
        "http" | "https" => Source::Http,
        _ => Source::Other,
    }
}

/// Length of the spaces and control characters, escaped or not, that URL parsers ignore before a URL.
fn blank(raw: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += match (&raw[at..], raw.get(at + 1)) {
            ([b' ', ..], _) => 1,
            ([b'\\', ..], Some(b'b' | b'f' | b'n' | b'r' | b't')) => 2,
            ([b'\\', b'u', b'0', b'0', b'0' | b'1', _, ..], _) => 6,
            ([b'\\', b'u', b'0', b'0', b'2', b'0', ..], _) => 6,
            _ => return at,
        };
    }
}
