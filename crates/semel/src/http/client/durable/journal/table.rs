//! The rows of the journal: insert, claim, answer and release.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, named_params, params};

use super::{Journal, ms, span};
use crate::intent::key::Key;
use crate::store::StoreError;
use crate::store::sqlite::error::{SqliteError, unreadable};

/// The sender of an intent: one round of attempts, not one process.
pub(in super::super) type Owner = [u8; 16];

/// The state of an intent in the journal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JournalState {
    /// It is being sent, or waits to be sent again.
    Open = 0,
    /// The server said that a retry does not help. It waits for a person.
    Held = 1,
    /// It had no answer before the server may have forgotten it. It waits for a person.
    Expired = 2,
    /// There is an answer.
    Answered = 3,
}

/// A request as it is stored.
pub(in super::super) struct Written {
    pub(in super::super) key: Key,
    pub(in super::super) method: String,
    pub(in super::super) uri: String,
    pub(in super::super) headers: Vec<u8>,
    pub(in super::super) identity: Vec<u8>,
    pub(in super::super) body: Bytes,
    /// How long it may be sent.
    pub(in super::super) sendable: Duration,
}

/// How many intents and answers the file may have, and the lease of a claim.
#[derive(Clone, Copy)]
pub(in super::super) struct JournalLimits {
    pub(in super::super) unfinished_max: u32,
    pub(in super::super) answered_max: u32,
    pub(in super::super) lease: Duration,
}

pub(in super::super) struct Answer {
    pub(in super::super) status: u16,
    pub(in super::super) headers: Vec<u8>,
    pub(in super::super) body: Option<Bytes>,
}

/// The result of writing an intent to the journal.
pub(in super::super) enum Begun {
    /// New; the caller sends it.
    New,
    /// It was there without an answer; the caller may send it for this long.
    Again {
        sendable: Duration,
    },
    Answered(Answer),
    Mismatch,
    Elsewhere {
        lease_left: Duration,
    },
    Expired,
    Full,
}

pub(in super::super) struct Claimed {
    pub(in super::super) seq: i64,
    pub(in super::super) key: String,
    pub(in super::super) sendable: Duration,
    pub(in super::super) method: String,
    pub(in super::super) uri: String,
    pub(in super::super) headers: Vec<u8>,
    pub(in super::super) body: Bytes,
}

pub(in super::super) struct Listed {
    pub(in super::super) key: String,
    pub(in super::super) state: JournalState,
    pub(in super::super) created_ms: i64,
    pub(in super::super) until_ms: i64,
    pub(in super::super) attempts: u32,
    pub(in super::super) claimed: bool,
    pub(in super::super) why: Option<String>,
    pub(in super::super) method: String,
    pub(in super::super) uri: String,
}

fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<JournalState> {
    match row.get(column)? {
        0 => Ok(JournalState::Open),
        1 => Ok(JournalState::Held),
        2 => Ok(JournalState::Expired),
        3 => Ok(JournalState::Answered),
        other => Err(unreadable(column, format!("{other} is not a state"))),
    }
}

impl Journal {
    pub(in super::super) async fn begin(
        &self,
        written: Written,
        owner: Owner,
        limits: JournalLimits,
    ) -> Result<Begun, StoreError> {
        self.commit(move |transaction, moment| {
            let now = moment.now_ms;
            let lease_until = now + ms(limits.lease);
            let found = transaction
                .prepare_cached(include_str!("find.sql"))?
                .query_row([written.key.as_str()], |row| {
                    let same = row.get_ref(3)?.as_str()? == written.method
                        && row.get_ref(4)?.as_str()? == written.uri
                        && row.get_ref(5)?.as_blob()? == written.identity
                        && row.get_ref(6)?.as_blob()? == written.body;
                    let (state, until, leased): (_, i64, i64) = (state(row, 0)?, row.get(1)?, row.get(2)?);
                    Ok(match state {
                        _ if !same => Begun::Mismatch,
                        JournalState::Answered => Begun::Answered(answer(row)?),
                        _ if leased > now => Begun::Elsewhere { lease_left: span(leased - now) },
                        _ if until <= now => Begun::Expired,
                        _ => Begun::Again { sendable: span(until - now) },
                    })
                })
                .optional()?;
            let key = written.key.as_str();
            match &found {
                None => {}
                Some(Begun::Again { .. }) => {
                    let mut claim = transaction.prepare_cached(include_str!("claim.sql"))?;
                    claim.execute(params![key, owner, lease_until, now])?;
                }
                Some(Begun::Expired) => expire(transaction, key, now)?,
                Some(_) => {}
            }
            if let Some(found) = found {
                return Ok(found);
            }
            let (unfinished, all): (u32, u32) = transaction.query_row(
                "SELECT (SELECT count(*) FROM intent INDEXED BY intent_unfinished WHERE state < 3), \
                 (SELECT count(*) FROM intent)",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            if unfinished >= limits.unfinished_max {
                return Ok(Begun::Full);
            }
            let too_many = i64::from(all - unfinished) - i64::from(limits.answered_max);
            transaction.prepare_cached(include_str!("evict.sql"))?.execute([too_many])?;
            transaction.prepare_cached(include_str!("insert.sql"))?.execute(params![
                key,
                now,
                now + ms(written.sendable),
                owner,
                lease_until,
                written.method,
                written.uri,
                written.headers,
                written.identity,
                &written.body[..],
            ])?;
            Ok(Begun::New)
        })
        .await
    }

    /// Claims the oldest unclaimed intent after `behind`. One that is too old is marked as expired and returned with
    /// `sendable` zero.
    pub(in super::super) async fn claim_next(
        &self,
        behind: i64,
        owner: Owner,
        lease: Duration,
    ) -> Result<Option<Claimed>, StoreError> {
        self.commit(move |transaction, moment| {
            let now = moment.now_ms;
            let mut next = transaction.prepare_cached(include_str!("claim_next.sql"))?;
            let claimed = next
                .query_row(params![now, behind, owner, now + ms(lease)], |row| {
                    let until: i64 = row.get(2)?;
                    Ok(Claimed {
                        seq: row.get(0)?,
                        key: row.get(1)?,
                        sendable: span(until.saturating_sub(now)),
                        method: row.get(3)?,
                        uri: row.get(4)?,
                        headers: row.get(5)?,
                        body: Bytes::from(row.get::<_, Vec<u8>>(6)?),
                    })
                })
                .optional()?;
            if let Some(claimed) = claimed.as_ref().filter(|claimed| claimed.sendable.is_zero()) {
                expire(transaction, &claimed.key, now)?;
            }
            Ok(claimed)
        })
        .await
    }

    pub(in super::super) async fn renew(
        &self,
        key: &Key,
        owner: Owner,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let key = key.as_str().to_owned();
        self.commit(move |transaction, moment| {
            let lease_until = moment.now_ms + ms(lease);
            let now = moment.now_ms;
            transaction.prepare_cached(include_str!("renew.sql"))?.execute(params![
                key,
                owner,
                lease_until,
                now
            ])?;
            Ok(())
        })
        .await
    }

    pub(in super::super) async fn answer(
        &self,
        key: &Key,
        attempts: u32,
        answer: Answer,
    ) -> Result<(), StoreError> {
        let key = key.as_str().to_owned();
        self.commit(move |transaction, moment| {
            let now = moment.now_ms;
            let Answer { status, headers, body } = &answer;
            transaction.prepare_cached(include_str!("answer.sql"))?.execute(params![
                key,
                now,
                attempts,
                status,
                headers,
                body.as_deref()
            ])?;
            Ok(())
        })
        .await
    }

    pub(in super::super) async fn leave(
        &self,
        key: &str,
        owner: Owner,
        state: JournalState,
        attempts: u32,
        why: String,
    ) -> Result<(), StoreError> {
        let key = key.to_owned();
        self.commit(move |transaction, moment| {
            let now = moment.now_ms;
            let mut leave = transaction.prepare_cached(include_str!("leave.sql"))?;
            leave.execute(params![key, owner, state as i64, now, attempts, why])?;
            Ok(())
        })
        .await
    }

    pub(in super::super) async fn unfinished(&self, limit: u32) -> Result<Vec<Listed>, StoreError> {
        let wall_ms = self.clock.wall_ms();
        self.commit(move |transaction, moment| {
            let now = moment.now_ms;
            let mut list = transaction.prepare_cached(include_str!("unfinished.sql"))?;
            let listed = list.query_map([limit], |row| {
                let (created_ms, until_ms): (i64, i64) = (row.get(2)?, row.get(3)?);
                // A person reads these by the machine's clock.
                let set_back_ms = if created_ms > wall_ms { moment.set_back_ms() } else { 0 };
                Ok(Listed {
                    key: row.get(0)?,
                    state: state(row, 1)?,
                    created_ms: created_ms - set_back_ms,
                    until_ms: until_ms - set_back_ms,
                    attempts: row.get(4)?,
                    claimed: row.get::<_, i64>(5)? > now,
                    why: row.get(6)?,
                    method: row.get(7)?,
                    uri: row.get(8)?,
                })
            })?;
            Ok(listed.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Deletes an intent. Returns whether it was there and not claimed.
    pub(in super::super) async fn forget(&self, key: &Key) -> Result<bool, StoreError> {
        let key = key.as_str().to_owned();
        self.commit(move |transaction, moment| {
            let now = moment.now_ms;
            let forget = "DELETE FROM intent WHERE key = :key AND lease_until <= :now";
            Ok(transaction.execute(forget, named_params! { ":key": key, ":now": now })? == 1)
        })
        .await
    }
}

fn expire(connection: &Connection, key: &str, now: i64) -> Result<(), SqliteError> {
    let expire = "UPDATE intent SET state = 2, owner = NULL, lease_until = 0, changed_at = ?2 WHERE key = ?1";
    connection.prepare_cached(expire)?.execute(params![key, now])?;
    Ok(())
}

fn answer(row: &Row<'_>) -> rusqlite::Result<Answer> {
    let body: Option<Vec<u8>> = row.get(9)?;
    Ok(Answer { status: row.get(7)?, headers: row.get(8)?, body: body.map(Bytes::from) })
}
