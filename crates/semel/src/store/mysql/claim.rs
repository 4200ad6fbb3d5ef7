//! Claims: one packet for new and finished intents, a second one for takeovers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::error::MysqlError;
use super::literal::{self, Template, template};
use super::lock::Locked;
use super::row;
use super::server::{Server, ids};
use super::session::{Failed, Session};
use crate::intent::identity::{Epoch, IntentId};
use crate::intent::policy::StoreTime;
use crate::intent::state::{State, Step, StepAnswer, step};
use crate::store::coalesce::Failure;
use crate::store::command::Ask;
use crate::store::encoding::{self, safe_for_code};
use crate::store::locked_elsewhere::{about_now, in_flight};
use crate::store::record::on_claim;
use crate::store::{Claim, Claimed, ErrorKind, Fate, Record, StoreError};

static CLAIM: Template = template!("sql/claim.sql");
static RECLAIM: Template = template!("sql/reclaim.sql");
static PEEK: Template = template!("sql/peek.sql");

/// The number of the statement in claim.sql that commits.
const CLAIM_COMMITS: usize = 8;

/// How often a packet that met a lock or a deadlock is sent again unchanged.
const CONFLICTS_MAX: u32 = 5;
/// A conflict that took longer than this waited for a lock: the other requests should not wait again.
const CONFLICT_TIME: Duration = Duration::from_millis(200);

/// Tries after which a claim whose row is locked by an open transaction is answered "in flight".
const PEEK_AFTER_ATTEMPTS: u32 = 6;

pub(super) type ClaimAsk = Ask<Claim, Claimed>;

impl Server {
    pub(super) async fn claim_all(
        &self,
        session: &mut Session,
        asks: &mut [ClaimAsk],
    ) -> Result<(), Failure> {
        let again = self.claim_new(session, asks).await?;
        if !again.is_empty() {
            self.take_over_each(session, asks, &again).await;
        }
        self.peek(session, asks).await
    }

    /// The rest of the batch has committed, so a failure here is reported to these claims only. A bad claim fails
    /// alone: if nothing was applied, each is tried by itself.
    async fn take_over_each(&self, session: &mut Session, asks: &mut [ClaimAsk], again: &[usize]) {
        let Err(failure) = self.take_over(session, asks, again).await else { return };
        if failure.of_one && failure.fate == Fate::NotApplied && again.len() > 1 {
            for n in again {
                if let Err(failure) = self.take_over(session, asks, &[*n]).await {
                    refuse(&mut asks[*n], &failure);
                }
            }
            return;
        }
        again.iter().for_each(|n| refuse(&mut asks[*n], &failure));
    }

    /// Inserts new claims and answers those that existing rows decide. Returns the claims that may run although there
    /// is a row.
    async fn claim_new(&self, session: &mut Session, asks: &mut [ClaimAsk]) -> Result<Vec<usize>, Failure> {
        let sql = match self.claim_text(session, asks).await {
            Ok(sql) => sql,
            // Another transaction is inserting this operation's name: all are retried, and find it then.
            Err(failed) if failed.error.is_lock() => return Ok(Vec::new()),
            Err(failed) => return Err(self.failure(&failed, None)),
        };
        let mut conflicts = 0;
        let brought = loop {
            let begun = Instant::now();
            let failed = match session.run(sql.clone()).await {
                Ok(brought) => break brought,
                Err(failed) => failed,
            };
            session.roll_back().await;
            if failed.error.is_lock() {
                // A lone claim is retried, and then sees the row that was in the way. If it waited for a lock twice,
                // the lock is on a gap, not on a row, and its transaction may be running the intent.
                if let [ask] = &mut *asks {
                    if begun.elapsed() >= CONFLICT_TIME && ask.attempts > 0 {
                        let now = self.now(session).await.unwrap_or_else(|_| about_now());
                        ask.answer = Some(Ok(in_flight(&ask.request, now)));
                    }
                    return Ok(Vec::new());
                }
                // Lost a race since the read. The next read sees the winner, unless it is slow to commit.
                conflicts += 1;
                if conflicts < CONFLICTS_MAX && begun.elapsed() < CONFLICT_TIME {
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(200..4_000))).await;
                    continue;
                }
            }
            return Err(self.failure(&failed, Some(CLAIM_COMMITS)));
        };
        let rows = brought.into_iter().next_back().map(|brought| brought.rows).unwrap_or_default();
        let mut found = HashMap::with_capacity(rows.len());
        for row in rows {
            let id = row::record_id(&row).map_err(|error| error.failure(&self.name, Fate::InDoubt))?;
            found.insert(id, row);
        }
        let mut again = Vec::new();
        // The number each id had in the packet, which is the index of its epoch.
        let (mut k, mut last) = (0, None);
        for (n, ask) in asks.iter_mut().enumerate() {
            let claim = &ask.request;
            let id = claim.intent.id();
            let first = last != Some(id);
            k += u64::from(first && last.is_some());
            last = Some(id);
            let Some(row) = found.get(&id) else { continue };
            let read = || {
                let record = row::record(row, claim.intent.clone())?;
                Ok((record, row::now(row)?, row::first_epoch(row)?))
            };
            let (record, now, base) = match read() {
                Ok(read) => read,
                Err(error) => {
                    // Already committed. A row of another owner existed before; any other row may be this claim's.
                    let others = row::owner(row).is_ok_and(|owner| owner != claim.owner);
                    let fate = if others { Fate::NotApplied } else { Fate::InDoubt };
                    ask.answer = Some(Err(self.explain(&error, fate)));
                    continue;
                }
            };
            let mine = base.map(|base| Epoch(base.0 + k));
            if first && mine == Some(record.head.epoch) && record.head.owner == claim.owner {
                ask.answer = Some(Ok(Claimed::Run(record.ticket(false))));
                continue;
            }
            match on_claim(step, Some(&record), claim, Epoch(0), now) {
                (_, Some(_)) => again.push(n),
                (step, None) => ask.answer = Some(Ok(answer(&step, record, now))),
            }
        }
        Ok(again)
    }

    async fn claim_text(&self, session: &mut Session, asks: &[ClaimAsk]) -> Result<String, Failed> {
        let mut unique: Vec<IntentId> = Vec::with_capacity(asks.len());
        let mut asked = String::with_capacity(asks.len() * 512);
        for ask in asks {
            let claim = &ask.request;
            let id = claim.intent.id();
            if unique.last() == Some(&id) {
                continue;
            }
            let operation = self.operation(session, claim.intent.operation()).await?;
            let claimed = [
                ("id", literal::bytes(id.as_bytes())),
                ("k", unique.len().to_string()),
                ("effect", encoding::effect_code(claim.effect).to_string()),
                ("lease_ms", encoding::number(claim.lease_ms).to_string()),
                ("safe_for_ms", literal::number_or_null(safe_for_code(claim.effect, &claim.window))),
                ("now", self.clock.clone()),
                ("owner", literal::bytes(claim.owner.as_bytes())),
                ("recipe", encoding::recipe_code(&claim.fingerprint).to_string()),
                ("fingerprint", literal::bytes(claim.fingerprint.digest())),
                ("operation", operation.to_string()),
                ("scope", literal::text(claim.intent.scope().as_str())),
                ("`key`", literal::text(claim.intent.key().as_str())),
            ];
            literal::push_row(&mut asked, &claimed.each_ref().map(|(name, value)| (*name, value.as_str())));
            unique.push(id);
        }
        let count = unique.len().to_string();
        Ok(CLAIM.fill(&[
            ("ids", &ids(&unique)),
            ("count", &count),
            ("asked", &asked),
            ("clock", &self.clock),
        ]))
    }

    /// Takes over rows that may run again: expired, failed retryably, or protected with an expired lease.
    async fn take_over(
        &self,
        session: &mut Session,
        asks: &mut [ClaimAsk],
        again: &[usize],
    ) -> Result<(), Failure> {
        let mut wanted: Vec<IntentId> = again.iter().map(|n| asks[*n].request.intent.id()).collect();
        wanted.dedup();
        let Some(Locked { rows, now, fresh, .. }) = self.lock(session, &wanted, true).await? else {
            return Ok(());
        };
        let mut records: HashMap<IntentId, Record> = HashMap::new();
        let mut statements = Vec::new();
        let mut answers = Vec::new();
        for (index, n) in again.iter().enumerate() {
            let claim = &asks[*n].request;
            let id = claim.intent.id();
            let before = match (records.remove(&id), rows.get(&id)) {
                (Some(record), _) => record,
                (None, Some(row)) => match row::record(row, claim.intent.clone()) {
                    Ok(record) => record,
                    Err(error) => {
                        answers.push((*n, Err(self.unreadable(&error))));
                        continue;
                    }
                },
                // Locked, or deleted: it is retried.
                (None, None) => continue,
            };
            let fresh = Epoch(fresh.0 + index as u64);
            let (step, after) = on_claim(step, Some(&before), claim, fresh, now);
            answers.push((
                *n,
                Ok(match &after {
                    Some(record) => Claimed::Run(record.ticket(step.other_recipe)),
                    None => answer(&step, before.clone(), now),
                }),
            ));
            statements.extend(after.as_ref().map(reclaim));
            records.insert(id, after.unwrap_or(before));
        }
        self.commit(session, statements).await?;
        for (n, answer) in answers {
            asks[n].answer = Some(answer);
        }
        Ok(())
    }

    /// A claim that was retried often enough is locked by an open transaction: answered "in flight". What that
    /// transaction has written so far is read for this answer only; it may never be committed.
    async fn peek(&self, session: &mut Session, asks: &mut [ClaimAsk]) -> Result<(), Failure> {
        for ask in asks.iter_mut().filter(|ask| ask.answer.is_none() && ask.attempts >= PEEK_AFTER_ATTEMPTS) {
            let id = literal::bytes(ask.request.intent.id().as_bytes());
            let sql = PEEK.fill(&[("id", &id), ("clock", &self.clock)]);
            // If this fails, nothing of the batch is lost: the claim is retried.
            let Ok(brought) = session.run(sql).await else { return Ok(()) };
            let Some(row) = brought.last().and_then(|brought| brought.rows.first()) else { continue };
            let Ok(mut record) = row::record(row, ask.request.intent.clone()) else { continue };
            let Ok(now) = row::now(row) else { continue };
            if record.head.owner != ask.request.owner {
                record.head.state = State::InProgress;
                record.outcome = None;
                ask.answer = Some(Ok(Claimed::InFlight(record.existing(now, false))));
            }
        }
        Ok(())
    }

    /// A locked row that cannot be parsed concerns one request, and nothing is written to it.
    pub(super) fn unreadable(&self, error: &MysqlError) -> StoreError {
        self.explain(error, Fate::NotApplied)
    }
}

/// Answers a claim that could not be taken over. A claim that only met a lock gets no answer yet, and is retried.
fn refuse(ask: &mut ClaimAsk, failure: &Failure) {
    if failure.kind != ErrorKind::Busy || failure.fate != Fate::NotApplied {
        ask.answer = Some(Err(failure.error()));
    }
}

fn answer(step: &Step, record: Record, now: StoreTime) -> Claimed {
    match step.answer {
        StepAnswer::Run => Claimed::Run(record.ticket(step.other_recipe)),
        StepAnswer::InFlight => Claimed::InFlight(record.existing(now, step.other_recipe)),
        StepAnswer::Replay => Claimed::Replay(record.existing(now, step.other_recipe)),
        StepAnswer::Unknown => Claimed::Uncertain(record.existing(now, step.other_recipe)),
        _ => Claimed::Mismatch,
    }
}

fn reclaim(record: &Record) -> String {
    let (head, codes) = (&record.head, encoding::Codes::of(&record.head));
    let decision = record.decision.as_ref().map(encoding::decision_text);
    RECLAIM.fill(&[
        ("id", &literal::bytes(record.intent.id().as_bytes())),
        ("effect", &codes.effect.to_string()),
        ("expires_at", &literal::number_or_null(codes.expires_at)),
        ("epoch", &encoding::number(head.epoch.0).to_string()),
        ("attempts", &record.attempts.to_string()),
        ("lease_until", &encoding::number(head.lease_until.0).to_string()),
        ("created_at", &encoding::number(record.created_at.0).to_string()),
        ("changed_at", &encoding::number(record.changed_at.0).to_string()),
        ("owner", &literal::bytes(head.owner.as_bytes())),
        ("recipe", &encoding::recipe_code(&head.fingerprint).to_string()),
        ("fingerprint", &literal::bytes(head.fingerprint.digest())),
        ("decision", &literal::text_or_null(decision.as_deref())),
    ])
}
