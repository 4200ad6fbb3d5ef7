//! Deciders with one wrong idea each. What they do not get wrong they leave to [`step`].

use std::time::{SystemTime, UNIX_EPOCH};

use semel::intent::guard_expiry::KeyWindow;
use semel::intent::policy::LEASE_MS_MAX;
use semel::intent::state::{Change, Decider, Head, Ruling, State, Step, StepAnswer, StepEvent, step};
use semel::{Effect, Epoch, Retention, StoreTime, Verdict};

use super::Bug;

/// The decider with that bug; [`step`] itself for bugs that are elsewhere.
pub(super) fn decider(bug: Bug) -> Decider {
    match bug {
        Bug::FinishIgnoresTheEpoch => |head, event, now| match (head, *event) {
            (Some(it), StepEvent::Finish { owner, verdict, retention, .. }) => {
                step(head, &StepEvent::Finish { owner, epoch: it.epoch, verdict, retention }, now)
            }
            _ => step(head, event, now),
        },
        Bug::FinishIgnoresTheOwner => |head, event, now| match (head, *event) {
            (Some(it), StepEvent::Finish { epoch, verdict, retention, .. }) => {
                step(head, &StepEvent::Finish { owner: it.owner, epoch, verdict, retention }, now)
            }
            _ => step(head, event, now),
        },
        Bug::SecondFinishOverwrites => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Finish { .. }) => {
                step(Some(&Head { state: State::InProgress, ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::LateOutcomeRefused => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Finish { .. }) if it.is_lapsed(now) => keep(StepAnswer::Stale),
            _ => step(head, event, now),
        },
        Bug::UncertainStaysUncertain => |head, event, now| match (head, step(head, event, now)) {
            (Some(it), Step { answer: StepAnswer::Done, .. })
                if it.state == State::Uncertain && matches!(event, StepEvent::Finish { .. }) =>
            {
                keep(StepAnswer::Already)
            }
            (_, found) => found,
        },
        Bug::FingerprintIgnored => |head, event, now| match head {
            Some(it) => step(head, &asking_the_same(it, event), now),
            None => step(head, event, now),
        },
        Bug::MismatchAfterInFlight => |head, event, now| {
            let live = |it: &Head| it.state == State::InProgress && !it.is_lapsed(now);
            match (head, event) {
                (Some(it), StepEvent::Claim { .. }) if live(it) => {
                    step(head, &asking_the_same(it, event), now)
                }
                _ => step(head, event, now),
            }
        },
        Bug::MismatchAfterUncertain => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { .. }) if it.state_at(now) == Some(State::Uncertain) => {
                keep(StepAnswer::Unknown)
            }
            _ => step(head, event, now),
        },
        Bug::OtherRecipeMismatches => |head, event, now| match step(head, event, now) {
            found if found.other_recipe => keep(StepAnswer::Mismatch),
            found => found,
        },
        Bug::RepeatedClaimGetsANewEpoch => |head, event, now| match (head, *event) {
            (Some(it), StepEvent::Claim { owner, fresh, .. }) if it.owner == owner && !it.is_lapsed(now) => {
                put(StepAnswer::Run, Head { epoch: fresh, ..*it })
            }
            _ => step(head, event, now),
        },
        Bug::RepeatedClaimIsInFlight => |head, event, now| match step(head, event, now) {
            found if found.answer == StepAnswer::Run && found.change == Change::None => {
                keep(StepAnswer::InFlight)
            }
            found => found,
        },
        Bug::RetryableFailureIsReplayed => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { .. }) if it.state_at(now) == Some(State::FailedRetryable) => {
                keep(StepAnswer::Replay)
            }
            _ => step(head, event, now),
        },
        Bug::FinalFailureRunsAgain => |head, event, now| match head {
            Some(it) if it.state == State::FailedFinal => {
                step(Some(&Head { state: State::FailedRetryable, ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        _ => of_time(bug),
    }
}

/// Bugs about leases, expiry and sweeping.
fn of_time(bug: Bug) -> Decider {
    match bug {
        Bug::LeaseNeverEnds => |head, event, now| {
            let endless = head.map(|it| Head { lease_until: now.plus_ms(LEASE_MS_MAX), ..*it });
            step(endless.as_ref(), event, now)
        },
        Bug::LeaseFarAheadRuns => |head, event, now| {
            let bounded = |it: &Head| it.lease_until.min(now.plus_ms(LEASE_MS_MAX));
            let waited_for = head.map(|it| Head { lease_until: bounded(it), ..*it });
            step(waited_for.as_ref(), event, now)
        },
        Bug::CallersClock => |head, event, _now| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            step(head, event, StoreTime(since.as_millis() as u64))
        },
        Bug::OpaqueRunsAgainAfterTheLease => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { effect, .. }) if it.is_lapsed(now) => {
                let keyed = Head { effect: Effect::Keyed, ..*it };
                running_as(*effect, step(Some(&keyed), &claimed_as(Effect::Keyed, event), now))
            }
            _ => step(head, event, now),
        },
        Bug::OpaqueTakesOverAKeyedClaim => |head, event, now| match event {
            StepEvent::Claim { effect, .. } => {
                running_as(*effect, step(head, &claimed_as(Effect::Keyed, event), now))
            }
            _ => step(head, event, now),
        },
        Bug::OpaqueBelievesAKeyedFailure => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { .. }) if it.state == State::FailedRetryable => {
                step(Some(&Head { owner: semel::Owner::NONE, ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::KeyedIsNeverTakenOver => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { .. }) if it.is_lapsed(now) => keep(StepAnswer::Unknown),
            _ => step(head, event, now),
        },
        Bug::UncertainRunsWithAKey => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { effect: Effect::Keyed, .. }) if it.state == State::Uncertain => {
                step(Some(&Head { state: State::FailedRetryable, ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::TakeoverMovesTheTimeOfAKey => |head, event, now| {
            let mut found = step(head, event, now);
            if let (StepEvent::Claim { window, .. }, Change::Put(next)) = (event, &mut found.change)
                && next.safe_until.is_some()
            {
                next.safe_until = window.begun(now);
            }
            found
        },
        Bug::OpaqueClaimHasAKey => |head, event, now| {
            let mut found = step(head, event, now);
            if let (StepEvent::Claim { window, .. }, Change::Put(next)) = (event, &mut found.change)
                && next.safe_until.is_none()
            {
                next.safe_until = window.begun(now);
            }
            found
        },
        Bug::AttemptsMayOutlastTheirKey => |head, event, now| step(head, &ending_at_once(event), now),
        Bug::ForgottenKeyRunsAgain => |head, event, now| {
            let young = head.map(|it| Head { safe_until: it.safe_until.max(Some(now.plus_ms(1))), ..*it });
            let asked =
                matches!(event, StepEvent::Claim { .. }) && head.is_some_and(|it| it.safe_until.is_some());
            step(if asked { young.as_ref() } else { head }, &ending_at_once(event), now)
        },
        Bug::KeyedFailureExpires => |head, event, now| {
            let mut found = step(head, event, now);
            if let (
                StepEvent::Finish { verdict: Verdict::FailedRetryable, retention, .. },
                Change::Put(next),
            ) = (event, &mut found.change)
            {
                (next.expires_at, next.safe_until) = (retention.expiry(now), None);
            }
            found
        },
        Bug::DecisionKeepsTheTimeOfAKey => |head, event, now| {
            let mut found = step(head, event, now);
            if let (StepEvent::Decide { .. }, Change::Put(next), Some(it)) = (event, &mut found.change, head)
            {
                next.safe_until = it.safe_until;
            }
            found
        },
        Bug::NotAppliedBeginsTheKeyAnew => |head, event, now| {
            let mut found = step(head, event, now);
            if let (StepEvent::Decide { .. }, Change::Put(next)) = (event, &mut found.change) {
                next.safe_until = None;
            }
            found
        },
        Bug::KeyedFailureIsReleased => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Decide { ruling: Ruling::Release, .. }) if it.safe_until.is_some() => {
                step(Some(&Head { safe_until: None, ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::TakeoverKeepsTheEpoch => |head, event, now| match (head, step(head, event, now)) {
            (Some(it), Step { answer: StepAnswer::Run, change: Change::Put(next), .. }) => {
                put(StepAnswer::Run, Head { epoch: it.epoch, ..next })
            }
            (_, found) => found,
        },
        Bug::RenewResurrects => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Renew { .. }) => {
                step(Some(&Head { lease_until: now.plus_ms(1), ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::RenewIgnoresTheOwner => |head, event, now| match (head, *event) {
            (Some(it), StepEvent::Renew { epoch, lease_ms, .. }) => {
                step(head, &StepEvent::Renew { owner: it.owner, epoch, lease_ms }, now)
            }
            _ => step(head, event, now),
        },
        Bug::RenewDoesNothing => |head, event, now| match (head, step(head, event, now)) {
            (Some(it), Step { answer: StepAnswer::Done, .. }) if matches!(event, StepEvent::Renew { .. }) => {
                put(StepAnswer::Done, *it)
            }
            (_, found) => found,
        },
        Bug::ExpiryIgnored => {
            |head, event, now| step(head.map(|it| Head { expires_at: None, ..*it }).as_ref(), event, now)
        }
        Bug::RetentionFromTheLease => |head, event, now| match (*event, step(head, event, now)) {
            (StepEvent::Finish { retention, .. }, Step { answer, change: Change::Put(next), .. }) => {
                put(answer, Head { expires_at: retention.expiry(next.lease_until), ..next })
            }
            (_, found) => found,
        },
        Bug::ForeverIsAMoment => |head, event, now| match *event {
            StepEvent::Finish { owner, epoch, verdict, retention: Retention::Forever } => {
                step(head, &StepEvent::Finish { owner, epoch, verdict, retention: Retention::Ms(1) }, now)
            }
            _ => step(head, event, now),
        },
        // One time to live for everything: when the lease is over, so is the record.
        Bug::UncertainExpires => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Claim { .. } | StepEvent::Sweep)
                if it.state_at(now) == Some(State::Uncertain) && it.lease_until < now =>
            {
                step(Some(&Head { state: State::Completed, expires_at: Some(now), ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::SweepTakesALiveClaim => |head, event, now| sweeping(head, event, now, State::InProgress),
        Bug::SweepTakesAnUncertainOne => |head, event, now| sweeping(head, event, now, State::Uncertain),
        Bug::SweepTakesWhatIsFinished => |head, event, now| sweeping(head, event, now, State::Completed),
        _ => of_fences(bug),
    }
}

/// Bugs about epochs and decisions.
fn of_fences(bug: Bug) -> Decider {
    match bug {
        Bug::EpochReusedAfterASweep => |head, event, now| match (head, step(head, event, now)) {
            (None, Step { answer, change: Change::Put(next), .. }) => {
                put(answer, Head { epoch: Epoch(1), ..next })
            }
            (_, found) => found,
        },
        Bug::EpochReusedByARetry => |head, event, now| match (head, step(head, event, now)) {
            (Some(it), Step { answer: StepAnswer::Run, change: Change::Put(next), .. })
                if it.state == State::FailedRetryable =>
            {
                put(StepAnswer::Run, Head { epoch: it.epoch, ..next })
            }
            (_, found) => found,
        },
        Bug::DecisionDoesNotFence => |head, event, now| match (head, event, step(head, event, now)) {
            (Some(it), StepEvent::Decide { .. }, Step { answer, change: Change::Put(next), .. }) => {
                put(answer, Head { owner: it.owner, epoch: it.epoch, ..next })
            }
            (_, _, found) => found,
        },
        Bug::DecidesOverALiveClaim => |head, event, now| match (head, event) {
            (Some(it), StepEvent::Decide { .. }) if it.state == State::InProgress => {
                step(Some(&Head { lease_until: now, ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        Bug::DecisionIgnoresWhatWasSeen => |head, event, now| match (head, *event) {
            (Some(it), StepEvent::Decide { ruling, retention, fresh, .. }) => {
                step(head, &StepEvent::Decide { seen: it.epoch, ruling, retention, fresh }, now)
            }
            _ => step(head, event, now),
        },
        Bug::OpenOnesAreReleased => |head, event, now| match (head, *event) {
            (Some(it), StepEvent::Decide { ruling: Ruling::Release, .. })
                if it.state_at(now) == Some(State::Uncertain) =>
            {
                step(Some(&Head { state: State::from(Verdict::Completed), ..*it }), event, now)
            }
            _ => step(head, event, now),
        },
        _ => step,
    }
}

fn keep(answer: StepAnswer) -> Step {
    Step { answer, change: Change::None, other_recipe: false }
}

fn put(answer: StepAnswer, head: Head) -> Step {
    Step { answer, change: Change::Put(head), other_recipe: false }
}

fn sweeping(head: Option<&Head>, event: &StepEvent, now: StoreTime, state: State) -> Step {
    match (head, event) {
        (Some(it), StepEvent::Sweep) if it.state_at(now) == Some(state) => {
            Step { answer: StepAnswer::Removed, change: Change::Remove, other_recipe: false }
        }
        _ => step(head, event, now),
    }
}

fn asking_the_same(head: &Head, event: &StepEvent) -> StepEvent {
    match *event {
        StepEvent::Claim { owner, effect, lease_ms, window, fresh, .. } => {
            StepEvent::Claim { fingerprint: head.fingerprint, owner, effect, lease_ms, window, fresh }
        }
        other => other,
    }
}

fn ending_at_once(event: &StepEvent) -> StepEvent {
    match *event {
        StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh } => {
            let window = KeyWindow { call_ms: 0, ..window };
            StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh }
        }
        other => other,
    }
}

fn claimed_as(effect: Effect, event: &StepEvent) -> StepEvent {
    match *event {
        StepEvent::Claim { fingerprint, owner, lease_ms, window, fresh, .. } => {
            StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh }
        }
        other => other,
    }
}

fn running_as(effect: Effect, step: Step) -> Step {
    match step.change {
        Change::Put(head) => Step { change: Change::Put(Head { effect, ..head }), ..step },
        _ => step,
    }
}
