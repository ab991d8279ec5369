//! JSON-RPC: what comes in, what goes out, and errors.
//!
//! Nothing here copies a parameter or puts one into a message: it may be a scan key.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::node::NodeError;

/// The request isn't JSON.
pub(super) const PARSE: i32 = -32700;
/// The request isn't JSON-RPC, or its answer can't be given.
pub(super) const INVALID_REQUEST: i32 = -32600;
/// There is no such method in the negotiated version.
pub(super) const UNKNOWN_METHOD: i32 = -32601;
/// Parameters of the wrong number, type or name.
pub(super) const INVALID_PARAMS: i32 = -32602;
/// Not the client's fault.
pub(super) const INTERNAL: i32 = -32603;
/// Parameters that can't be fulfilled.
pub(super) const BAD_REQUEST: i32 = 1;
/// The node doesn't answer, or with an error.
pub(super) const DAEMON: i32 = 2;
/// The server can't now.
pub(super) const BUSY: i32 = -102;
/// The history has too many entries; from 1.7 on.
pub(super) const HISTORY_TOO_LARGE: i32 = 10001;

/// An error as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RpcError {
    pub(super) code: i32,
    pub(crate) message: String,
    /// Whether the connection ends with it.
    pub(super) close: bool,
}

impl RpcError {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), close: false }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(BAD_REQUEST, message)
    }

    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(super) fn and_close(self) -> Self {
        Self { close: true, ..self }
    }
}

impl From<NodeError> for RpcError {
    fn from(error: NodeError) -> Self {
        let code = match &error {
            NodeError::NotFound(_) | NodeError::Invalid(_) | NodeError::Rejected { .. } => BAD_REQUEST,
            NodeError::TooLarge { .. } => HISTORY_TOO_LARGE,
            NodeError::Indexing(_) | NodeError::Busy(_) => BUSY,
            NodeError::Daemon(_) => DAEMON,
            NodeError::Internal(text) => {
                tracing::error!("a request failed: {text}");
                return Self::new(INTERNAL, "internal error");
            }
        };
        Self::new(code, error.to_string())
    }
}

/// A line that was understood as JSON.
#[derive(Debug)]
pub(super) enum Message<'a> {
    Single(Item<'a>),
    Batch(Vec<&'a RawValue>),
}

/// One request.
#[derive(Debug)]
pub(super) enum Item<'a> {
    Call(Request<'a>),
    /// A request without an id, which nobody waits for.
    Notification,
    /// Not a request; the id if it has one.
    Invalid(&'a str, &'static str),
}

/// A request to answer.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// As the client wrote it: a number, a text or null.
    pub(super) id: &'a str,
    pub(super) method: Cow<'a, str>,
    pub(super) params: Params<'a>,
}

/// Parameters before they are bound to names.
#[derive(Debug)]
pub(super) enum Params<'a> {
    Positional(Vec<&'a RawValue>),
    Named(BTreeMap<Cow<'a, str>, &'a RawValue>),
}

/// Reads a line. White space around it doesn't count.
pub(super) fn parse(line: &[u8]) -> Result<Message<'_>, RpcError> {
    let Ok(text) = std::str::from_utf8(line) else {
        return Err(RpcError::new(PARSE, "the request isn't UTF-8"));
    };
    // The error's own text could quote the line.
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| {
        RpcError::new(PARSE, format!("the request isn't JSON (at byte {})", error.column()))
    })?;
    if raw.get().starts_with('[') {
        let batch: Vec<&RawValue> = serde_json::from_str(raw.get())
            .map_err(|_| RpcError::new(INVALID_REQUEST, "the batch can't be read"))?;
        return Ok(Message::Batch(batch));
    }
    Ok(Message::Single(item(raw)))
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Name of a field, without copying it unless it is written with escapes.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads one request.
pub(super) fn item<'a>(raw: &'a RawValue) -> Item<'a> {
    if !raw.get().starts_with('{') {
        return Item::Invalid("null", "a request is a JSON object");
    }
    let Ok(envelope) = serde_json::from_str::<Envelope<'a>>(raw.get()) else {
        return Item::Invalid("null", "the request's fields can't be read");
    };
    // An id that is null becomes None here, too; JSON-RPC 1.0 calls such a request a notification as well.
    let id = envelope.id.map(RawValue::get);
    let shown = id.filter(|id| is_id(id)).unwrap_or("null");
    let Some(method) = envelope.method else {
        return Item::Invalid(shown, "the request has no method");
    };
    let Ok(Name(method)) = serde_json::from_str(method.get()) else {
        return Item::Invalid(shown, "the method isn't a text");
    };
    let Some(id) = id else { return Item::Notification };
    if !is_id(id) {
        return Item::Invalid("null", "the id is neither a number nor a short text");
    }
    let params = match envelope.params.map(RawValue::get) {
        None => Params::Positional(Vec::new()),
        Some(list) if list.starts_with('[') => match serde_json::from_str(list) {
            Ok(list) => Params::Positional(list),
            Err(_) => return Item::Invalid(id, "the parameters can't be read"),
        },
        Some(map) if map.starts_with('{') => match serde_json::from_str::<BTreeMap<Name<'a>, _>>(map) {
            Ok(map) => Params::Named(map.into_iter().map(|(name, value)| (name.0, value)).collect()),
            Err(_) => return Item::Invalid(id, "the parameters can't be read"),
        },
        Some(_) => return Item::Invalid(id, "the parameters are neither a list nor an object"),
    };
    Item::Call(Request { id, method, params })
}

/// Whether this JSON can be an id, which is a number or a text of reasonable length.
fn is_id(json: &str) -> bool {
    json.len() <= 256 && json.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

/// The id of a request of which only the first and last bytes are known; `null` if it can't be told.
pub(super) fn id_in_pieces<'a>(head: &'a [u8], tail: &'a [u8]) -> &'a str {
    // Of a batch there is no one id.
    if head.trim_ascii_start().first() == Some(&b'{') {
        let at_end = || id_after_key(std::str::from_utf8(tail.trim_ascii_end()).ok()?, true);
        let at_start = || id_after_key(valid_start(head), false);
        return at_end().or_else(at_start).unwrap_or("null");
    }
    "null"
}

fn valid_start(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

/// The value of the last (or first) `"id"` in a piece of JSON. At the end, only if the object closes right behind it.
fn id_after_key(text: &str, at_end: bool) -> Option<&str> {
    const KEY: &str = "\"id\"";
    let at = if at_end { text.rfind(KEY) } else { text.find(KEY) }?;
    let value = text[at + KEY.len()..].trim_start().strip_prefix(':')?.trim_start();
    let mut values = serde_json::Deserializer::from_str(value).into_iter::<&RawValue>();
    let id = values.next()?.ok()?.get();
    let rest = value[values.byte_offset()..].trim();
    let fits = if at_end { rest == "}" } else { rest.starts_with(',') };
    (fits && is_id(id)).then_some(id)
}

/// A successful reply.
pub(super) fn reply(id: &str, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"result\":{result},\"id\":{id}}}")
}

/// A reply that is an error.
pub(super) fn error_reply(id: &str, error: &RpcError) -> String {
    let message = json(&error.message);
    format!("{{\"jsonrpc\":\"2.0\",\"error\":{{\"code\":{},\"message\":{message}}},\"id\":{id}}}", error.code)
}

/// A notification.
pub(super) fn notification(method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params}}}")
}

/// As JSON. What is given has no maps with keys that aren't texts, so nothing can fail.
pub(super) fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn single(line: &str) -> Item<'_> {
        match parse(line.as_bytes()) {
            Ok(Message::Single(item)) => item,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ids_are_kept_as_they_are() {
        for id in ["1", "-7", "1.50", "\"a\\u0062\"", "12345678901234567890123", "1e3"] {
            let line = format!(" {{\"id\": {id}, \"method\":\"m\"}}  \r");
            assert!(matches!(single(&line), Item::Call(request) if request.id == id), "{line}");
        }
        assert!(matches!(single("{\"method\":\"m\"}"), Item::Notification));
        assert!(matches!(single("{\"method\":\"m\",\"id\":null}"), Item::Notification));
        for id in ["{}", "[1]", "true", &format!("\"{}\"", "x".repeat(300))] {
            assert!(matches!(single(&format!("{{\"method\":\"m\",\"id\":{id}}}")), Item::Invalid("null", _)));
        }
        assert!(matches!(single("{\"id\":5}"), Item::Invalid("5", _)));
        assert!(matches!(single("{\"id\":5,\"method\":7}"), Item::Invalid("5", _)));
        assert!(matches!(single("{\"id\":5,\"method\":\"m\",\"params\":3}"), Item::Invalid("5", _)));
        assert!(matches!(single("7"), Item::Invalid("null", _)));
    }

    #[test]
    fn an_id_is_found_in_what_is_left_of_a_long_request() {
        let id = |head: &str, tail: &str| id_in_pieces(head.as_bytes(), tail.as_bytes()).to_owned();
        assert_eq!(id("{\"jsonrpc\":\"2.0\",\"method\"", "ff\"],\"id\":17}  \r"), "17");
        assert_eq!(id("{\"id\": \"x\", \"params\":[\"", "ff\"]}"), "\"x\"");
        assert_eq!(id("{\"params\":[\"", "{\"id\":3}]}"), "null");
        assert_eq!(id("[{\"id\": 1, ", "\"id\":17}]"), "null");
        assert_eq!(id("{\"id\": 1", "\"id\":"), "null");
        assert_eq!(id("", ""), "null");
    }

    #[test]
    fn deep_nesting_is_no_stack_overflow() {
        let deep = format!(
            "{{\"id\":1,\"method\":\"m\",\"params\":[{}{}]}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(matches!(single(&deep), Item::Call(_)));
        assert!(parse("[".repeat(1_000_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
            let _ = id_in_pieces(&line, &line);
        }

        #[test]
        fn anything_like_json_is_read_or_refused(line in "[\\[\\]{}:,\"\\\\a-e0-9id .n]{0,60}") {
            let _ = parse(line.as_bytes());
            let _ = id_in_pieces(line.as_bytes(), line.as_bytes());
        }
    }
}
