//! Storing only a reference to the result. `replay` rebuilds the answer from it.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use bytes::Bytes;

use super::operation::Guarded;
use crate::intent::identity::{Intent, Operation};
use crate::intent::outcome::{Body, Headers, Outcome};
use crate::store::Store;

/// What the store keeps of an answer: enough to rebuild it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kept {
    /// The intent.
    pub intent: Intent,
    /// The status or code.
    pub code: u16,
    /// What [`Rebuild::reference`] returned.
    pub reference: String,
}

/// Rebuilds an answer from a reference to its result, so that the store need not keep the answer itself: only the
/// status and `pay_123`, no names, no addresses, no amounts.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::error::Error;
/// use semel::guard::{Kept, Rebuild, Rebuilt};
/// use semel::{Guard, Key, Outcome, Scope, store::memory::MemoryStore};
///
/// struct FromTheLedger;
///
/// impl Rebuild for FromTheLedger {
///     fn reference(&self, outcome: &Outcome) -> Option<String> {
///         let answer: String = serde_json::from_slice(outcome.body_bytes()?).ok()?;
///         Some(answer.strip_prefix("paid ")?.to_owned())
///     }
///     fn rebuild(&self, kept: Kept) -> Rebuilt<'_> {
///         // A real one reads the payment from its table.
///         Box::pin(async move { Ok(Outcome::new(kept.code, format!("\"paid {}\"", kept.reference))) })
///     }
/// }
///
/// let pay = Guard::new(MemoryStore::new()).operation("pay")?.minimal(FromTheLedger);
/// let (acme, key) = (Scope::tenant("acme")?, Key::new("order-1")?);
/// for _ in 0..2 {
///     let reply = pay.once(&acme, &key, &(), |_| async { Ok("paid pay_123".to_string()) }).await?;
///     assert_eq!(reply.value, "paid pay_123");
/// }
/// # Ok::<(), Box<dyn Error>>(()) }).unwrap();
/// ```
pub trait Rebuild: Send + Sync + 'static {
    /// The reference to the result of this outcome. `None` stores the outcome as it is: a refusal has no resource.
    fn reference(&self, outcome: &Outcome) -> Option<String>;

    /// The answer for a later caller. It must only read, and is called for every replay. The caller gets an error as
    /// [`GuardError::NotRebuilt`](super::GuardError::NotRebuilt) and may retry; the work never runs again for it.
    fn rebuild(&self, kept: Kept) -> Rebuilt<'_>;
}

/// What [`Rebuild::rebuild`] returns.
pub type Rebuilt<'a> =
    Pin<Box<dyn Future<Output = Result<Outcome, Box<dyn Error + Send + Sync>>> + Send + 'a>>;

impl fmt::Debug for dyn Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rebuild")
    }
}

/// The part of an outcome that is stored.
pub(crate) fn kept(rebuild: Option<&dyn Rebuild>, operation: &Operation, outcome: Outcome) -> Outcome {
    let Some(rebuild) = rebuild else { return outcome.kept() };
    // The work is done, so a panic here must not keep its outcome from being recorded.
    let reference = std::panic::catch_unwind(AssertUnwindSafe(|| rebuild.reference(&outcome)));
    match reference {
        Ok(Some(reference)) => {
            let body = Body::Reference(Bytes::from(reference));
            Outcome { code: outcome.code, headers: Headers::NONE, body }.kept()
        }
        Ok(None) => outcome.kept(),
        Err(_) => {
            let operation = operation.as_str();
            tracing::error!(
                operation,
                "Rebuild::reference panicked; the status is stored without a body, so replays have none"
            );
            Outcome { headers: Headers::NONE, ..outcome.tombstone() }
        }
    }
}

impl<S: Store> Guarded<S> {
    pub(super) fn kept(&self, outcome: Outcome) -> Outcome {
        kept(self.of.rebuild.as_deref(), &self.of.operation, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reference, returns none, or panics.
    struct Names(Option<&'static str>);

    impl Rebuild for Names {
        fn reference(&self, _: &Outcome) -> Option<String> {
            assert_ne!(self.0, Some("panic"), "on purpose");
            self.0.map(str::to_owned)
        }

        fn rebuild(&self, _: Kept) -> Rebuilt<'_> {
            Box::pin(async { Err("unused".into()) })
        }
    }

    #[test]
    fn of_a_named_result_no_header_is_kept_nor_where_naming_panics() {
        let operation = Operation::new("pay").unwrap();
        let outcome = || Outcome::new(201, "Jane Doe").header("set-cookie", "jane");
        let kept = |names| kept(Some(&Names(names)), &operation, outcome());
        let none = Headers::NONE;
        assert_eq!(kept(Some("7")), Outcome { code: 201, headers: none, body: Body::Reference("7".into()) });
        assert_eq!(kept(Some("panic")), Outcome { code: 201, headers: Headers::NONE, body: Body::NotKept });
        assert_eq!(kept(None), outcome(), "without a reference the outcome is kept as it is");
    }
}
