use proptest::prelude::*;

use super::*;

const LEASE_MS: u64 = 100;
/// How long an attempt may take, with the margin.
const CALL_MS: u64 = 30;
const WINDOW: KeyWindow = KeyWindow { safe_for_ms: Some(1_000), call_ms: CALL_MS };
const NOW: StoreTime = StoreTime(1_000);
const MINE: Owner = Owner::from_bytes([1; 16]);
const OTHER: Owner = Owner::from_bytes([2; 16]);
const EPOCH: Epoch = Epoch(7);
const FRESH: Epoch = Epoch(8);

fn asked(digest: u8, recipe: u64) -> Fingerprint {
    Fingerprint::from_parts([digest; 32], recipe)
}

fn head(state: State, effect: Effect, lapsed: bool, expired: bool) -> Head {
    let lease_until = if lapsed { NOW } else { NOW.plus_ms(1) };
    let expires_at = state.is_finished().then(|| if expired { NOW } else { NOW.plus_ms(1) });
    let (fingerprint, owner, epoch) = (asked(1, 1), MINE, EPOCH);
    Head { state, effect, fingerprint, owner, epoch, lease_until, expires_at, safe_until: None }
}

/// A keyed one whose key protects until then.
fn guarded(state: State, lapsed: bool, safe_until: StoreTime) -> Head {
    Head { expires_at: None, safe_until: Some(safe_until), ..head(state, Effect::Keyed, lapsed, false) }
}

/// Every situation a record can be in.
fn situations() -> Vec<(String, Option<Head>)> {
    let mut all = vec![("absent".to_owned(), None)];
    for effect in Effect::ALL {
        for (age, lapsed) in [("live", false), ("lapsed", true)] {
            all.push((
                format!("in_progress {effect} {age}"),
                Some(head(State::InProgress, effect, lapsed, false)),
            ));
        }
    }
    all.push(("uncertain".to_owned(), Some(head(State::Uncertain, Effect::Opaque, true, false))));
    all.push((
        "failed_retryable keyed".to_owned(),
        Some(head(State::FailedRetryable, Effect::Keyed, true, false)),
    ));
    let decided = Head { owner: Owner::NONE, ..head(State::FailedRetryable, Effect::Keyed, true, false) };
    all.push(("failed_retryable decided".to_owned(), Some(decided)));
    let keys = [("safe", NOW.plus_ms(CALL_MS + 1)), ("old", NOW.plus_ms(CALL_MS)), ("forgotten", NOW)];
    for (key, safe_until) in keys {
        for (age, lapsed) in [("live", false), ("lapsed", true)] {
            let open = guarded(State::InProgress, lapsed, safe_until);
            all.push((format!("in_progress keyed {age}, key {key}"), Some(open)));
        }
        for state in [State::Uncertain, State::FailedRetryable] {
            all.push((
                format!("{} keyed, key {key}", state.as_str()),
                Some(guarded(state, true, safe_until)),
            ));
        }
    }
    for state in [State::Completed, State::FailedFinal, State::FailedRetryable] {
        for (age, expired) in [("live", false), ("expired", true)] {
            all.push((format!("{} {age}", state.as_str()), Some(head(state, Effect::Opaque, true, expired))));
        }
    }
    all
}

/// Every event that can happen to it.
fn events() -> Vec<(&'static str, StepEvent)> {
    let claim = |owner, digest, recipe, effect| StepEvent::Claim {
        fingerprint: asked(digest, recipe),
        owner,
        effect,
        lease_ms: LEASE_MS,
        window: WINDOW,
        fresh: FRESH,
    };
    let finish =
        |owner, epoch, verdict| StepEvent::Finish { owner, epoch, verdict, retention: Retention::Ms(50) };
    let decide =
        |seen, ruling| StepEvent::Decide { seen, ruling, retention: Retention::Forever, fresh: FRESH };
    let renew = |owner, epoch| StepEvent::Renew { owner, epoch, lease_ms: LEASE_MS };
    vec![
        ("claim opaque", claim(OTHER, 1, 1, Effect::Opaque)),
        ("claim keyed", claim(OTHER, 1, 1, Effect::Keyed)),
        ("claim again", claim(MINE, 1, 1, Effect::Opaque)),
        ("claim differs", claim(OTHER, 2, 1, Effect::Keyed)),
        ("claim recipe", claim(OTHER, 2, 2, Effect::Opaque)),
        ("renew", renew(MINE, EPOCH)),
        ("renew other", renew(OTHER, EPOCH)),
        ("renew old", renew(MINE, Epoch(6))),
        ("finish ok", finish(MINE, EPOCH, Verdict::Completed)),
        ("finish unknown", finish(MINE, EPOCH, Verdict::Uncertain)),
        ("finish other", finish(OTHER, EPOCH, Verdict::Completed)),
        ("finish old", finish(MINE, Epoch(6), Verdict::Completed)),
        ("applied", decide(EPOCH, Ruling::Applied(Verdict::Completed))),
        ("not applied", decide(EPOCH, Ruling::NotApplied)),
        ("release", decide(EPOCH, Ruling::Release)),
        ("decide old", decide(Epoch(6), Ruling::NotApplied)),
        ("sweep", StepEvent::Sweep),
    ]
}

fn describe(step: &Step) -> String {
    let recipe = if step.other_recipe { " recipe" } else { "" };
    let change = match step.change {
        Change::None => String::new(),
        Change::Remove => " → absent".to_owned(),
        Change::Put(head) => {
            let safe = head.safe_until.map(|until| format!(" safe +{}", until.since_ms(NOW)));
            format!(" → {}@{}{}", head.state.as_str(), head.epoch.0, safe.unwrap_or_default())
        }
    };
    format!("{:?}{change}{recipe}", step.answer)
}

/// The whole function, a line per situation × event that does not simply change nothing, to be read by eye.
#[test]
fn every_state_times_event() {
    let mut out = String::new();
    for (situation, head) in situations() {
        out += &format!("{situation}\n");
        for (name, event) in events() {
            out += &format!("    {name:<15} {}\n", describe(&step(head.as_ref(), &event, NOW)));
        }
    }
    assert_eq!(out, include_str!("state_table.txt"), "the table has changed:\n{out}");
}

#[test]
fn a_lease_and_an_expiry_end_at_their_moment_not_after_it() {
    let live = head(State::InProgress, Effect::Opaque, false, false);
    assert_eq!(live.state_at(NOW), Some(State::InProgress));
    assert_eq!(live.state_at(NOW.plus_ms(1)), Some(State::Uncertain));
    let done = head(State::Completed, Effect::Opaque, true, false);
    assert_eq!(done.state_at(NOW), Some(State::Completed));
    assert_eq!(done.state_at(NOW.plus_ms(1)), None);
}

#[test]
fn a_lease_that_ends_later_than_any_may_has_lapsed() {
    let open = head(State::InProgress, Effect::Opaque, false, false);
    let until = |ms: u64| Head { lease_until: NOW.plus_ms(ms), ..open };
    assert_eq!(until(LEASE_MS_MAX).state_at(NOW), Some(State::InProgress));
    assert_eq!(until(LEASE_MS_MAX + 1).state_at(NOW), Some(State::Uncertain));
    // The clock gets there, and it is a lease like any other.
    assert_eq!(until(LEASE_MS_MAX + 1).state_at(NOW.plus_ms(1)), Some(State::InProgress));
}

#[test]
fn epochs_go_up_even_when_the_stores_source_of_them_goes_back() {
    let done = head(State::FailedRetryable, Effect::Opaque, true, false);
    let StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, .. } = events()[0].1 else {
        panic!("a claim")
    };
    let event = StepEvent::Claim { fingerprint, owner, effect, lease_ms, window, fresh: Epoch(3) };
    let Change::Put(next) = step(Some(&done), &event, NOW).change else { panic!("taken") };
    assert_eq!(next.epoch, Epoch(8));
}

#[test]
fn a_key_is_forgotten_at_its_moment_and_nothing_of_it_expires() {
    let until = NOW.plus_ms(50);
    for (held, before) in [
        (guarded(State::InProgress, true, until), State::InProgress),
        (guarded(State::FailedRetryable, true, until), State::FailedRetryable),
    ] {
        assert_eq!(held.state_at(NOW.plus_ms(49)), Some(before));
        assert_eq!(held.state_at(until), Some(State::Uncertain));
        assert_eq!(held.state_at(StoreTime(u64::MAX)), Some(State::Uncertain));
        assert!(!held.is_guard_expired(NOW.plus_ms(19), CALL_MS));
        assert!(held.is_guard_expired(NOW.plus_ms(20), CALL_MS));
    }
    // Also where an expiry was stored.
    let stored = Head { expires_at: Some(NOW), ..guarded(State::FailedRetryable, true, until) };
    assert_eq!(stored.state_at(until), Some(State::Uncertain));
    // An owner that works is not refused anything.
    assert!(!guarded(State::InProgress, false, NOW).is_guard_expired(NOW, CALL_MS));
}

/// One thing a random world does. Owners hold the epochs they were given; some act long after.
#[derive(Clone, Debug)]
enum Act {
    Wait(u64),
    Claim { owner: u8, digest: u8, recipe: u8, effect: u8, safe_for_ms: Option<u64> },
    Renew { owner: u8 },
    Finish { owner: u8, verdict: u8 },
    Decide { ruling: u8 },
    Sweep,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0u64..160).prop_map(Act::Wait),
        6 => (0u8..4, 0u8..8, 0u8..8, 0u8..3, 0u64..600).prop_map(|(owner, digest, recipe, effect, ms)| {
            // Mostly the same request under the same recipe.
            let (digest, recipe) = (u8::from(digest == 0), u8::from(recipe == 0));
            Act::Claim { owner, digest, recipe, effect, safe_for_ms: (ms >= 200).then_some(ms) }
        }),
        2 => (0u8..4).prop_map(|owner| Act::Renew { owner }),
        4 => (0u8..4, 0u8..4).prop_map(|(owner, verdict)| Act::Finish { owner, verdict }),
        1 => (0u8..3).prop_map(|ruling| Act::Decide { ruling }),
        2 => Just(Act::Sweep),
    ];
    prop::collection::vec(act, 1..60)
}

/// What the world remembers beside the record, to judge the record by.
#[derive(Default)]
struct World {
    head: Option<Head>,
    now: StoreTime,
    source: u64,
    /// The claim each owner believes it has: attempts differ, so each claim is made under a new token.
    claims: [Option<(Owner, Epoch)>; 4],
    /// Epochs under which work was started, with what protected it; in order.
    runs: Vec<(Epoch, Effect)>,
    /// A decision or a known not-applied outcome since the last run.
    cleared: bool,
    completed_until: Option<Option<StoreTime>>,
    /// Until when the key protects, since the first attempt that is not settled.
    key_until: Option<StoreTime>,
    tokens: u8,
}

impl World {
    fn apply(&mut self, event: StepEvent) -> Step {
        let before = self.head;
        let step = step(before.as_ref(), &event, self.now);
        match step.change {
            Change::None => {}
            Change::Put(head) => self.head = Some(head),
            Change::Remove => self.head = None,
        }
        if let (Some(before), Change::Remove) = (before, step.change) {
            assert!(before.state.is_finished(), "swept {:?}", before.state);
        }
        if let (Some(before), Some(after)) = (before, self.head) {
            assert!(after.epoch >= before.epoch, "the epoch went back");
            let finished_after_all = after.state != State::InProgress || after.owner == before.owner;
            assert!(after.epoch > before.epoch || finished_after_all, "two owners under one epoch");
        }
        step
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Wait(ms) => self.now = self.now.plus_ms(ms),
            Act::Claim { owner, digest, recipe, effect, safe_for_ms } => {
                self.claim(owner, (digest, recipe), effect, safe_for_ms);
            }
            Act::Renew { owner } => {
                if let Some((token, epoch)) = self.claims[owner as usize] {
                    let lapsed = self.head.is_none_or(|head| head.is_lapsed(self.now) || head.epoch != epoch);
                    let step = self.apply(StepEvent::Renew { owner: token, epoch, lease_ms: LEASE_MS });
                    assert!(
                        !(lapsed && step.answer == StepAnswer::Done),
                        "a lapsed or lost claim was renewed"
                    );
                }
            }
            Act::Finish { owner, verdict } => self.finish(owner, Verdict::ALL[verdict as usize]),
            Act::Decide { ruling } => self.decide(ruling),
            Act::Sweep => {
                self.apply(StepEvent::Sweep);
            }
        }
    }

    fn claim(&mut self, owner: u8, (digest, recipe): (u8, u8), effect: u8, safe_for_ms: Option<u64>) {
        self.source += 1;
        self.tokens += 1;
        let effect = Effect::ALL[effect as usize];
        let token = Owner::from_bytes([self.tokens; 16]);
        let (before, now) = (self.head, self.now);
        let fingerprint = asked(digest, u64::from(recipe));
        let (fresh, lease_ms) = (Epoch(self.source), LEASE_MS);
        let window = KeyWindow { safe_for_ms, call_ms: CALL_MS };
        let step =
            self.apply(StepEvent::Claim { fingerprint, owner: token, effect, lease_ms, window, fresh });
        if step.answer == StepAnswer::Mismatch {
            assert_eq!(self.head, before, "a mismatch changed something");
        }
        if step.answer != StepAnswer::Run {
            return;
        }
        let head = self.head.unwrap();
        let untouched = before.and_then(|before| before.state_at(now).map(|_| before)).is_none_or(|before| {
            before.state == State::FailedRetryable
                && (before.owner == Owner::NONE || before.effect == Effect::Opaque)
                && (before.safe_until.is_none() || effect == Effect::Opaque)
        });
        if untouched {
            self.key_until = if effect == Effect::Keyed { window.begun(now) } else { None };
        }
        assert_eq!(head.safe_until, self.key_until, "the time of the key has moved");
        assert!(
            self.key_until.is_none_or(|until| untouched || now.plus_ms(CALL_MS) < until),
            "began too late"
        );
        assert!(self.runs.iter().all(|(epoch, _)| *epoch < head.epoch), "an epoch was used twice");
        if let Some(until) = self.completed_until {
            assert!(until.is_some_and(|until| until <= now), "ran again inside retention");
            self.completed_until = None;
            self.cleared = true;
        }
        if let Some((_, last)) = self.runs.last() {
            let safe = last.may_rerun() && effect.may_rerun();
            assert!(self.cleared || safe, "an effect was started twice without a decision");
        }
        self.cleared = false;
        self.runs.push((head.epoch, effect));
        self.claims[owner as usize] = Some((token, head.epoch));
    }

    fn finish(&mut self, owner: u8, verdict: Verdict) {
        let Some((token, epoch)) = self.claims[owner as usize] else { return };
        let open = self.head.is_some_and(|head| head.epoch == epoch && !head.state.is_finished());
        let event = StepEvent::Finish { owner: token, epoch, verdict, retention: Retention::Ms(200) };
        let step = self.apply(event);
        let head = self.head;
        if open {
            assert_ne!(step.answer, StepAnswer::Stale, "the last owner's late outcome was refused");
        }
        if step.answer == StepAnswer::Done {
            let head = head.unwrap();
            let expires = head.state.is_finished() && head.safe_until.is_none();
            assert!(expires == head.expires_at.is_some(), "only finished ones expire");
            match head.state {
                State::Completed | State::FailedFinal => self.completed_until = Some(head.expires_at),
                State::FailedRetryable => self.cleared = true,
                _ => {}
            }
        }
    }

    fn decide(&mut self, ruling: u8) {
        let Some(head) = self.head else { return };
        let ruling =
            [Ruling::Applied(Verdict::Completed), Ruling::NotApplied, Ruling::Release][ruling as usize];
        let live = head.state == State::InProgress && !head.is_lapsed(self.now);
        self.source += 1;
        let (seen, fresh) = (head.epoch, Epoch(self.source));
        let step = self.apply(StepEvent::Decide { seen, ruling, retention: Retention::Ms(200), fresh });
        if step.answer == StepAnswer::Done {
            assert!(!live, "decided over a live owner");
            assert_eq!(self.head.unwrap().owner, Owner::NONE, "a decision has no owner");
            self.cleared = self.head.unwrap().state == State::FailedRetryable;
            self.completed_until = (!self.cleared).then(|| self.head.unwrap().expires_at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_sequence_of_events_breaks_a_law(acts in acts()) {
        let mut world = World::default();
        for act in &acts {
            world.act(act);
        }
        if let Some(head) = world.head {
            let far = StoreTime(u64::MAX);
            let expires = head.state_at(far).is_none();
            let finished = head.state.is_finished() && head.safe_until.is_none();
            prop_assert_eq!(expires, finished, "in_progress and uncertain never expire");
        }
    }
}
