//! `semel resolve` and `semel release`

use semel::intent::state::Ruling;
use semel::store::{AnyStore, Decide, Decided, Filter, Record, Store};
use semel::{Body, Epoch, Outcome, State, Verdict};

use crate::args::{Decider, Release, Resolve};
use crate::duration;
use crate::failure::Failed;
use crate::moment::rfc3339;
use crate::outcome;
use crate::show::ShowView;
use crate::stdout;
use crate::target;
use crate::view::state;

/// How many outcomes are inspected to learn whether a store's outcomes are sealed.
const INSPECTED_MAX: usize = 20;
const CHANGED: &str = "the intent has changed meanwhile; check it with `semel show` before you decide";

pub(crate) async fn resolve(store: &AnyStore, args: &Resolve, url: &str, json: bool) -> Result<(), Failed> {
    let outcome = outcome::given(args)?;
    let ruling = match (args.applied, args.failed) {
        (true, _) => Ruling::Applied(Verdict::Completed),
        (_, true) => Ruling::Applied(Verdict::FailedFinal),
        _ => Ruling::NotApplied,
    };
    let record = target::find(store, &args.target).await?.decidable()?;
    if outcome.is_some() {
        refuse_unsealed(store).await?;
    }
    decide(store, record, ruling, outcome, &args.decider, url, json).await
}

pub(crate) async fn release(store: &AnyStore, args: &Release, url: &str, json: bool) -> Result<(), Failed> {
    let record = target::find(store, &args.target).await?.decidable()?;
    let now = store.now().await?;
    match state(&record, now) {
        State::Completed if !args.yes => Err(Failed::not_done(
            "the work was done, and the next call with this key would do it again; add --yes if that is intended",
        )),
        State::FailedRetryable => {
            Err(Failed::not_done("nothing to release: the same key may run again already"))
        }
        _ => decide(store, record, Ruling::Release, None, &args.decider, url, json).await,
    }
}

/// Refuses to add a plaintext outcome to a store whose other outcomes are sealed: anyone with the store could read it.
async fn refuse_unsealed(store: &AnyStore) -> Result<(), Failed> {
    let states = vec![State::Completed, State::FailedFinal];
    let newest = store.list(Filter { states, limit: INSPECTED_MAX, ..Filter::default() }).await?.records;
    let sealed = |record: &Record| matches!(&record.outcome, Some(Outcome { body: Body::Sealed(_), .. }));
    if newest.iter().any(sealed) {
        return Err(Failed::usage(
            "this store's outcomes are encrypted, but no key was given, so this one would be stored in plain text; \
             pass --keys file:PATH or env:NAME",
        ));
    }
    Ok(())
}

async fn decide(
    store: &AnyStore,
    record: Record,
    ruling: Ruling,
    outcome: Option<Outcome>,
    decider: &Decider,
    url: &str,
    json: bool,
) -> Result<(), Failed> {
    let id = record.intent.id();
    let seen = record.head.epoch;
    if decider.epoch.is_some_and(|epoch| Epoch(epoch) != seen) {
        return Err(Failed::not_done(CHANGED));
    }
    let (by, why) = (decider.by.clone(), decider.why.clone());
    let decide = Decide { seen, ruling, outcome, retention: decider.retention, by, why };
    match store.decide(id, decide).await? {
        Decided::Recorded => {}
        Decided::Stale => return Err(Failed::not_done(CHANGED)),
        Decided::Refused(state) => return Err(refused(store, &record, state, ruling).await),
    }
    let now = store.now().await?;
    // Another process may run and finish it the moment it is decided, so it is shown as it is now.
    let Some(record) = store.get(id).await? else {
        eprintln!("the decision was recorded and has already expired");
        return Ok(());
    };
    if json {
        return stdout::json(&ShowView::new(&record, now, false, url));
    }
    let until = match record.head.expires_at {
        Some(at) => format!("until {}", rfc3339(at)),
        None => "forever".to_owned(),
    };
    let means = match ruling {
        Ruling::Applied(Verdict::FailedFinal) => format!("callers get this failure {until}"),
        Ruling::Applied(_) => format!("callers get this outcome {until}"),
        Ruling::NotApplied | Ruling::Release => match record.head.safe_until {
            Some(at) => format!("a call with this key runs it if it can end before {}", rfc3339(at)),
            None => "the next call with this key runs it".to_owned(),
        },
    };
    stdout::text(&format!("{id} is {} now: {means}\n", state(&record, now).as_str()))
}

async fn refused(store: &AnyStore, record: &Record, state: State, ruling: Ruling) -> Failed {
    let id = record.intent.id();
    let why = match (state, ruling) {
        (State::InProgress, _) => {
            // The lease may have been renewed since the record was read.
            let lease =
                store.get(id).await.ok().flatten().map_or(record.head.lease_until, |r| r.head.lease_until);
            let left = match store.now().await {
                Ok(now) => duration::shown(lease.since_ms(now)),
                Err(_) => "a while".to_owned(),
            };
            format!("its owner's lease is valid until {} ({left}); wait, then check again", rfc3339(lease))
        }
        (State::Uncertain, _) => {
            "it has no outcome to withdraw; record what happened with `semel resolve`".to_owned()
        }
        (State::FailedRetryable, _) => {
            "it is known not to have happened; the next call with this key runs it".to_owned()
        }
        (state, _) => format!(
            "it is already {}; to have the work done again, withdraw that with `semel release`",
            state.as_str()
        ),
    };
    Failed::not_done(format!("refused: {why}"))
}
