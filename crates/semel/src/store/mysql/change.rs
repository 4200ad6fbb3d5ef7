//! Outcomes, renewals and decisions: rows are locked, decided by the code all stores share, then written.

use super::literal::{self, Template, template};
use super::row;
use super::server::Server;
use super::session::Session;
use crate::intent::identity::{Epoch, IntentId};
use crate::intent::policy::{Retention, StoreTime};
use crate::intent::state::{Change, Head, State, StepAnswer, StepEvent, step};
use crate::store::coalesce::Failure;
use crate::store::command::{Ask, Finishing};
use crate::store::encoding;
use crate::store::{Decide, Decided, Decision, Finished, Renewed, StoreError, Ticket};

static FINISH: Template = template!("sql/finish.sql");
static FINISH_ONE: Template = template!("sql/finish_one.sql");
static RENEW: Template = template!("sql/renew.sql");
static DECIDE: Template = template!("sql/decide.sql");

/// Bytes of outcomes in one statement. Far below what any server accepts in one packet.
const FINISH_BYTES: usize = 1 << 20;

impl Server {
    pub(super) async fn finish_all(
        &self,
        session: &mut Session,
        asks: &mut [Ask<Finishing, Finished>],
    ) -> Result<(), Failure> {
        if let [ask] = asks
            && ask.attempts == 0
            && self.finish_one(session, &ask.request).await?
        {
            ask.answer = Some(Ok(Finished::Recorded));
            return Ok(());
        }
        let wanted: Vec<IntentId> = asks.iter().map(|ask| ask.request.ticket.id).collect();
        let Some(locked) = self.lock(session, &wanted, false).await? else { return Ok(()) };
        let (mut statements, mut rows) = (Vec::new(), String::new());
        let mut answers = Vec::with_capacity(asks.len());
        for ask in &*asks {
            let Finishing { ticket, verdict, retention, outcome } = &ask.request;
            let event = StepEvent::Finish {
                owner: ticket.owner,
                epoch: ticket.epoch,
                verdict: *verdict,
                retention: *retention,
            };
            let before = match locked.rows.get(&ticket.id).map(row::head) {
                Some(Ok(before)) => before,
                Some(Err(error)) => {
                    answers.push(Some(Err(self.unreadable(&error))));
                    continue;
                }
                None => {
                    answers
                        .push((!locked.locked_elsewhere.contains(&ticket.id)).then_some(Ok(Finished::Stale)));
                    continue;
                }
            };
            let step = step(Some(&before), &event, locked.now);
            if let Change::Put(head) = step.change {
                finish_row(&mut rows, &ticket.id, &head, locked.now, outcome.as_deref());
                if rows.len() > FINISH_BYTES {
                    statements.push(FINISH.fill(&[("outcomes", &std::mem::take(&mut rows))]));
                }
            }
            answers.push(Some(Ok(Finished::new(step.answer, *verdict, before.state))));
        }
        if !rows.is_empty() {
            statements.push(FINISH.fill(&[("outcomes", &rows)]));
        }
        self.commit(session, statements).await?;
        set_answers(asks, answers);
        Ok(())
    }

    /// The usual outcome of a lone caller, in one round trip. Returns whether it was recorded; if not, nothing changed.
    async fn finish_one(&self, session: &mut Session, finishing: &Finishing) -> Result<bool, Failure> {
        let Finishing { ticket, verdict, retention, outcome } = finishing;
        let state = State::from(*verdict);
        let expires_at = match retention {
            Retention::Ms(ms) if state.is_finished() => format!("{} + {}", self.clock, encoding::number(*ms)),
            _ => "NULL".to_owned(),
        };
        let sql = FINISH_ONE.fill(&[
            ("id", &literal::bytes(ticket.id.as_bytes())),
            ("owner", &literal::bytes(ticket.owner.as_bytes())),
            ("epoch", &encoding::number(ticket.epoch.0).to_string()),
            ("state", &encoding::state_code(state).to_string()),
            ("expires_at", &expires_at),
            ("outcome", &literal::bytes_or_null(outcome.as_deref())),
            ("clock", &self.clock),
        ]);
        match session.run(sql).await {
            Ok(brought) => Ok(brought.first().is_some_and(|brought| brought.matched > 0)),
            // Another transaction has the row locked: tried again without waiting for it.
            Err(failed) if failed.error.is_lock() => Ok(false),
            Err(failed) => Err(self.failure(&failed, Some(0))),
        }
    }

    pub(super) async fn renew_all(
        &self,
        session: &mut Session,
        asks: &mut [Ask<(Ticket, u64), Renewed>],
    ) -> Result<(), Failure> {
        let wanted: Vec<IntentId> = asks.iter().map(|ask| ask.request.0.id).collect();
        let Some(locked) = self.lock(session, &wanted, false).await? else { return Ok(()) };
        let mut rows = String::new();
        let mut answers = Vec::with_capacity(asks.len());
        for ask in &*asks {
            let (ticket, lease_ms) = &ask.request;
            let event = StepEvent::Renew { owner: ticket.owner, epoch: ticket.epoch, lease_ms: *lease_ms };
            let before = match locked.rows.get(&ticket.id).map(row::head) {
                Some(Ok(before)) => before,
                Some(Err(error)) => {
                    answers.push(Some(Err(self.unreadable(&error))));
                    continue;
                }
                None => {
                    answers
                        .push((!locked.locked_elsewhere.contains(&ticket.id)).then_some(Ok(Renewed::Stale)));
                    continue;
                }
            };
            answers.push(Some(Ok(match step(Some(&before), &event, locked.now).change {
                Change::Put(head) => {
                    let until = encoding::number(head.lease_until.0).to_string();
                    literal::push_row(
                        &mut rows,
                        &[("id", &literal::bytes(ticket.id.as_bytes())), ("lease_until", &until)],
                    );
                    Renewed::Until(head.lease_until)
                }
                _ => Renewed::Stale,
            })));
        }
        let statements = if rows.is_empty() { Vec::new() } else { vec![RENEW.fill(&[("renewed", &rows)])] };
        self.commit(session, statements).await?;
        set_answers(asks, answers);
        Ok(())
    }

    pub(super) async fn decide_all(
        &self,
        session: &mut Session,
        asks: &mut [Ask<(IntentId, Decide), Decided>],
    ) -> Result<(), Failure> {
        let wanted: Vec<IntentId> = asks.iter().map(|ask| ask.request.0).collect();
        let Some(locked) = self.lock(session, &wanted, true).await? else { return Ok(()) };
        let mut statements = Vec::new();
        let mut answers = Vec::with_capacity(asks.len());
        for (index, ask) in asks.iter().enumerate() {
            let (id, decide) = &ask.request;
            let before = match locked.rows.get(id).map(row::head) {
                Some(Ok(before)) => before,
                Some(Err(error)) => {
                    answers.push(Some(Err(self.unreadable(&error))));
                    continue;
                }
                None => {
                    answers.push((!locked.locked_elsewhere.contains(id)).then_some(Ok(Decided::Stale)));
                    continue;
                }
            };
            let event = StepEvent::Decide {
                seen: decide.seen,
                ruling: decide.ruling,
                retention: decide.retention,
                fresh: Epoch(locked.fresh.0 + index as u64),
            };
            let step = step(Some(&before), &event, locked.now);
            if let Change::Put(head) = step.change {
                statements.push(decided(id, &head, decide, locked.now));
            }
            answers.push(Some(Ok(match step.answer {
                StepAnswer::Done => Decided::Recorded,
                StepAnswer::Refused => Decided::Refused(before.state_at(locked.now).unwrap_or(before.state)),
                _ => Decided::Stale,
            })));
        }
        self.commit(session, statements).await?;
        set_answers(asks, answers);
        Ok(())
    }
}

/// Requests without an answer found their row locked, and are retried.
fn set_answers<Q, A>(asks: &mut [Ask<Q, A>], answers: Vec<Option<Result<A, StoreError>>>) {
    for (ask, answer) in asks.iter_mut().zip(answers) {
        ask.answer = answer;
    }
}

fn finish_row(rows: &mut String, id: &IntentId, head: &Head, now: StoreTime, outcome: Option<&[u8]>) {
    let codes = encoding::Codes::of(head);
    literal::push_row(
        rows,
        &[
            ("id", &literal::bytes(id.as_bytes())),
            ("state", &codes.state.to_string()),
            ("effect", &codes.effect.to_string()),
            ("changed_at", &encoding::number(now.0).to_string()),
            ("expires_at", &literal::number_or_null(codes.expires_at)),
            ("outcome", &literal::bytes_or_null(outcome)),
        ],
    );
}

fn decided(id: &IntentId, head: &Head, decide: &Decide, now: StoreTime) -> String {
    let decision = encoding::decision_text(&Decision::new(decide, now));
    let outcome = decide.outcome.as_ref().map(crate::intent::outcome::Outcome::encode);
    let codes = encoding::Codes::of(head);
    DECIDE.fill(&[
        ("id", &literal::bytes(id.as_bytes())),
        ("state", &codes.state.to_string()),
        ("effect", &codes.effect.to_string()),
        ("epoch", &encoding::number(head.epoch.0).to_string()),
        ("owner", &literal::bytes(head.owner.as_bytes())),
        ("changed_at", &encoding::number(now.0).to_string()),
        ("expires_at", &literal::number_or_null(codes.expires_at)),
        ("decision", &literal::text(&decision)),
        ("outcome", &literal::bytes_or_null(outcome.as_deref())),
    ])
}
