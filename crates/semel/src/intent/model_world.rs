//! The small world [`model`](super) explores: what can happen in it, and what has to hold.

use super::super::*;
use super::Rules;

const WORKERS: usize = 3;
/// Time stands still at this moment; a lease or an outcome ends by being moved to it.
const NOW: StoreTime = StoreTime(1_000);
const SPAN_MS: u64 = 100;
/// How long the downstream remembers a key, where it forgets any: as long before the end as an attempt may take, none
/// begins any more.
const WINDOW: KeyWindow = KeyWindow { safe_for_ms: Some(SPAN_MS), call_ms: SPAN_MS / 2 };

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Doing {
    /// Between attempts.
    Idle,
    /// Claimed, but the answer was lost: it does not know.
    Asked { token: u64, keyed: bool },
    /// No worker will run this claim. It is claimed once more, to be given back if it is there.
    GivingBack { token: u64, keyed: bool, epoch: Option<u64> },
    /// Under a claim.
    Running { token: u64, epoch: u64, keyed: bool, applied: bool, asleep: bool, suspect: bool },
}

/// Claims that are granted, answers that are lost, outcomes that expire, decisions that are taken. Stalls,
/// crashes, lapses and refused claims are free: they lead round in circles.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) claims: u8,
    pub(super) losses: u8,
    pub(super) expiries: u8,
    pub(super) decisions: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    head: Option<Head>,
    pub(super) workers: [Doing; WORKERS],
    effect: Effect,
    /// The highest epoch given out.
    epochs: u64,
    left: Budget,
    deployed: bool,
    /// Effects that happened in this life of the record; a new life begins when an expired one is claimed.
    effects: u8,
    /// The downstream has seen the key: it will not do the same again.
    key_known: bool,
    /// How long it goes on remembering.
    memory: Memory,
    /// The record's time for the key was changed.
    moved: bool,
    /// Calls that were sent and have not arrived, where the model distinguishes that.
    on_the_wire: u8,
    /// The owner of the record's epoch died, stalled, lost the answer or said that it does not know.
    blamed: bool,
}

/// How the downstream remembers a key: counted from the first attempt, and not from what the record says.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Memory {
    Fresh,
    /// An attempt that begins now may end too late.
    Fading,
    Gone,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Claim,
    ClaimAndLoseTheAnswer,
    AskAgain,
    /// The claim in doubt is left to the background, and this worker goes on: under a new owner.
    LeaveToGiveBack,
    GiveBack,
    Apply,
    Send,
    Arrive,
    Finish(Verdict),
    Renew,
    Stall,
    Wake,
    Crash,
    Lapse,
    Expire,
    Sweep,
    Deploy,
    Decide(Ruling),
    LookUp,
    KeyGrowsOld,
    KeyIsForgotten,
}

pub(super) type Broken = &'static str;

fn token(number: u64) -> Owner {
    Owner::from_bytes(u128::from(number).to_be_bytes())
}

impl World {
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            head: None,
            workers: [Doing::Idle; WORKERS],
            effect: rules.effect,
            epochs: 0,
            left: rules.budget,
            deployed: false,
            effects: 0,
            key_known: false,
            memory: Memory::Fresh,
            moved: false,
            on_the_wire: 0,
            blamed: false,
        }
    }

    fn state(&self) -> Option<State> {
        self.head.and_then(|head| head.state_at(NOW))
    }

    /// Everything that can happen next: to the world, or to a worker.
    pub(super) fn acts(&self, rules: &Rules) -> Vec<(Option<usize>, Act)> {
        let mut acts = vec![(None, Act::Sweep)];
        if let Some(head) = self.head {
            let running = head.state == State::InProgress && !head.is_lapsed(NOW);
            // An awake worker renews.
            let awake = |doing: &Doing| matches!(doing, Doing::Running { epoch, asleep: false, .. } if *epoch == head.epoch.0);
            if running && !self.workers.iter().any(awake) {
                acts.push((None, Act::Lapse));
            }
            if self.left.expiries > 0 && head.expires_at.is_some_and(|at| at > NOW) {
                acts.push((None, Act::Expire));
            }
            let open = self.left.decisions > 0 && (head.state == State::Uncertain || head.is_lapsed(NOW));
            if open && rules.lookup.is_some() {
                acts.push((None, Act::LookUp));
            } else if open {
                if self.has_happened() {
                    acts.push((None, Act::Decide(Ruling::Applied(Verdict::Completed))));
                } else if !(rules.patient && self.may_still_happen(None)) {
                    acts.push((None, Act::Decide(Ruling::NotApplied)));
                }
            }
        }
        if self.on_the_wire > 0 {
            acts.push((None, Act::Arrive));
        }
        let begun = self.head.is_some_and(|head| head.safe_until.is_some());
        match self.memory {
            Memory::Fresh if rules.forgets && begun => acts.push((None, Act::KeyGrowsOld)),
            // Nothing is as long on its way.
            Memory::Fading if self.on_the_wire == 0 => acts.push((None, Act::KeyIsForgotten)),
            _ => {}
        }
        if rules.deploy.is_some() && !self.deployed {
            acts.push((None, Act::Deploy));
        }
        for (at, doing) in self.workers.iter().enumerate() {
            // Two workers in the same state do the same; one of them is enough.
            if at > 0 && self.workers[at - 1] == self.workers[at] {
                continue;
            }
            let can: &[Act] = match doing {
                Doing::Idle if self.left.claims == 0 => &[],
                Doing::Idle if self.left.losses == 0 => &[Act::Claim],
                Doing::Idle => &[Act::Claim, Act::ClaimAndLoseTheAnswer],
                Doing::Asked { .. } => &[Act::AskAgain, Act::LeaveToGiveBack, Act::Crash],
                Doing::GivingBack { .. } => &[Act::GiveBack, Act::Crash],
                Doing::Running { asleep: true, .. } => &[Act::Wake, Act::Crash],
                // It waits for the answer to its call.
                Doing::Running { applied: true, .. } if self.on_the_wire > 0 => {
                    &[Act::Finish(Verdict::Uncertain), Act::Renew, Act::Stall, Act::Crash]
                }
                Doing::Running { applied: false, .. } if rules.lookup.is_some() => {
                    &[Act::Send, Act::Finish(Verdict::FailedRetryable), Act::Renew, Act::Stall, Act::Crash]
                }
                Doing::Running { applied: true, .. } => &[
                    Act::Finish(Verdict::Completed),
                    Act::Finish(Verdict::Uncertain),
                    Act::Renew,
                    Act::Stall,
                    Act::Crash,
                ],
                Doing::Running { .. } => &[
                    Act::Apply,
                    Act::Finish(Verdict::FailedRetryable),
                    Act::Finish(Verdict::Uncertain),
                    Act::Renew,
                    Act::Stall,
                    Act::Crash,
                ],
            };
            let others = self.has_happened() || self.may_still_happen(Some(at));
            let honest = |act: &&Act| {
                !(rules.fails_for_all && others && matches!(act, Act::Finish(Verdict::FailedRetryable)))
            };
            acts.extend(can.iter().filter(honest).map(|act| (Some(at), *act)));
        }
        acts
    }

    fn has_happened(&self) -> bool {
        self.effects > 0 || self.key_known
    }

    /// Another worker is running and has not applied it yet.
    fn may_still_happen(&self, except: Option<usize>) -> bool {
        let pending =
            |doing: &Doing| matches!(doing, Doing::Asked { .. } | Doing::Running { applied: false, .. });
        self.workers.iter().enumerate().any(|(at, doing)| Some(at) != except && pending(doing))
    }

    fn apply(&mut self, rules: &Rules, event: &StepEvent) -> Step {
        let step = (rules.step)(self.head.as_ref(), event, NOW);
        self.moved |= self.is_moved(event, &step);
        let before = self.head.map(|head| head.epoch);
        match step.change {
            Change::None => {}
            // The lease means nothing once it is finished: one state less to distinguish.
            Change::Put(head) if head.state != State::InProgress => {
                self.head = Some(Head { lease_until: NOW, ..head });
            }
            Change::Put(head) => self.head = Some(head),
            Change::Remove => self.head = None,
        }
        if self.head.map(|head| head.epoch) != before {
            self.blamed = false;
        }
        step
    }

    /// The time until which the key protects has changed although what its attempts did is not known.
    fn is_moved(&self, event: &StepEvent, step: &Step) -> bool {
        let (Some(before), Change::Put(after)) = (self.head, step.change) else { return false };
        let decided = before.owner == Owner::NONE && after.effect == Effect::Opaque;
        let known =
            after.state.replayed_as().is_some() || matches!(event, StepEvent::Decide { .. }) || decided;
        before.safe_until.is_some() && !known && after.safe_until != before.safe_until
    }

    pub(super) fn act(&mut self, rules: &Rules, at: Option<usize>, act: Act) -> Result<(), Broken> {
        let Some(at) = at else { return self.happen(rules, act) };
        self.workers[at] = match (self.workers[at], act) {
            (Doing::Idle, _) => {
                let (token, keyed) = (self.epochs + 1, self.effect.may_rerun());
                match self.claim(rules, token, keyed)? {
                    Some(_) if matches!(act, Act::ClaimAndLoseTheAnswer) => {
                        self.left.losses -= 1;
                        self.blamed = true;
                        Doing::Asked { token, keyed }
                    }
                    granted => started(token, keyed, granted),
                }
            }
            (Doing::Asked { token, keyed }, Act::AskAgain) => {
                started(token, keyed, self.claim(rules, token, keyed)?)
            }
            (Doing::Asked { token, keyed }, Act::LeaveToGiveBack) => {
                let giving_back = Doing::GivingBack { token, keyed, epoch: None };
                // The background is one more worker; where none is idle, this one has to do it itself.
                match self.workers.iter().position(|doing| *doing == Doing::Idle) {
                    Some(idle) => {
                        self.workers[idle] = giving_back;
                        if rules.shares_owner { Doing::Asked { token, keyed } } else { Doing::Idle }
                    }
                    None => giving_back,
                }
            }
            (Doing::GivingBack { token, keyed, epoch: None }, Act::GiveBack) => {
                match self.own_claim(rules, token, keyed)? {
                    Some(epoch) => Doing::GivingBack { token, keyed, epoch: Some(epoch) },
                    None => Doing::Idle,
                }
            }
            (Doing::GivingBack { token, epoch: Some(epoch), .. }, Act::GiveBack) => {
                self.finish(rules, token, epoch, Verdict::FailedRetryable)?;
                Doing::Idle
            }
            (Doing::Running { token, epoch, keyed, applied, asleep, suspect }, act) => {
                let now = |applied, asleep, suspect| Doing::Running {
                    token,
                    epoch,
                    keyed,
                    applied,
                    asleep,
                    suspect,
                };
                match act {
                    Act::Apply => {
                        self.has_effect(keyed);
                        now(true, asleep, suspect)
                    }
                    Act::Send => {
                        self.on_the_wire += 1;
                        now(true, asleep, suspect)
                    }
                    Act::Stall => {
                        self.blame(epoch);
                        now(applied, true, true)
                    }
                    // Where a lookup may have been believed, it checks its lease before it goes on with its work.
                    Act::Wake
                        if rules.lookup.is_some_and(|lookup| lookup.drops_work) && !self.holds(epoch) =>
                    {
                        Doing::Idle
                    }
                    Act::Wake => now(applied, false, suspect),
                    Act::Renew => {
                        self.renew(rules, token, epoch)?;
                        now(applied, asleep, suspect)
                    }
                    Act::Finish(verdict) => {
                        self.finish(rules, token, epoch, verdict)?;
                        // A worker that does not know yet may still learn it, and its call may still arrive: by
                        // itself where calls on the wire are modelled.
                        let learns = verdict == Verdict::Uncertain && rules.lookup.is_none();
                        if learns { now(applied, asleep, true) } else { Doing::Idle }
                    }
                    _ => {
                        self.blame(epoch);
                        Doing::Idle
                    }
                }
            }
            _ => Doing::Idle,
        };
        Ok(())
    }

    fn happen(&mut self, rules: &Rules, act: Act) -> Result<(), Broken> {
        let finished = self.head.is_some_and(|head| head.state_at(NOW).is_none());
        match act {
            Act::Lapse => self.head = self.head.map(|head| Head { lease_until: NOW, ..head }),
            Act::Expire => {
                self.head = self.head.map(|head| Head { expires_at: Some(NOW), ..head });
                self.left.expiries -= 1;
            }
            Act::Deploy => {
                self.effect = rules.deploy.unwrap_or(self.effect);
                self.deployed = true;
            }
            Act::Arrive => {
                self.on_the_wire -= 1;
                self.has_effect(self.effect.may_rerun());
            }
            Act::KeyGrowsOld => {
                self.memory = Memory::Fading;
                self.safe_until_is(NOW.plus_ms(WINDOW.call_ms));
            }
            // Attempts that began before have timed out.
            Act::KeyIsForgotten => {
                (self.memory, self.key_known) = (Memory::Gone, false);
                self.safe_until_is(NOW);
                for doing in &mut self.workers {
                    if let Doing::Running { applied: false, .. } | Doing::Asked { .. } = doing {
                        *doing = Doing::Idle;
                        self.blamed = true;
                    }
                }
            }
            Act::LookUp if self.has_happened() => {
                return self.happen(rules, Act::Decide(Ruling::Applied(Verdict::Completed)));
            }
            // "Not found" is believed when the settle delay is over: nothing that was sent is on the wire any more.
            Act::LookUp => {
                let settled = self.on_the_wire == 0 || rules.lookup.is_some_and(|lookup| !lookup.settles);
                if settled {
                    return self.happen(rules, Act::Decide(Ruling::NotApplied));
                }
            }
            Act::Decide(ruling) => {
                self.left.decisions -= 1;
                self.epochs += 1;
                let seen = self.head.map_or(Epoch(0), |head| head.epoch);
                let fresh = Epoch(self.epochs);
                self.apply(
                    rules,
                    &StepEvent::Decide { seen, ruling, retention: Retention::Ms(SPAN_MS), fresh },
                );
            }
            _ => {
                if self.apply(rules, &StepEvent::Sweep).change != Change::None && !finished {
                    return Err("something was swept that had not expired");
                }
            }
        }
        Ok(())
    }

    /// A call arrives. A downstream that knows the key does not do the same again.
    fn has_effect(&mut self, keyed: bool) {
        self.effects += u8::from(!keyed || !self.key_known);
        self.key_known |= keyed;
    }

    /// Time passes: what was later is then.
    fn safe_until_is(&mut self, until: StoreTime) {
        self.head = self.head.map(|head| Head {
            safe_until: head.safe_until.map(|before| if self.moved { before } else { until }),
            ..head
        });
    }

    /// Whether the claim of this epoch is there and its lease runs.
    fn holds(&self, epoch: u64) -> bool {
        self.head.is_some_and(|head| {
            head.epoch.0 == epoch && head.state == State::InProgress && !head.is_lapsed(NOW)
        })
    }

    /// The claim of this owner, also if its lease ran out meanwhile.
    fn own_claim(&mut self, rules: &Rules, owner: u64, keyed: bool) -> Result<Option<u64>, Broken> {
        let granted = self.claim(rules, owner, keyed)?;
        let mine = |head: &Head| head.owner == token(owner) && head.state == State::InProgress;
        let lapsed = self.head.filter(mine);
        if granted.is_some() {
            // No worker runs it until it is given back.
            self.blamed = true;
        }
        Ok(granted.or(lapsed.map(|head| head.epoch.0)))
    }

    fn blame(&mut self, epoch: u64) {
        self.blamed |= self.head.is_some_and(|head| head.epoch.0 == epoch);
    }

    /// The epoch of the claim, if it was granted.
    fn claim(&mut self, rules: &Rules, owner: u64, keyed: bool) -> Result<Option<u64>, Broken> {
        let (before, found) = (self.state(), self.head);
        let fresh = Epoch(self.epochs + 1);
        let effect = if keyed { Effect::Keyed } else { Effect::Opaque };
        let fingerprint = Fingerprint::from_parts([1; 32], 1);
        let owner = token(owner);
        let window = if rules.forgets { WINDOW } else { KeyWindow::ENDLESS };
        let lease_ms = SPAN_MS;
        let step =
            self.apply(rules, &StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh });
        let (StepAnswer::Run, Some(head)) = (step.answer, self.head) else { return Ok(None) };
        if matches!(before, Some(State::Completed)) {
            return Err("a completed intent ran again inside its retention");
        }
        // After a decision, and when what was done before is forgotten, an attempt is a first one; not under a key that
        // the downstream may know from before.
        let first = before.is_none()
            || found.is_some_and(|it| {
                let is_key_new = it.safe_until.is_none() || !keyed;
                it.state == State::FailedRetryable && it.owner == Owner::NONE && is_key_new
            });
        if first && rules.forgets {
            (self.memory, self.key_known) = (Memory::Fresh, false);
        }
        if self.memory != Memory::Fresh {
            return Err("an attempt began that may end after its key is forgotten");
        }
        if step.change != Change::None {
            if head.epoch.0 <= self.epochs {
                return Err("an epoch was given out twice");
            }
            self.epochs = head.epoch.0;
            self.left.claims = self.left.claims.saturating_sub(1);
        }
        if before.is_none() {
            self.effects = 0;
        }
        Ok(Some(head.epoch.0))
    }

    fn renew(&mut self, rules: &Rules, owner: u64, epoch: u64) -> Result<(), Broken> {
        let lost = self.head.is_none_or(|head| head.is_lapsed(NOW) || head.epoch.0 != epoch);
        let event = StepEvent::Renew { owner: token(owner), epoch: Epoch(epoch), lease_ms: SPAN_MS };
        if self.apply(rules, &event).change != Change::None && lost {
            return Err("a lapsed or lost claim was renewed");
        }
        Ok(())
    }

    fn finish(&mut self, rules: &Rules, owner: u64, epoch: u64, verdict: Verdict) -> Result<(), Broken> {
        let mine = self.head.filter(|head| head.epoch.0 == epoch);
        let (owner, retention) = (token(owner), Retention::Ms(SPAN_MS));
        let step = self.apply(rules, &StepEvent::Finish { owner, epoch: Epoch(epoch), verdict, retention });
        if verdict == Verdict::Uncertain {
            self.blame(epoch);
        }
        match mine {
            None if step.change != Change::None => Err("an outcome was recorded under somebody else's claim"),
            Some(head) if !head.state.is_finished() && step.answer == StepAnswer::Stale => {
                Err("the last owner's outcome was refused")
            }
            _ => Ok(()),
        }
    }

    /// What holds in every state.
    pub(super) fn check(&self) -> Result<(), Broken> {
        if self.effects > 1 {
            return Err("the effect happened twice");
        }
        if self.moved {
            return Err("the time until which the key protects has moved");
        }
        if self.state() == Some(State::Completed) && !self.has_happened() {
            return Err("it is completed and did not happen");
        }
        let aged = self.memory == Memory::Gone;
        if self.state() == Some(State::Uncertain) && !self.blamed && !aged {
            return Err("it is uncertain although its owner was alive and sure");
        }
        for (at, doing) in self.workers.iter().enumerate() {
            let Doing::Running { epoch, suspect, .. } = doing else { continue };
            let same = |other: &Doing| matches!(other, Doing::Running { epoch: it, .. } if it == epoch);
            if self.workers[at + 1..].iter().any(same) {
                return Err("two owners have one epoch");
            }
            let owned = |head: Head| head.epoch.0 == *epoch && head.state == State::InProgress;
            if !suspect && !self.head.is_some_and(owned) {
                return Err("an owner that was always awake lost its claim");
            }
        }
        Ok(())
    }
}

fn started(token: u64, keyed: bool, granted: Option<u64>) -> Doing {
    match granted {
        Some(epoch) => Doing::Running { token, epoch, keyed, applied: false, asleep: false, suspect: false },
        None => Doing::Idle,
    }
}
