//! Keeping no more of an answer than what names its result.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::FutureExt;

use super::answer::{Answer, GuardError};
use super::operation::Guarded;
use crate::intent::identity::{Intent, Operation};
use crate::intent::outcome::{Body, Headers, Outcome, Verdict};
use crate::store::{ErrorKind, Fate, Store, StoreError};

/// What is left of an answer in the store: enough to make it again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kept {
    /// Of which intent.
    pub intent: Intent,
    /// The status or code.
    pub code: u16,
    /// What [`Rebuild::reference`] gave.
    pub reference: String,
}

/// Makes an answer again from what names its result, so that the store need not keep the answer itself: no names, no
/// addresses, no amounts; the status and `pay_123`.
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
    /// What names the result of this outcome. `None` keeps the outcome as it is: a refusal has no resource.
    fn reference(&self, outcome: &Outcome) -> Option<String>;

    /// The answer for a later caller. It only reads, and is asked for every replay. An error is told to the caller as
    /// one, who may ask again; the work is never run again for it.
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

/// What of an outcome is given to the store.
pub(crate) fn kept(rebuild: Option<&dyn Rebuild>, operation: &Operation, outcome: Outcome) -> Outcome {
    let Some(rebuild) = rebuild else { return outcome.kept() };
    // The work is done: whatever this does, the outcome is recorded.
    let reference = std::panic::catch_unwind(AssertUnwindSafe(|| rebuild.reference(&outcome)));
    match reference {
        Ok(Some(reference)) => {
            let body = Body::Reference(Bytes::from(reference));
            Outcome { code: outcome.code, headers: Headers::NONE, body }.kept()
        }
        Ok(None) => outcome.kept(),
        Err(_) => {
            let operation = operation.as_str();
            tracing::error!(operation, "naming a result panicked; only that it is done is kept");
            Outcome { headers: Headers::NONE, ..outcome.tombstone() }
        }
    }
}

impl<S: Store> Guarded<S> {
    /// What of an outcome is given to the store.
    pub(super) fn kept(&self, outcome: Outcome) -> Outcome {
        kept(self.of.rebuild.as_deref(), &self.of.operation, outcome)
    }

    /// A stored outcome, as a caller gets it.
    pub(crate) async fn given_again(
        &self,
        intent: &Intent,
        verdict: Verdict,
        outcome: Outcome,
    ) -> Result<Answer, GuardError> {
        let reference = match &outcome.body {
            Body::Kept(_) | Body::NotKept => return Ok(Answer::replay(verdict, outcome)),
            Body::Sealed(_) => {
                let message = "the outcome is compressed or encrypted, and this store was opened without \
                               Protected; open it as those who wrote it did";
                let error = StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message);
                return Err(GuardError::StoreUnavailable(error));
            }
            Body::Reference(reference) => String::from_utf8_lossy(reference).into_owned(),
        };
        let failed = |why: String| {
            tracing::error!(
                operation = self.of.operation.as_str(),
                intent = super::shown(intent),
                why,
                "an answer could not be made again"
            );
            GuardError::NotRebuilt { why }
        };
        let Some(rebuild) = &self.of.rebuild else {
            return Err(failed(
                "only a reference was kept, and the operation has nothing to rebuild from it".into(),
            ));
        };
        let kept = Kept { intent: intent.clone(), code: outcome.code, reference };
        let rebuilding = AssertUnwindSafe(async { rebuild.rebuild(kept).await }).catch_unwind();
        match tokio::time::timeout(self.of.guard.inner.limits.lookup_timeout, rebuilding).await {
            Ok(Ok(Ok(outcome))) => Ok(Answer::replay(verdict, outcome)),
            Ok(Ok(Err(error))) => Err(failed(error.to_string())),
            Ok(Err(_)) => Err(failed("it panicked".into())),
            Err(_) => Err(failed("it took too long".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names a result, names none, or panics.
    struct Names(Option<&'static str>);

    impl Rebuild for Names {
        fn reference(&self, _: &Outcome) -> Option<String> {
            assert_ne!(self.0, Some("panic"), "on purpose");
            self.0.map(str::to_owned)
        }

        fn rebuild(&self, _: Kept) -> Rebuilt<'_> {
            Box::pin(async { Err("nobody asks".into()) })
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
        assert_eq!(kept(None), outcome(), "what has no name is kept as it is");
    }
}
