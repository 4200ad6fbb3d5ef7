//! Approvals: a person says yes or no, and who and why is recorded. A signal whose body says it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::admin::{AdminError, DecidedBy, SagaAdmin};
use super::handle::{Refused, Saga, SagaResult};
use super::journal::{SagaNumber, Signal, Signalled};

/// What a person decided, with who and why.
///
/// ```
/// use semel::saga::{Approval, DecidedBy};
///
/// let no = Approval::rejected(&DecidedBy::new("ann", "too expensive"));
/// assert_eq!(no.granted().unwrap_err().why, "rejected by ann: too expensive");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Approval {
    /// Whether they said yes.
    pub approved: bool,
    /// Who.
    pub by: String,
    /// Why.
    pub why: String,
}

impl Approval {
    /// Yes.
    pub fn approved(by: &DecidedBy) -> Self {
        Self { approved: true, by: by.by.clone(), why: by.why.clone() }
    }

    /// No.
    pub fn rejected(by: &DecidedBy) -> Self {
        Self { approved: false, ..Self::approved(by) }
    }

    /// Who said yes; a no is a refusal, which travels by `?` and undoes what happened.
    pub fn granted(self) -> SagaResult<DecidedBy> {
        if self.approved { Ok(DecidedBy::new(self.by, self.why)) } else { Err(Refused::new(self)) }
    }
}

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.approved { "approved" } else { "rejected" };
        write!(f, "{what} by {}: {}", self.by, self.why)
    }
}

impl<App: ?Sized, Phase> Saga<App, Phase> {
    /// Waits until a person says yes or no. `None`: the time is over.
    ///
    /// It is the [signal](Saga::signal) of this name, with an [`Approval`] as its body: [`SagaAdmin::approve`] and
    /// `semel saga approve` send it, or your application by [`Sagas::signal`](super::Sagas::signal).
    ///
    /// ```
    /// use semel::saga::{Refused, Saga, SagaResult};
    /// use std::time::Duration;
    ///
    /// async fn order(s: Saga<()>, _: u32) -> SagaResult<String> {
    ///     let decided = s.approval("manager", Some(Duration::from_secs(24 * 3600))).await;
    ///     let by = decided.ok_or_else(|| Refused::new("no decision in time"))?.granted()?;
    ///     Ok(format!("approved by {}", by.by))
    /// }
    /// ```
    pub async fn approval(&self, name: &str, timeout: Option<Duration>) -> Option<Approval> {
        self.signal(name, timeout).await
    }
}

impl SagaAdmin {
    /// Says yes to what the saga waits for by this name. The first decision counts: the same one again is
    /// [`Already`](Signalled::Already) there, and the opposite is an error, [`AlreadyDecided`](AdminError::AlreadyDecided).
    /// A saga that asks twice by one name is answered by [`decide_as`](Self::decide_as).
    pub async fn approve(
        &self,
        number: SagaNumber,
        name: &str,
        by: &DecidedBy,
    ) -> Result<Signalled, AdminError> {
        self.decide_as(number, &approval_id(name), name, &Approval::approved(by)).await
    }

    /// Says no to what the saga waits for by this name. The first decision counts, as with [`approve`](Self::approve).
    pub async fn reject(
        &self,
        number: SagaNumber,
        name: &str,
        by: &DecidedBy,
    ) -> Result<Signalled, AdminError> {
        self.decide_as(number, &approval_id(name), name, &Approval::rejected(by)).await
    }

    /// Says yes or no under an id of your own: the same id again is the same decision, and an error if it was another one,
    /// or about something else.
    pub async fn decide_as(
        &self,
        number: SagaNumber,
        id: &str,
        name: &str,
        decided: &Approval,
    ) -> Result<Signalled, AdminError> {
        let body = serde_json::to_vec(decided)?.into();
        let signalled =
            self.signal(number, Signal { id: id.to_owned(), name: name.to_owned(), body }).await?;
        match signalled {
            Signalled::Already => self.same_decision(number, id, name, decided).await,
            signalled => Ok(signalled),
        }
    }

    /// Whether the signal that has this id says the same.
    async fn same_decision(
        &self,
        number: SagaNumber,
        id: &str,
        name: &str,
        decided: &Approval,
    ) -> Result<Signalled, AdminError> {
        let Some(loaded) = self.load(number).await? else { return Ok(Signalled::TooLate) };
        let before = loaded.signals.into_iter().find(|signal| signal.id == id && signal.name == name);
        let before = before.and_then(|signal| serde_json::from_slice::<Approval>(&signal.body).ok());
        match before {
            Some(before) if before.approved == decided.approved => Ok(Signalled::Already),
            Some(decided) => Err(AdminError::AlreadyDecided { number, decided }),
            None => Err(AdminError::SignalIdTaken { number, id: id.to_owned(), name: name.to_owned() }),
        }
    }
}

/// One decision for a name: approved and rejected are the same signal.
fn approval_id(name: &str) -> String {
    format!("approval-{name}")
}
