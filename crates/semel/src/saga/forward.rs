//! Forward: the saga's code runs, and finished steps answer from the journal.
//!
//! The code only asks. Its steps are called here, beside it, so that all beginnings of parallel steps are one commit,
//! and so that a step goes on to its end when the code drops the future that waited for it.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::call::{Made, Purpose, Target, text};
use super::definition::{CodeEnd, CodeError};
use super::entry::{Entry, EntryKind, NewEntry, Op, Safe, StepId};
use super::handle::{Ask, Asks, Reply, Wanted};
use super::history::{Known, LOOKUP_ATTEMPT, Next, first};
use super::journal::{BODY_BYTES_MAX, ENTRIES_MAX};
use super::run::{Going, Left, Stop, Work, earlier, entry};
use super::state::{ParkReason, UndoCause};
use super::step::{AnyStep, Calling, Calls, Undoing};
use crate::intent::policy::StoreTime;
use crate::outbox::Event;

/// What the code, or a call, did.
enum Seen {
    Asked,
    Called(Box<Made>),
    /// The code waits for what it asked for, and nothing is under way.
    Idle,
    /// There is something to write, and calls are under way.
    Pending,
    Ended(std::thread::Result<CodeEnd>),
}

/// What the code asked for and has no answer to.
struct Open {
    ask: Ask,
    /// It is being called.
    running: bool,
}

/// What one open ask needs.
enum Need {
    /// It has its answer.
    Answered(Reply),
    /// This entry, which answers it or says until when it waits.
    Note(NewEntry),
    /// An attempt.
    Begin {
        op: Op,
        input: Bytes,
        attempt: u32,
        safe: Safe,
    },
    /// An attempt of an atomic step.
    Atomic {
        op: Op,
        input: Bytes,
        attempt: u32,
    },
    /// A lookup.
    LookUp {
        op: Op,
        input: Bytes,
    },
    Wait(Option<StoreTime>),
    Park(ParkReason, Option<StoreTime>, String),
}

impl<App: Send + Sync + ?Sized + 'static> Work<App> {
    pub(super) async fn forward(&mut self) -> Going<Left> {
        let asks = Asks::new(self.record.intent.clone(), self.record.version);
        let code = self.definition.run(&asks, Arc::clone(&self.engine.app), &self.record.input);
        let mut code = AssertUnwindSafe(code).catch_unwind();
        let mut calls: FuturesUnordered<Calling<Made>> = FuturesUnordered::new();
        let mut open: Vec<Open> = Vec::new();
        let mut asked: BTreeSet<StepId> = BTreeSet::new();
        let ended = loop {
            let seen = poll_fn(|cx| {
                if let Poll::Ready(end) = code.poll_unpin(cx) {
                    return Poll::Ready(Seen::Ended(end));
                }
                if asks.has_new() {
                    return Poll::Ready(Seen::Asked);
                }
                if let Poll::Ready(Some(made)) = calls.poll_next_unpin(cx) {
                    return Poll::Ready(Seen::Called(Box::new(made)));
                }
                // One answer after the other, and the code goes on in between.
                if self.next_answer(&open).is_some() {
                    return Poll::Ready(Seen::Idle);
                }
                let waits = !open.is_empty() || asks.wrong().is_some();
                match (waits && calls.is_empty(), self.pending.is_empty()) {
                    (true, _) => Poll::Ready(Seen::Idle),
                    // What is known does not wait for other calls.
                    (false, false) => Poll::Ready(Seen::Pending),
                    (false, true) => Poll::Pending,
                }
            })
            .await;
            match seen {
                Seen::Ended(end) => break end,
                Seen::Called(made) => {
                    self.called(&mut open, *made).await?;
                }
                Seen::Asked => {
                    let new = asks.take();
                    asked.extend(new.iter().map(|ask| ask.step.clone()));
                    open.extend(new.into_iter().map(|ask| Open { ask, running: false }));
                }
                Seen::Idle => {}
                Seen::Pending => {
                    self.write().await?;
                }
            }
            if let Some(why) = asks.wrong() {
                self.finish_calls(&mut calls).await?;
                return Err(self.park(ParkReason::Changed, None, &why).await);
            }
            // When something is answered the code goes on first: it may ask for more.
            while !self.answer(&mut open) && self.advance(&mut open, &asked, &mut calls).await? {}
        };
        self.finish_calls(&mut calls).await?;
        self.code_ended(ended, &asked, asks.events()).await
    }

    /// The open ask that is answered next: in the order of the journal, so that parallel branches go on in the order in
    /// which they did before.
    fn next_answer(&self, open: &[Open]) -> Option<usize> {
        let waiting = open.iter().enumerate().filter(|(_, one)| !one.running);
        let answered = waiting.filter(|(_, one)| matches!(self.need(&one.ask), Need::Answered(_)));
        answered.min_by_key(|(_, one)| self.answered_at(&one.ask)).map(|(at, _)| at)
    }

    /// The number of the entry that answers it.
    fn answered_at(&self, ask: &Ask) -> u32 {
        match &ask.wanted {
            Wanted::Step { .. } => {
                self.history.progress(&ask.step, false).map_or(u32::MAX, |known| known.last)
            }
            Wanted::Sleep { .. } | Wanted::Signal { .. } => {
                self.waited(&ask.step).map_or(u32::MAX, |entry| entry.seq)
            }
        }
    }

    /// The entry that ended a sleep, or a wait for a signal.
    fn waited(&self, step: &StepId) -> Option<&Entry> {
        let ends = [EntryKind::Signal, EntryKind::TimedOut];
        self.history.entries().iter().find(|entry| entry.step == *step && ends.contains(&entry.kind))
    }

    /// Answers the next ask that has an answer. Returns whether there was one.
    fn answer(&self, open: &mut Vec<Open>) -> bool {
        let Some(next) = self.next_answer(open) else { return false };
        let answered = open.remove(next);
        if let Need::Answered(reply) = self.need(&answered.ask) {
            self.count_suppressed(&answered.ask, &reply);
            // The code may have dropped it meanwhile.
            let _ = answered.ask.reply.send(reply);
        }
        true
    }

    /// A step that another worker has done is not called again.
    fn count_suppressed(&self, ask: &Ask, reply: &Reply) {
        if !self.taken_over || !matches!((&ask.wanted, reply), (Wanted::Step { .. }, Reply::Done(_))) {
            return;
        }
        let done = self.history.entries().get(self.answered_at(ask) as usize);
        if done.is_some_and(|done| done.epoch < self.epoch) {
            self.engine.metrics.suppressed();
        }
    }

    /// The code has asked for all it can: begins what is new, or lets go of the saga. Returns whether the history has
    /// something new that answers.
    async fn advance(
        &mut self,
        open: &mut [Open],
        asked: &BTreeSet<StepId>,
        calls: &mut FuturesUnordered<Calling<Made>>,
    ) -> Going<bool> {
        if open.is_empty() {
            return Ok(false);
        }
        if let Some(why) = self.not_asked(asked) {
            self.finish_calls(calls).await?;
            return Err(self.park(ParkReason::Changed, None, &why).await);
        }
        if let Some((cause, why)) = self.cause_to_undo() {
            // What is under way is not cancelled.
            if calls.is_empty() {
                return Err(self.begin_undo(cause, why).await);
            }
            return Ok(false);
        }
        if self.engine.is_stopping() {
            if calls.is_empty() {
                let now = self.now();
                self.suspend(None, Some(now)).await?;
            }
            return Ok(false);
        }
        // With room left to settle and to undo what was begun.
        if self.history.next_seq() >= ENTRIES_MAX {
            self.finish_calls(calls).await?;
            return Err(self.park(ParkReason::TooLarge, None, "the journal has too many entries").await);
        }
        let (mut begins, mut wake, mut park, mut noted) = (Vec::new(), None::<StoreTime>, None, false);
        let mut atomic = None;
        // The step that has to wait for others of its kind.
        let mut full = None::<String>;
        for one in open.iter_mut().filter(|one| !one.running) {
            match self.need(&one.ask) {
                Need::Answered(_) => noted = true,
                Need::Note(entry) => {
                    self.note(entry);
                    noted = true;
                }
                Need::Atomic { .. } if atomic.is_some() => {}
                Need::Atomic { op, input, attempt } => match self.enter(&one.ask.step.name) {
                    Some(permit) => {
                        atomic = Some((self.target(&one.ask.step, op, attempt, input), permit));
                    }
                    None => full = Some(one.ask.step.name.clone()),
                },
                Need::Begin { op, input, attempt, safe } => match self.enter(&one.ask.step.name) {
                    Some(permit) => {
                        let target = self.target(&one.ask.step, op, attempt, input);
                        let begin = self.begin(&target, safe);
                        self.note(begin);
                        begins.push((target, Purpose::Run, permit));
                        one.running = true;
                    }
                    None => full = Some(one.ask.step.name.clone()),
                },
                Need::LookUp { op, input } => match self.enter(&one.ask.step.name) {
                    Some(permit) => {
                        self.count_expired(&one.ask.step, false);
                        let target = self.target(&one.ask.step, op, LOOKUP_ATTEMPT, input);
                        begins.push((target, Purpose::LookUp, permit));
                        one.running = true;
                    }
                    None => full = Some(one.ask.step.name.clone()),
                },
                Need::Wait(until) => wake = earlier(wake, until),
                Need::Park(reason, due, why) => {
                    if reason == ParkReason::GuardExpired {
                        self.count_expired(&one.ask.step, false);
                    }
                    park.get_or_insert((reason, due, why));
                }
            }
        }
        if !begins.is_empty() {
            let longest = begins.iter().map(|(target, ..)| target.limit).max().unwrap_or_default();
            self.lease_for(longest).await?;
            let in_time = self.write_in_time().await?;
            for (target, purpose, permit) in begins {
                if !in_time && matches!(purpose, Purpose::Run) {
                    self.note_not_sent(&target);
                    open.iter_mut()
                        .filter(|one| one.ask.step == target.step)
                        .for_each(|one| one.running = false);
                    noted = true;
                    continue;
                }
                let Some(handler) = self.definition.step(&target.step.name).cloned() else { continue };
                let Calls::Remote(remote) = handler.calls() else { continue };
                let call = self.call(remote, target, purpose);
                calls.push(Box::pin(async move {
                    let _permit = permit;
                    call.await
                }));
            }
        }
        // One after the other: the entries of a saga become durable in their order.
        if let Some((target, _permit)) = atomic {
            self.atomic_beside(target, open, calls).await?;
            return Ok(true);
        }
        if noted || !calls.is_empty() {
            return Ok(noted);
        }
        if let Some(step) = full {
            self.wait_to_enter(&step).await?;
            return Ok(true);
        }
        match park {
            Some((reason, due, why)) => {
                self.why = why;
                // With the time of what only waits: it goes on although something else is parked.
                self.suspend(Some(reason), earlier(due, wake)).await?;
            }
            None => {
                self.suspend(None, wake).await?;
            }
        }
        // Still ours: a signal came in between.
        Ok(true)
    }

    fn target(&self, step: &StepId, op: Op, attempt: u32, input: Bytes) -> Target {
        let handler = self.definition.step(&step.name);
        let limit = handler.map(|handler| handler.spec().timeout).unwrap_or_default();
        Target { step: step.clone(), op, attempt, input, limit }
    }

    /// What the ask needs, by the journal.
    fn need(&self, ask: &Ask) -> Need {
        match &ask.wanted {
            Wanted::Step { op, input } => self.need_of_step(&ask.step, *op, input),
            Wanted::Sleep { .. } if self.waited(&ask.step).is_some() => {
                Need::Answered(Reply::Done(Bytes::new()))
            }
            Wanted::Sleep { ms } => match self.wake_time(&ask.step) {
                None => self.begin_to_wait(&ask.step, *ms),
                // When it ended is an entry, too: what ran beside it goes on in the same order again.
                Some(until) if until <= self.now() => {
                    Need::Note(entry(EntryKind::TimedOut, &ask.step, Op::Forward, 1, None))
                }
                until => Need::Wait(until),
            },
            Wanted::Signal { timeout_ms } => self.need_of_signal(&ask.step, *timeout_ms),
        }
    }

    fn need_of_step(&self, step: &StepId, op: Op, input: &Bytes) -> Need {
        let Some(handler) = self.definition.step(&step.name) else {
            let why = format!("the step {} is not declared in the definition", step.name);
            return Need::Park(ParkReason::NoHandler, None, why);
        };
        let spec = handler.spec();
        let progress = self.history.progress(step, false);
        let Some(progress) = progress else { return begin(handler, first(spec), op, input) };
        if !is_same_input(&progress.input, input) || progress.is_pivot != (op == Op::Pivot) {
            let why = format!("the code asks for {step} with another input than the journal has");
            return Need::Park(ParkReason::Changed, None, why);
        }
        // A refusal of a step that began after the pivot cannot be answered: nothing can be undone any more.
        let past_pivot =
            op == Op::Forward && self.history.pivot_done().is_some_and(|done| done < progress.first);
        match (&progress.state, progress.next(spec, false, self.now())) {
            (Known::Done(result), _) => Need::Answered(Reply::Done(result.clone())),
            (Known::Refused(why), _) if past_pivot => stuck(step, why),
            (Known::Refused(why), _) => Need::Answered(Reply::Refused(why.clone())),
            (_, Next::GiveUp(why)) if past_pivot => stuck(step, &why),
            (_, Next::GiveUp(why)) => {
                let why = format!("failed {} times: {}", progress.tried, String::from_utf8_lossy(&why));
                Need::Note(entry(EntryKind::Refused, step, op, progress.attempts, Some(text(&why))))
            }
            (_, Next::Wait(until)) => Need::Wait(Some(until)),
            (_, Next::LookUp) => Need::LookUp { op, input: input.clone() },
            (_, Next::Park(reason, due)) => {
                let attempts = progress.attempts;
                Need::Park(reason, due, format!("what came of {step} is unknown (attempts: {attempts})"))
            }
            (_, next) => begin(handler, next, op, input),
        }
    }

    async fn called(&mut self, open: &mut [Open], made: Made) -> Going<()> {
        if let Some(open) = open.iter_mut().find(|open| open.ask.step == made.step) {
            open.running = false;
        }
        self.settle(made).await
    }

    /// An atomic step; meanwhile the calls under way go on.
    async fn atomic_beside(
        &mut self,
        target: Target,
        open: &mut [Open],
        calls: &mut FuturesUnordered<Calling<Made>>,
    ) -> Going<()> {
        let handler = self.definition.step(&target.step.name).cloned();
        let Some(handler) = handler else { return Ok(()) };
        let Calls::Atomic(handler) = handler.calls() else { return Ok(()) };
        let mut made = Vec::new();
        {
            let attempt = self.attempt_atomic(handler, target, None);
            let mut attempt = std::pin::pin!(attempt);
            loop {
                tokio::select! {
                    biased;
                    end = &mut attempt => break end?,
                    Some(call) = calls.next(), if !calls.is_empty() => made.push(call),
                }
            }
        }
        for made in made {
            self.called(open, made).await?;
        }
        Ok(())
    }

    fn need_of_signal(&self, step: &StepId, timeout_ms: Option<u64>) -> Need {
        let known = self.waited(step).map(|entry| match entry.kind {
            EntryKind::Signal => Reply::Done(entry.body.clone().unwrap_or_default()),
            _ => Reply::TimedOut,
        });
        if let Some(reply) = known {
            return Need::Answered(reply);
        }
        let name = step.name.rsplit('/').next().unwrap_or_default();
        if let Some(signal) = self.unseen_signal(name) {
            let input = Some(Bytes::copy_from_slice(signal.id.as_bytes()));
            let seen = entry(EntryKind::Signal, step, Op::Forward, 1, Some(signal.body.clone()));
            return Need::Note(NewEntry { input, ..seen });
        }
        match (timeout_ms, self.wake_time(step)) {
            (None, _) => Need::Wait(None),
            (Some(ms), None) => self.begin_to_wait(step, ms),
            (_, Some(until)) if until > self.now() => Need::Wait(Some(until)),
            _ => Need::Note(entry(EntryKind::TimedOut, step, Op::Forward, 1, None)),
        }
    }

    /// When the sleep, or the wait, is over.
    fn wake_time(&self, step: &StepId) -> Option<StoreTime> {
        let entries = self.history.entries().iter();
        let mut slept = entries.filter(|entry| entry.step == *step && entry.kind == EntryKind::Sleep);
        let body = slept.next()?.body.as_ref()?;
        std::str::from_utf8(body).ok()?.parse().ok().map(StoreTime)
    }

    fn begin_to_wait(&self, step: &StepId, ms: u64) -> Need {
        let body = Bytes::from(self.now().plus_ms(ms).0.to_string());
        Need::Note(entry(EntryKind::Sleep, step, Op::Forward, 1, Some(body)))
    }

    /// Something the journal has and the code has not asked for: the code is not the one that wrote it.
    fn not_asked(&self, asked: &BTreeSet<StepId>) -> Option<String> {
        let entries = self.history.entries().iter();
        let entries = entries.filter(|entry| entry.op != Op::Undo && entry.kind != EntryKind::Operator);
        let step = entries.map(|entry| &entry.step).find(|step| !asked.contains(step))?;
        Some(format!("the journal has {step}, and the code does not ask for it any more"))
    }

    /// Waits for the calls that are under way: their results are written down whatever the code makes of them.
    async fn finish_calls(&mut self, calls: &mut FuturesUnordered<Calling<Made>>) -> Going<()> {
        while let Some(made) = calls.next().await {
            self.settle(made).await?;
        }
        Ok(())
    }

    async fn code_ended(
        &mut self,
        end: std::thread::Result<CodeEnd>,
        asked: &BTreeSet<StepId>,
        events: Vec<Event>,
    ) -> Going<Left> {
        let Ok(end) = end else {
            return Err(self.park(ParkReason::Panicked, None, "the saga's code panicked").await);
        };
        if let Some(why) = self.not_asked(asked) {
            return Err(self.park(ParkReason::Changed, None, &why).await);
        }
        // Steps whose future the code dropped, and whose result is unknown.
        let open = |step: &&StepId| {
            let leaves =
                self.definition.step(&step.name).is_none_or(|step| step.undoing() != Undoing::Nothing);
            let progress = self.history.progress(step, false);
            progress.is_some_and(|known| match known.state {
                Known::Nothing => true,
                // Refused in the end, after an attempt that may have had an effect.
                Known::Failed(_) | Known::Refused(_) => known.perhaps && leaves,
                Known::Done(_) => false,
            })
        };
        let open_pivot = self.history.pivot().is_some_and(|pivot| pivot.state == Known::Nothing);
        let open = self.history.steps().iter().find(open).cloned();
        match (end, open) {
            (Ok(_), Some(step)) => {
                let why = format!("the code ended without the result of {step}, which it had begun");
                Err(self.park(ParkReason::UnknownResult, None, &why).await)
            }
            (Ok(_), None) if self.cancelled && self.may_still_be_undone() => {
                Err(self.begin_undo(UndoCause::Cancelled, "cancelled").await)
            }
            // What its steps came to is written all the same.
            (Ok(result), None) if result.len() > BODY_BYTES_MAX => {
                let why = format!("the saga's result has {} bytes, at most {BODY_BYTES_MAX}", result.len());
                Err(self.park(ParkReason::TooLarge, None, &why).await)
            }
            (Ok(result), None) => self.end(Some(result), events).await,
            (Err(CodeError::Refused(refused)), _) if self.history.pivot_done().is_some() => {
                let why = format!("the code refuses after the pivot: {}", refused.why);
                Err(self.park(ParkReason::ForwardStuck, None, &why).await)
            }
            (Err(CodeError::Refused(refused)), _) if open_pivot => {
                let why =
                    format!("the code refuses ({}), and the result of its pivot is unknown", refused.why);
                Err(self.park(ParkReason::UnknownResult, None, &why).await)
            }
            (Err(CodeError::Refused(refused)), _) => {
                Err(self.begin_undo(UndoCause::Refused, &refused.why).await)
            }
            (Err(CodeError::Unreadable(why)), _) => Err(self.park(ParkReason::Changed, None, &why).await),
        }
    }

    /// Waits until this worker's lease lasts longer than a call may take: no call outlives it.
    pub(super) async fn lease_for(&self, timeout: std::time::Duration) -> Going<()> {
        if self.engine.lease.lasts(self.worker, timeout).await { Ok(()) } else { Err(Stop::Left(Left::Lost)) }
    }
}

fn begin<App: ?Sized>(handler: &Arc<dyn AnyStep<App>>, next: Next, op: Op, input: &Bytes) -> Need {
    match next {
        Next::Attempt { attempt, .. } if matches!(Arc::clone(handler).calls(), Calls::Atomic(_)) => {
            Need::Atomic { op, input: input.clone(), attempt }
        }
        Next::Attempt { attempt, safe } => Need::Begin { op, input: input.clone(), attempt, safe },
        // Nothing else begins a step.
        _ => Need::Wait(None),
    }
}

/// The same input, however it is spelled: another version of the code may order its fields differently.
pub(super) fn is_same_input(one: &Bytes, other: &Bytes) -> bool {
    let value = |bytes: &Bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    one == other || value(one).is_some_and(|one| Some(one) == value(other))
}

fn stuck(step: &StepId, why: &Bytes) -> Need {
    let why = format!("{step} after the pivot: {}", String::from_utf8_lossy(why));
    Need::Park(ParkReason::ForwardStuck, None, why)
}
