//! Where a request has its event id and kind.

use std::cell::OnceCell;

use http::HeaderMap;
use http::header::HeaderName;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::header;
use super::verifier::{Verified, VerifierError, VerifyError};

/// A location in a request.
#[derive(Clone, Debug)]
pub(super) enum Location {
    Header(HeaderName),
    Json(String),
    Digest,
}

impl Location {
    pub(super) fn header(name: &str) -> Result<Self, VerifierError> {
        Ok(Self::Header(header::name(name)?))
    }

    pub(super) fn json(pointer: &str) -> Result<Self, VerifierError> {
        if pointer.starts_with('/') {
            Ok(Self::Json(pointer.to_owned()))
        } else {
            Err(VerifierError::Pointer { pointer: pointer.to_owned() })
        }
    }
}

/// A request with a valid signature. The body of an unsigned request is never parsed.
pub(super) struct Signed<'r> {
    headers: &'r HeaderMap,
    body: &'r [u8],
    document: OnceCell<Value>,
}

impl<'r> Signed<'r> {
    pub(super) fn new(headers: &'r HeaderMap, body: &'r [u8]) -> Self {
        Self { headers, body, document: OnceCell::new() }
    }

    pub(super) fn read(&self, location: &Location) -> Option<String> {
        match location {
            Location::Header(name) => header::only(self.headers, name.as_str()).ok().map(str::to_owned),
            Location::Json(pointer) => {
                let parse = || serde_json::from_slice(self.body).unwrap_or(Value::Null);
                match self.document.get_or_init(parse).pointer(pointer)? {
                    Value::String(text) if !text.is_empty() => Some(text.clone()),
                    Value::Number(number) if !number.is_f64() => Some(number.to_string()),
                    _ => None,
                }
            }
            Location::Digest => {
                Some(Sha256::digest(self.body).iter().map(|byte| format!("{byte:02x}")).collect())
            }
        }
    }
}

/// The locations of id and kind.
#[derive(Clone, Debug)]
pub(super) struct EventId {
    pub(super) id: Location,
    pub(super) kind: Option<Location>,
}

impl EventId {
    pub(super) fn identify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        signed_at_s: Option<u64>,
    ) -> Result<Verified, VerifyError> {
        let signed = Signed::new(headers, body);
        let id = signed.read(&self.id).ok_or(VerifyError::MissingId)?;
        Ok(Verified { id, kind: self.kind.as_ref().and_then(|kind| signed.read(kind)), signed_at_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(location: Location, body: &str) -> Option<String> {
        let event_id = EventId { id: location, kind: None };
        event_id.identify(&HeaderMap::new(), body.as_bytes(), None).ok().map(|verified| verified.id)
    }

    #[test]
    fn an_id_is_a_text_or_a_whole_number() {
        let at = |body| id(Location::json("/data/id").unwrap(), body);
        assert_eq!(at(r#"{"data":{"id":"evt_1"}}"#).as_deref(), Some("evt_1"));
        assert_eq!(at(r#"{"data":{"id":18446744073709551615}}"#).as_deref(), Some("18446744073709551615"));
        for none in
            ["", "{", "[]", r#"{"data":{"id":""}}"#, r#"{"data":{"id":1.5}}"#, r#"{"data":{"id":null}}"#]
        {
            assert_eq!(at(none), None, "{none}");
        }
        // Deeper than the parser goes: no id, no panic.
        assert_eq!(at(&"[".repeat(100_000)), None);
        assert!(Location::json("id").is_err());
    }

    #[test]
    fn a_digest_is_the_bodys() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(id(Location::Digest, "").as_deref(), Some(empty));
    }
}
