//! Where a request says which event it brings.

use std::cell::OnceCell;

use http::HeaderMap;
use http::header::HeaderName;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::header;
use super::verifier::{Verified, VerifierError, VerifyError};

/// A place in a request.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Header(HeaderName),
    Json(String),
    Digest,
}

impl Place {
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

/// A request whose signature is right: whoever cannot sign has no document parsed.
pub(super) struct Signed<'r> {
    headers: &'r HeaderMap,
    body: &'r [u8],
    document: OnceCell<Value>,
}

impl<'r> Signed<'r> {
    pub(super) fn new(headers: &'r HeaderMap, body: &'r [u8]) -> Self {
        Self { headers, body, document: OnceCell::new() }
    }

    pub(super) fn read(&self, place: &Place) -> Option<String> {
        match place {
            Place::Header(name) => header::only(self.headers, name.as_str()).ok().map(str::to_owned),
            Place::Json(pointer) => {
                let parse = || serde_json::from_slice(self.body).unwrap_or(Value::Null);
                match self.document.get_or_init(parse).pointer(pointer)? {
                    Value::String(text) if !text.is_empty() => Some(text.clone()),
                    Value::Number(number) if !number.is_f64() => Some(number.to_string()),
                    _ => None,
                }
            }
            Place::Digest => {
                Some(Sha256::digest(self.body).iter().map(|byte| format!("{byte:02x}")).collect())
            }
        }
    }
}

/// Where id and kind are.
#[derive(Clone, Debug)]
pub(super) struct EventId {
    pub(super) id: Place,
    pub(super) kind: Option<Place>,
}

impl EventId {
    pub(super) fn name(
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

    fn id(place: Place, body: &str) -> Option<String> {
        let naming = EventId { id: place, kind: None };
        naming.name(&HeaderMap::new(), body.as_bytes(), None).ok().map(|verified| verified.id)
    }

    #[test]
    fn an_id_is_a_text_or_a_whole_number() {
        let at = |body| id(Place::json("/data/id").unwrap(), body);
        assert_eq!(at(r#"{"data":{"id":"evt_1"}}"#).as_deref(), Some("evt_1"));
        assert_eq!(at(r#"{"data":{"id":18446744073709551615}}"#).as_deref(), Some("18446744073709551615"));
        for none in
            ["", "{", "[]", r#"{"data":{"id":""}}"#, r#"{"data":{"id":1.5}}"#, r#"{"data":{"id":null}}"#]
        {
            assert_eq!(at(none), None, "{none}");
        }
        // Deeper than is followed: no id, no panic.
        assert_eq!(at(&"[".repeat(100_000)), None);
        assert!(Place::json("id").is_err());
    }

    #[test]
    fn a_digest_is_the_bodys() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(id(Place::Digest, "").as_deref(), Some(empty));
    }
}
