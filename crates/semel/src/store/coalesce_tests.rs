use super::*;
use crate::intent::fingerprint::Recipe;
use crate::intent::identity::{Epoch, Intent, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::scope::Scope;
use crate::intent::{outcome::Verdict, state::State};

/// A server on which every row is locked, for ever.
struct AllLocked;

impl Executor for AllLocked {
    type Connection = ();

    const CLAIMS_MAY_REPEAT: bool = true;

    async fn connect(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn is_open(&self, _: &()) -> bool {
        true
    }

    async fn claims(&self, _: &mut (), _: &mut [Ask<Claim, Claimed>]) -> Result<(), Failure> {
        Ok(())
    }

    async fn finishes(&self, _: &mut (), _: &mut [Ask<Finishing, Finished>]) -> Result<(), Failure> {
        Ok(())
    }

    async fn renews(&self, _: &mut (), _: &mut [Ask<(Ticket, u64), Renewed>]) -> Result<(), Failure> {
        Ok(())
    }

    async fn decides(&self, _: &mut (), _: &mut [Ask<(IntentId, Decide), Decided>]) -> Result<(), Failure> {
        Ok(())
    }
}

fn all_locked() -> Coalescer {
    let bounds = Bounds { connections: 1, batch_max: 10, queue_max: 10, queue_wait: Duration::from_secs(1) };
    Coalescer::start(Arc::new(AllLocked), Some(()), bounds)
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_a_key_that_is_held_for_ever_is_in_flight_and_no_error() {
    let scope = Scope::tenant("acme").unwrap();
    let intent = Intent::new(scope, Operation::new("pay").unwrap(), Key::new("k").unwrap());
    let claim = Claim {
        intent: intent.clone(),
        fingerprint: Recipe::default().bytes(b"request"),
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms: 1_000,
        window: crate::intent::guard_expiry::KeyWindow::ENDLESS,
    };
    let answer = all_locked().ask(claim, Command::Claim).await;
    let Ok(Claimed::InFlight(existing)) = answer else { panic!("{answer:?}") };
    let record = &existing.record;
    assert_eq!((record.head.owner, record.head.state), (Owner::NONE, State::InProgress));
    assert_eq!(record.intent, intent);
    assert!(existing.now < record.head.lease_until);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_for_a_row_that_is_held_for_ever_is_an_error_of_which_nothing_was_applied() {
    let ticket = Ticket {
        id: IntentId::from_bytes([1; 32]),
        owner: Owner::random(),
        epoch: Epoch(1),
        attempt: 1,
        lease_until: StoreTime(0),
        safe_until: None,
        other_recipe: false,
    };
    let finishing =
        Finishing { ticket, verdict: Verdict::Completed, retention: Retention::Forever, outcome: None };
    let store = all_locked();
    let error = store.ask(finishing, Command::Finish).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Busy, Fate::NotApplied));
    let error = store.ask((ticket, 1), Command::Renew).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Busy, Fate::NotApplied));
}
