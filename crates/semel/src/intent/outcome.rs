//! What execution ended in, and its stored form.

use std::ops::Deref;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

/// Most bytes the stored form of an outcome may have. A store refuses more; the guard then keeps a tombstone.
pub const OUTCOME_BYTES_MAX: usize = 4 << 20;

/// Most headers an outcome may have.
pub const OUTCOME_HEADERS_MAX: usize = 256;

/// How an execution ended, as far as the owner knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Done. Replayed until retention ends.
    Completed,
    /// Refused for good (validation, declined card). Replayed like a success: the answer will not change.
    FailedFinal,
    /// The same key may run again: nothing happened, or the effect is protected and running again is safe.
    FailedRetryable,
    /// In doubt. Never run again automatically, never forgotten.
    Uncertain,
}

impl Verdict {
    /// All of them, for tables.
    pub const ALL: [Self; 4] = [Self::Completed, Self::FailedFinal, Self::FailedRetryable, Self::Uncertain];
}

/// The body of an [`Outcome`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The bytes as they were.
    Kept(Bytes),
    /// The work is done, the body was too large to keep. Never a reason to run again.
    NotKept,
    /// Only a reference to the result is kept; the operation rebuilds the answer from it. See
    /// [`Rebuild`](crate::guard::Rebuild).
    Reference(Bytes),
    /// All of it, compressed or encrypted, the headers included: what a store behind
    /// [`Protected`](crate::store::protect::Protected) holds. Never given to a caller as it is.
    Sealed(Bytes),
}

/// What later callers of the same intent get.
///
/// ```
/// use semel::{Body, Outcome};
///
/// let outcome = Outcome::new(201, "{\"id\":7}").header("content-type", "application/json");
/// let stored = outcome.encode();
/// assert_eq!(Outcome::decode(stored).unwrap(), outcome);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// HTTP status, or a code of the application's own.
    pub code: u16,
    /// Headers in order; values may be any bytes.
    pub headers: Headers,
    /// The body.
    pub body: Body,
}

/// The headers of an [`Outcome`]. Cheap to clone, because an outcome goes to the store, to the caller and to every
/// later one.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Headers(Option<Arc<Vec<(String, Bytes)>>>);

impl Headers {
    /// None.
    pub const NONE: Self = Self(None);

    /// Adds one.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        Arc::make_mut(self.0.get_or_insert_default()).push((name.into(), value.into()));
    }
}

impl Deref for Headers {
    type Target = [(String, Bytes)];

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().map_or(&[], |headers| headers.as_slice())
    }
}

impl From<Vec<(String, Bytes)>> for Headers {
    fn from(headers: Vec<(String, Bytes)>) -> Self {
        Self((!headers.is_empty()).then(|| Arc::new(headers)))
    }
}

impl FromIterator<(String, Bytes)> for Headers {
    fn from_iter<I: IntoIterator<Item = (String, Bytes)>>(headers: I) -> Self {
        Vec::from_iter(headers).into()
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = &'a (String, Bytes);
    type IntoIter = std::slice::Iter<'a, (String, Bytes)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A stored outcome that cannot be read: written by a newer version, or damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored outcome cannot be read: {why}")]
pub struct OutcomeError {
    why: &'static str,
}

const FORMAT: u8 = 1;
/// With a body that an older semel, which only knows the first format, would take for one that was not kept.
const FORMAT_MORE: u8 = 2;
const BODY_KEPT: u8 = 1;
const BODY_REFERENCE: u8 = 2;
const BODY_SEALED: u8 = 4;

/// What sealing may add to an outcome of the largest size.
pub(crate) const SEALED_BYTES_EXTRA: usize = 256;

impl Outcome {
    /// An outcome with a body and no headers.
    pub fn new(code: u16, body: impl Into<Bytes>) -> Self {
        Self { code, headers: Headers::NONE, body: Body::Kept(body.into()) }
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// The same answer without its body: what is kept when the body is too large.
    pub fn tombstone(&self) -> Self {
        Self { code: self.code, headers: self.headers.clone(), body: Body::NotKept }
    }

    /// The body's bytes, where they were kept.
    pub fn body_bytes(&self) -> Option<&Bytes> {
        match &self.body {
            Body::Kept(bytes) => Some(bytes),
            Body::NotKept | Body::Reference(_) | Body::Sealed(_) => None,
        }
    }

    /// The stored part of the body, whatever it stands for.
    fn stored_body(&self) -> &[u8] {
        match &self.body {
            Body::Kept(bytes) | Body::Reference(bytes) | Body::Sealed(bytes) => bytes,
            Body::NotKept => &[],
        }
    }

    /// Bytes [`encode`](Self::encode) will produce.
    pub fn encoded_len(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| 8 + name.len() + value.len()).sum();
        6 + headers + self.stored_body().len()
    }

    /// What a store can keep of it: all, or everything but the body, or (where even the headers are too large) only
    /// that it is done.
    pub fn kept(self) -> Self {
        if self.fits() {
            return self;
        }
        let tombstone = self.tombstone();
        if tombstone.fits() { tombstone } else { Self { headers: Headers::NONE, ..tombstone } }
    }

    /// A smaller form, for a store that takes less than [`OUTCOME_BYTES_MAX`]: without its body, then without its
    /// headers; `None` when there is nothing left to leave out.
    pub(crate) fn smaller(&self) -> Option<Self> {
        match &self.body {
            Body::NotKept if self.headers.is_empty() => None,
            Body::NotKept => Some(Self { headers: Headers::NONE, ..self.clone() }),
            Body::Kept(_) | Body::Reference(_) | Body::Sealed(_) => Some(self.tombstone()),
        }
    }

    /// Done, and nothing more is known.
    pub(crate) fn unknown() -> Self {
        Self { code: 0, headers: Headers::NONE, body: Body::NotKept }
    }

    /// Whether a store may take it: within [`OUTCOME_BYTES_MAX`] and [`OUTCOME_HEADERS_MAX`].
    pub fn fits(&self) -> bool {
        let extra = if matches!(self.body, Body::Sealed(_)) { SEALED_BYTES_EXTRA } else { 0 };
        self.encoded_len() <= OUTCOME_BYTES_MAX + extra && self.headers.len() <= OUTCOME_HEADERS_MAX
    }

    /// The stored form: format, flags, code, headers, and the body as the rest.
    ///
    /// Only for outcomes that [`fits`](Self::fits) is true of.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_len());
        let (format, body) = match &self.body {
            Body::Kept(_) => (FORMAT, BODY_KEPT),
            Body::NotKept => (FORMAT, 0),
            Body::Reference(_) => (FORMAT_MORE, BODY_REFERENCE),
            Body::Sealed(_) => (FORMAT_MORE, BODY_SEALED),
        };
        out.put_u8(format);
        out.put_u8(body);
        out.put_u16(self.code);
        out.put_u16(self.headers.len() as u16);
        for (name, value) in &self.headers {
            out.put_u32(name.len() as u32);
            out.put_slice(name.as_bytes());
            out.put_u32(value.len() as u32);
            out.put_slice(value);
        }
        out.put_slice(self.stored_body());
        out.freeze()
    }

    /// Reads the stored form. Never panics, whatever the bytes are.
    pub fn decode(mut stored: Bytes) -> Result<Self, OutcomeError> {
        let short = OutcomeError { why: "it ends too early" };
        let mut take = |len: usize| {
            if stored.len() < len { Err(short.clone()) } else { Ok(stored.split_to(len)) }
        };
        let number = |bytes: &Bytes| bytes.iter().fold(0usize, |n, byte| n << 8 | usize::from(*byte));
        let unknown = OutcomeError { why: "its format is unknown; was it written by a newer semel?" };
        let format = take(1)?[0];
        let body: fn(Bytes) -> Body = match (format, take(1)?[0]) {
            (FORMAT, flags) if flags & BODY_KEPT != 0 => Body::Kept,
            (FORMAT, _) => |_| Body::NotKept,
            (FORMAT_MORE, BODY_REFERENCE) => Body::Reference,
            (FORMAT_MORE, BODY_SEALED) => Body::Sealed,
            _ => return Err(unknown),
        };
        let code = number(&take(2)?) as u16;
        let count = number(&take(2)?);
        if count > OUTCOME_HEADERS_MAX {
            return Err(OutcomeError { why: "it has too many headers" });
        }
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            let len = number(&take(4)?);
            let name = take(len)?;
            let name = String::from_utf8(name.to_vec())
                .map_err(|_| OutcomeError { why: "a header name is not text" })?;
            let len = number(&take(4)?);
            headers.push((name, take(len)?));
        }
        Ok(Self { code, headers: headers.into(), body: body(stored) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_reads_back(
            code: u16,
            headers in prop::collection::vec(("[a-z-]{1,20}", prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            body in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0..4usize,
        ) {
            let body = Bytes::from(body);
            let outcome = Outcome {
                code,
                headers: headers.into_iter().map(|(name, value)| (name, value.into())).collect(),
                body: [Body::Kept(body.clone()), Body::Reference(body.clone()), Body::Sealed(body), Body::NotKept]
                    [kind].clone(),
            };
            let stored = outcome.encode();
            prop_assert_eq!(stored.len(), outcome.encoded_len());
            prop_assert_eq!(Outcome::decode(stored).unwrap(), outcome);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Outcome::decode(bytes.into());
        }
    }

    #[test]
    fn whatever_is_too_large_leaves_something_that_fits() {
        let body = Outcome::new(201, vec![0; OUTCOME_BYTES_MAX]).header("location", "/payments/1");
        let kept = body.kept();
        assert!(kept.fits() && kept.body == Body::NotKept && kept.headers.len() == 1);
        let many =
            (0..=OUTCOME_HEADERS_MAX).fold(Outcome::new(201, "x"), |it, n| it.header(format!("h{n}"), "v"));
        let huge = Outcome::new(201, "x").header("h", vec![0; OUTCOME_BYTES_MAX]);
        for outcome in [many, huge] {
            let kept = outcome.kept();
            assert!(kept.fits() && kept.code == 201, "{} headers", kept.headers.len());
        }
    }

    #[test]
    fn a_smaller_form_loses_first_the_body_then_the_headers() {
        let whole = Outcome::new(201, "x").header("location", "/payments/1");
        let without_body = whole.smaller().unwrap();
        assert_eq!((without_body.body.clone(), without_body.headers.len()), (Body::NotKept, 1));
        let bare = without_body.smaller().unwrap();
        assert_eq!((bare.code, bare.body.clone(), bare.headers.len()), (201, Body::NotKept, 0));
        assert_eq!(bare.smaller(), None);
    }

    #[test]
    fn a_cut_off_outcome_is_refused_not_shortened() {
        let stored = Outcome::new(200, "").header("a", "b").encode();
        for len in 0..stored.len() {
            assert!(Outcome::decode(stored.slice(..len)).is_err(), "{len}");
        }
    }
}
