//! The one home of every error code: its HTTP status, OpenAI `type` and the hint printed beside it.
//!
//! Python reads the table through `error_table`, so that both languages and the docs agree on it.

use std::fmt;

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $kind:literal $hint:literal;)*) => {
        /// Every error the router can answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $hint] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// Stable name, as in the `code` member of an error answer.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Code::$variant => $status,)* }
            }

            /// OpenAI error `type`.
            pub const fn kind(self) -> &'static str {
                match self { $(Code::$variant => $kind,)* }
            }

            /// What to do next, one sentence.
            pub const fn hint(self) -> &'static str {
                match self { $(Code::$variant => $hint,)* }
            }
        }
    };
}

codes! {
    InvalidJson "invalid_json" 400 "invalid_request_error"
        "Send one UTF-8 JSON object as RFC 8259 defines it; the message gives the byte offset of the first mistake.";
    InvalidValue "invalid_value" 400 "invalid_request_error"
        "Correct the member that `param` names.";
    MediaNotAllowed "media_not_allowed" 400 "invalid_request_error"
        "Use an http(s) URL on an allowed host or a base64 data URL of an accepted kind.";
    MediaFetchFailed "media_fetch_failed" 422 "invalid_request_error"
        "Check that the router can reach the media URL, or send the bytes as a data URL.";
    MediaFetchTimeout "media_fetch_timeout" 504 "server_error"
        "The server of the media URL is slow; retry, or send the bytes as a data URL.";
    MediaDamaged "media_damaged" 400 "invalid_request_error"
        "Send a complete, undamaged picture; opening and saving it again in any editor repairs most of them.";
    MediaUnsupported "media_unsupported" 400 "invalid_request_error"
        "Convert the picture to JPEG, PNG or WebP.";
    MediaTooLarge "media_too_large" 413 "invalid_request_error"
        "Send a smaller picture, or raise the router's limits on pictures.";
    TransferParamsNotAllowed "transfer_params_not_allowed" 400 "invalid_request_error"
        "Leave out transfer parameters and embeddings, or start the router with --trust-client-transfer-params.";
    BadHttp "bad_http" 400 "invalid_request_error"
        "Send a well-formed HTTP/1.1 message as RFC 9112 defines it, with a single unambiguous body length.";
    HttpVersion "http_version" 505 "invalid_request_error"
        "Use HTTP/1.1, or put a proxy that speaks other versions in front.";
    HeaderTooLarge "header_too_large" 431 "invalid_request_error"
        "Send fewer or shorter header fields, or raise the router's header limit.";
    PayloadTooLarge "payload_too_large" 413 "invalid_request_error"
        "Send smaller media or refer to it by URL, or raise the router's body limit.";
    RequestTimeout "request_timeout" 408 "invalid_request_error"
        "Send the whole request without long pauses, or raise the router's receive timeout.";
    InvalidApiKey "invalid_api_key" 401 "authentication_error"
        "Send a valid key as `Authorization: Bearer <key>`.";
    ModelNotFound "model_not_found" 404 "invalid_request_error"
        "List the served models with GET /v1/models and use one of their ids.";
    UnknownUrl "unknown_url" 404 "invalid_request_error"
        "Check the path; the OpenAI-compatible routes start with /v1.";
    MethodNotAllowed "method_not_allowed" 405 "invalid_request_error"
        "Use the method that the `Allow` header names.";
    WorkerNotFound "worker_not_found" 404 "invalid_request_error"
        "List the registered workers with GET /workers and use one of their ids.";
    QueueFull "queue_full" 429 "rate_limit_error"
        "Retry after the seconds that `Retry-After` gives, or add workers.";
    EncodeFailed "encode_failed" 502 "server_error"
        "Retry the request; if it keeps failing, look at the encode worker's log.";
    PrefillFailed "prefill_failed" 502 "server_error"
        "Retry the request; if it keeps failing, look at the prefill worker's log.";
    DecodeFailed "decode_failed" 502 "server_error"
        "Retry the request; if it keeps failing, look at the decode worker's log.";
    WorkerFailed "worker_failed" 502 "server_error"
        "Retry the request; if it keeps failing, look at the worker's log.";
    NoEncodeWorker "no_encode_worker" 503 "server_error"
        "Retry later, or check the health of the encode workers with GET /workers.";
    NoPrefillWorker "no_prefill_worker" 503 "server_error"
        "Retry later, or check the health of the prefill workers with GET /workers.";
    NoDecodeWorker "no_decode_worker" 503 "server_error"
        "Retry later, or check the health of the decode workers with GET /workers.";
    NoWorker "no_worker" 503 "server_error"
        "Retry later, or check the health of the workers with GET /workers.";
    StageTimeout "stage_timeout" 504 "server_error"
        "Retry the request, send a smaller one, or raise the timeout of the stage that the message names.";
    InternalError "internal_error" 500 "server_error"
        "Retry the request and report it with the router's log if it happens again.";
    ClientDisconnected "client_disconnected" 499 "client_error"
        "Counted in metrics only: the client closed its connection before the answer was complete.";
    ShuttingDown "shutting_down" 503 "server_error"
        "Retry against another router: this one is draining.";
}

/// A body the scanner refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyError {
    /// `invalid_json` or `invalid_value`.
    pub code: Code,
    /// For humans, one sentence.
    pub message: String,
    /// The member at fault, as a path.
    pub param: Option<String>,
    /// Byte offset in the body.
    pub offset: usize,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BodyError {}

/// A malformed HTTP/1.x message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    /// `bad_http`, `http_version`, `header_too_large` or `payload_too_large`.
    pub code: Code,
    /// For humans, one sentence.
    pub message: String,
}

impl HttpError {
    /// Everything RFC 9112 calls invalid or ambiguous.
    pub fn bad(message: impl Into<String>) -> Self {
        HttpError { code: Code::BadHttp, message: message.into() }
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HttpError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_are_unique_and_complete() {
        let names: HashSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{}", code.name());
            assert!(code.hint().ends_with('.') && !code.kind().is_empty());
        }
    }
}
