//! Locks all rows of a batch before anything is decided about them, without waiting for any.

use std::collections::{HashMap, HashSet};

use sqlx::mysql::MySqlRow;

use super::error::MysqlError;
use super::literal::{Template, template};
use super::row;
use super::server::{Server, ids};
use super::session::{Brought, Failed, Session};
use crate::intent::identity::{Epoch, IntentId};
use crate::intent::policy::StoreTime;
use crate::store::coalesce::Failure;

static LOCK: Template = template!("sql/lock.sql");
static FENCE: Template = template!("sql/fence.sql");

/// What a transaction has locked and read.
pub(super) struct Locked {
    pub(super) rows: HashMap<IntentId, MySqlRow>,
    /// Rows that exist, but another transaction has locked them.
    pub(super) locked_elsewhere: HashSet<IntentId>,
    /// The clock after the locks.
    pub(super) now: StoreTime,
    /// The first of 1,024 unused epochs, if they were asked for.
    pub(super) fresh: Epoch,
}

impl Server {
    /// Begins a transaction and locks the rows that no other transaction has locked. `None` when even that met a
    /// deadlock: all requests are retried.
    pub(super) async fn lock(
        &self,
        session: &mut Session,
        wanted: &[IntentId],
        fence: bool,
    ) -> Result<Option<Locked>, Failure> {
        let mut sql = LOCK.fill(&[("ids", &ids(wanted)), ("clock", &self.clock)]);
        if fence {
            sql.push_str(";\n");
            sql.push_str(&FENCE.fill(&[]));
        }
        let locked = match session.run(sql).await {
            Ok(brought) => read(brought).map_err(Failed::from),
            Err(failed) => Err(failed),
        };
        match locked {
            Ok(locked) => Ok(Some(locked)),
            Err(failed) => {
                session.roll_back().await;
                if failed.error.is_lock() { Ok(None) } else { Err(self.failure(&failed, None)) }
            }
        }
    }

    /// Writes and commits; with nothing to write, only releases the locks.
    pub(super) async fn commit(&self, session: &mut Session, statements: Vec<String>) -> Result<(), Failure> {
        if statements.is_empty() {
            session.roll_back().await;
            return Ok(());
        }
        let mut packet = String::new();
        let mut count = 0;
        for statement in statements {
            if !packet.is_empty() && packet.len() + statement.len() + 16 > self.packet_bytes / 2 {
                if let Err(failed) = session.run(std::mem::take(&mut packet)).await {
                    session.roll_back().await;
                    return Err(self.failure(&failed, None));
                }
                count = 0;
            }
            if !packet.is_empty() {
                packet.push_str(";\n");
            }
            packet.push_str(&statement);
            count += 1;
        }
        packet.push_str(";\nCOMMIT");
        match session.run(packet).await {
            Ok(_) => Ok(()),
            Err(failed) => {
                session.roll_back().await;
                Err(self.failure(&failed, Some(count)))
            }
        }
    }
}

// SET, START, the locked rows, the existing ids, the clock; then INSERT and the epoch.
fn read(mut brought: Vec<Brought>) -> Result<Locked, MysqlError> {
    let mut take = |n: usize| brought.get_mut(n).map(std::mem::take).unwrap_or_default().rows;
    let missing = || MysqlError::Unreadable("a result set is missing".to_owned());
    let mut rows = HashMap::new();
    for row in take(2) {
        rows.insert(row::record_id(&row)?, row);
    }
    let mut locked_elsewhere = HashSet::new();
    for row in take(3) {
        let id = row::id(&row, 0)?;
        if !rows.contains_key(&id) {
            locked_elsewhere.insert(id);
        }
    }
    let now = StoreTime(row::unsigned(take(4).first().ok_or_else(missing)?, 0)?);
    let fresh = match take(6).first() {
        Some(row) => Epoch(row::unsigned(row, 0)?),
        None => Epoch(0),
    };
    Ok(Locked { rows, locked_elsewhere, now, fresh })
}
