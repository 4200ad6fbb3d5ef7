//! The relay that is active: it has all lanes by lease, and the slot by being connected to it.

use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::connect::{System, connect};
use super::error::CdcError;
use super::lsn::Lsn;
use super::options::{Cdc, Names, Plant, lost, wrong};
use super::parking::ParkedRows;
use super::position::StreamPosition;
use super::replication_connection::ReplicationConnection;
use super::setup::{self, Making, Whom};
use super::slot::{Decision, Known, Noted, decide};
use super::stream::Stream;
use super::table::Table;
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError};
use crate::relay::poll::postgres::leased_session::{LeasedSession, get, lane};
use crate::relay::poll::postgres::partition_group::{self, PartitionGroup, ScanPlan, Window};
use crate::relay::poll::postgres::snapshot::Snapshot;
use crate::relay::poll::postgres::unreadable;
use crate::store::postgres::statement::Sql;
use crate::store::{ErrorKind, Fate, StoreError};

/// A window with more events than this is not counted again in the table.
const COUNTED_MAX: u64 = 1_000_000;
/// How often it is looked how much the slot holds, and whether the publication still has all.
const WATCH_EVERY: Duration = Duration::from_secs(10);

static TAKE: Sql = Sql { text: include_str!("sql/take.sql"), types: &[Type::TEXT, Type::INT8, Type::TEXT] };

static NUMBER: Sql = Sql { text: "SELECT pg_current_xact_id()::text", types: &[] };

/// Events of transactions that the second snapshot sees and the first does not, up to a bound. A transaction that was open
/// when the first was taken is on its list; one that began later has a higher number.
static COUNT: Sql = Sql {
    text: "SELECT count(*) FROM (
               (SELECT FROM semel_outbox o
                WHERE o.xid >= pg_snapshot_xmax($1::text::pg_snapshot)
                    AND o.xid < pg_snapshot_xmax($2::text::pg_snapshot)
                    AND pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot) LIMIT $3::bigint)
               UNION ALL
               (SELECT FROM semel_outbox o
                WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
                    AND pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot) LIMIT $3::bigint)
           ) AS found",
    types: &[Type::TEXT, Type::TEXT, Type::INT8],
};

/// The slot is further than this says, so it is not believed: see [`decide`].
static DISTRUST: Sql = Sql {
    text: "UPDATE semel_outbox_slot SET acked = '0/0', commit_lsn = '0/0', place = 0, walk = NULL
           WHERE name = $1::text",
    types: &[Type::TEXT],
};

static NOTE: Sql = Sql {
    text: include_str!("sql/note.sql"),
    types: &[
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT8,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};

/// Where events come from just now.
pub(super) enum Stage {
    /// The slot is being made, which waits for every transaction that is under way.
    Creating(Making),
    /// The slot is there; what it does not have is in the table.
    Adopting,
    /// From the table.
    Table,
    /// Nothing is left in the table that the stream does not have.
    Starting,
    Stream(Box<Stream>),
    /// The slot was let go.
    LetGo,
}

/// What came of beginning.
pub(super) enum Started {
    Yes,
    /// The slot is still in use by another, which ends soon.
    NotYet,
    /// It is of no use any more.
    Lost(CdcError),
}

pub(super) struct Leader {
    pub(super) link: LeasedSession,
    pub(super) names: Names,
    pub(super) system: System,
    pub(super) stage: Stage,
    table: Table,
    wire: Option<ReplicationConnection>,
    /// How far the log was written when we came.
    pub(super) written: Lsn,
    /// Written down, and so the server may be told.
    pub(super) acked: Lsn,
    pub(super) recorded: StreamPosition,
    /// Done, in the stream: everything committed up to here, and this event.
    pub(super) whole: Lsn,
    pub(super) spot: StreamPosition,
    /// Whoever the snapshot sees has committed before that place.
    pair: Option<(Snapshot, Lsn)>,
    /// Whoever has committed before the slot begins, which is at that place, has a lower number.
    before: Option<(Lsn, u64)>,
    /// Transactions with this number or a higher one began after the stream did.
    streamed_from: u64,
    /// The cursor's low sees all who had begun before, or all that the slot does not have: from then on the stream has what
    /// the table has.
    compares: bool,
    /// The slot is dropped: it held too much.
    let_go: bool,
    pub(super) parked: bool,
    note_at: Instant,
    watch_at: Instant,
    warn_at: Instant,
    sender_timeout: Duration,
}

impl Leader {
    /// Takes everything. `None`: another relay has it.
    pub(super) async fn open(cdc: &Cdc, me: Uuid, replace: bool) -> Result<Option<Self>, OutboxReaderError> {
        let outbox = &cdc.outbox;
        let mut link = LeasedSession::open(outbox, me).await?;
        let names = cdc.stream.names(link.lineage.store());
        let asked = Instant::now();
        let lease_ms = i64::try_from(outbox.options.lease.as_millis()).unwrap_or(i64::MAX);
        let values: [&(dyn ToSql + Sync); 3] = [&me.to_string(), &lease_ms, &link.lineage.to_string()];
        let rows = link.query(&TAKE, &values).await?;
        if rows.is_empty() {
            link.close().await;
            return Ok(None);
        }
        link.ours_until = asked + outbox.options.lease * 7 / 8;
        let mut groups = Vec::new();
        for row in &rows {
            partition_group::join(&mut groups, lane(row)?);
        }
        let (group, alike) = together(groups)?;
        link.groups = vec![group];

        let mut wire = connect(&outbox.connections).await?;
        let system = System::ask(&mut wire, outbox.connections.options.connect_timeout()).await?;
        system.is_of(&link).await?;
        let known = Known::ask(&link, &names.slot).await?;
        let table = setup::table(&link, cdc.stream.table.as_ref()).await?;
        link.beat_at = asked + (outbox.options.lease / 3).min(known.sender_timeout / 3);
        let now = Instant::now();
        let mut active = Self {
            link,
            names,
            system,
            stage: Stage::Starting,
            table,
            wire: Some(wire),
            written: known.written,
            acked: Lsn::default(),
            recorded: StreamPosition::default(),
            whole: Lsn::default(),
            spot: StreamPosition::default(),
            pair: None,
            before: None,
            streamed_from: u64::MAX,
            compares: false,
            let_go: false,
            parked: known.parked,
            note_at: now,
            watch_at: now,
            warn_at: now,
            sender_timeout: known.sender_timeout,
        };
        active.begin(cdc, &known, alike, replace).await?;
        tracing::info!(slot = active.names.slot, "the outbox is read from the log by this relay");
        Ok(Some(active))
    }

    /// Whose events these are, as positions have it: the same for a source that polls.
    pub(super) fn lineage(&self) -> OutboxLineage {
        OutboxLineage::new(self.link.lineage.store().to_owned(), Some(self.system.id.clone()))
    }

    /// Whose log this is. A promotion begins another.
    fn log(&self) -> OutboxLineage {
        self.log_of(&self.system.timeline)
    }

    pub(super) fn log_of(&self, timeline: &str) -> OutboxLineage {
        let system = format!("{}.{timeline}", self.system.id);
        OutboxLineage::new(self.link.lineage.store().to_owned(), Some(system))
    }

    /// Finds out how to go on.
    async fn begin(
        &mut self,
        cdc: &Cdc,
        known: &Known,
        alike: bool,
        replace: bool,
    ) -> Result<(), OutboxReaderError> {
        let mut recorded = known.recorded.as_ref();
        let found = self.log();
        if let Some(Noted { lineage, .. }) = recorded
            && !lineage.matches(&found)
        {
            if !(cdc.stream.follow_promotions && is_promoted(lineage, &found)) {
                return Err(OutboxReaderError::OutboxLineage { stored: lineage.clone(), found });
            }
            tracing::warn!(%lineage, %found, "a standby was promoted; going on from the table");
            recorded = None;
        }
        let slot = known.slot.as_ref();
        if let Some(slot) = slot
            && (slot.plugin != "pgoutput" || !slot.here)
        {
            let name = &self.names.slot;
            return Err(wrong(format!(
                "the slot {name} is not one of pgoutput in this database; name another"
            )));
        }
        let mut decision = decide(slot, recorded);
        if replace && slot.is_some() {
            decision = Decision::Replace;
        }
        if decision != Decision::Stream && decision != Decision::ScanPlan && self.table.routed.is_some() {
            self.refuse_if_lost(known)?;
        }
        self.check_publication(cdc).await?;
        self.stage = match decision {
            Decision::Stream => {
                self.group_mut()?.window = None;
                Stage::Starting
            }
            Decision::ScanPlan if alike && self.walks(recorded) => {
                if let Some(window) = &mut self.group_mut()?.window {
                    window.recorded = None;
                }
                Stage::Table
            }
            Decision::ScanPlan | Decision::Adopt => Stage::Adopting,
            Decision::Create | Decision::Replace => {
                if !cdc.stream.create {
                    let name = &self.names.slot;
                    return Err(wrong(format!(
                        "the slot {name} is not there or of no use any more, and it is not to be made: SELECT \
                         pg_create_logical_replication_slot('{name}', 'pgoutput')"
                    )));
                }
                if decision == Decision::Replace {
                    tracing::warn!(slot = self.names.slot, "the slot is of no use any more; it is made anew");
                    setup::drop_slot(&self.link, &self.names.slot).await?;
                }
                Stage::Creating(setup::create_slot(&cdc.outbox, &self.names.slot).await?)
            }
        };
        if let (Some(recorded), true) = (recorded, matches!(self.stage, Stage::Starting | Stage::Table)) {
            (self.acked, self.whole) = (recorded.acked, recorded.acked);
            (self.recorded, self.spot) = (recorded.spot, recorded.spot);
        }
        Ok(())
    }

    /// Sees that the publication leaves no event out. If it does, it is not known since when: once the publication is right
    /// again, what is not recorded as published comes from the table.
    async fn check_publication(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let checked = setup::publication(&self.link, &self.names, &self.table, cdc.stream.create).await;
        if checked.as_ref().is_err_and(|error| !error.may_retry()) {
            self.distrust().await?;
        }
        checked
    }

    /// Makes the next start begin with the table. Not for a table like Debezium's, whose rows may be deleted already.
    async fn distrust(&mut self) -> Result<(), OutboxReaderError> {
        if self.table.routed.is_none() {
            self.link.query(&DISTRUST, &[&self.names.slot]).await?;
        }
        Ok(())
    }

    /// Before the cursor comes forward: the table must not have more events than have come. A publication that was changed
    /// and changed back leaves no other trace.
    async fn compare(&mut self, cdc: &Cdc, seen: &Snapshot) -> Result<(), OutboxReaderError> {
        let low = self.group()?.low.clone();
        let Stage::Stream(stream) = &mut self.stage else { return Ok(()) };
        let Some(came) = stream.count_seen(seen) else {
            // As after a start: from the next number on.
            self.compares = false;
            self.streamed_from = self.number().await?;
            return Ok(());
        };
        if !self.compares {
            // What came before the stream began, a relay before this one has had. From here on it is counted.
            self.check_publication(cdc).await?;
            self.compares = seen.has_all_before(self.streamed_from);
            return Ok(());
        }
        if came > COUNTED_MAX {
            return Ok(());
        }
        let most = i64::try_from(came).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self.link.query(&COUNT, &[&low.text(), &seen.text(), &most]).await?;
        let there: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
        if there.max(0).unsigned_abs() <= came {
            return Ok(());
        }
        self.distrust().await?;
        let message = format!(
            "events in {}.{} did not come from the slot {}: the publication {} left them out for a while; they come from the \
             table now, after later ones of their keys; find out who changed it",
            self.table.schema, self.table.name, self.names.slot, self.names.publication
        );
        Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).into())
    }

    /// Whether the window of the cursor is the one we wrote down.
    fn walks(&self, recorded: Option<&Noted>) -> bool {
        let window = self.link.groups.first().and_then(|group| group.window.as_ref());
        let walk = recorded.and_then(|recorded| recorded.walk.as_deref());
        window.is_some_and(|window| Some(window.high.text()) == walk)
    }

    /// Rows of a table that is not ours may be gone: there is nothing to go on with.
    fn refuse_if_lost(&self, known: &Known) -> Result<(), OutboxReaderError> {
        if known.recorded.is_none() {
            return Ok(());
        }
        Err(lost(format!(
            "the slot {} was dropped, invalidated or moved by somebody else, and events that were committed since may \
             be in {}.{} or gone: look, then go on from now with `semel outbox rebase`",
            self.names.slot, self.table.schema, self.table.name
        )))
    }

    pub(super) fn group(&self) -> Result<&PartitionGroup, OutboxReaderError> {
        self.link.groups.first().ok_or(OutboxReaderError::Fenced)
    }

    pub(super) fn group_mut(&mut self) -> Result<&mut PartitionGroup, OutboxReaderError> {
        self.link.groups.first_mut().ok_or(OutboxReaderError::Fenced)
    }

    /// Begins with the table: what was committed before now and is not published.
    pub(super) async fn adopt(&mut self, cdc: &Cdc) -> Result<Started, OutboxReaderError> {
        let known = Known::ask(&self.link, &self.names.slot).await?;
        let slot = match known.slot {
            Some(slot) if !slot.lost => slot,
            // Somebody else is just making it. Half made it does not say yet where it begins.
            Some(slot) if slot.used_by.is_some() => return Ok(Started::NotYet),
            _ => {
                let message = format!("the slot {} went away again", self.names.slot);
                return Ok(Started::Lost(CdcError::Server { state: "42704".into(), message }));
            }
        };
        if self.table.routed.is_some() {
            (self.acked, self.whole, self.spot) = (slot.confirmed, slot.confirmed, StreamPosition::default());
            self.note(cdc, &ParkedRows::default()).await?;
            self.stage = Stage::Starting;
            return Ok(Started::Yes);
        }
        let Some(high) = self.outwaited(cdc, slot.confirmed, snapshot(&known.now)?).await? else {
            return Ok(Started::NotYet);
        };
        self.before = None;
        (self.acked, self.whole, self.spot) = (slot.confirmed, slot.confirmed, StreamPosition::default());
        self.group_mut()?.window = Some(Window { high, after: 0, recorded: None, walk: ScanPlan::Unknown });
        self.note(cdc, &ParkedRows::default()).await?;
        tracing::info!(slot = self.names.slot, "what the slot does not have comes from the table");
        self.stage = Stage::Table;
        Ok(Started::Yes)
    }

    /// A snapshot that sees whatever was committed before the slot begins. `None`: not yet.
    ///
    /// A commit is in the log before others see it: in between it is made durable, and a synchronous standby is waited
    /// for. So one that the stream leaves out, because it is before the slot, may still be under way for a snapshot
    /// that is taken when the slot is there. Whoever was under way then is waited for; whoever came later commits
    /// behind the beginning of the slot.
    async fn outwaited(
        &mut self,
        cdc: &Cdc,
        confirmed: Lsn,
        now: Snapshot,
    ) -> Result<Option<Snapshot>, OutboxReaderError> {
        if cdc.stream.plant == Some(Plant::AdoptAtOnce) {
            return Ok(Some(now));
        }
        if let Some((_, barrier)) = self.before.filter(|(of, _)| *of == confirmed) {
            return Ok(now.has_all_before(barrier).then_some(now));
        }
        let barrier = self.number().await?;
        tracing::info!(
            slot = self.names.slot,
            barrier,
            "the table is read as soon as the transactions that are under way have ended"
        );
        self.before = Some((confirmed, barrier));
        Ok(None)
    }

    /// A new transaction number: higher than that of every transaction that has committed before. A snapshot alone is not
    /// enough: beyond the last one that ended it does not say which are open.
    async fn number(&mut self) -> Result<u64, OutboxReaderError> {
        let rows = self.link.query(&NUMBER, &[]).await?;
        let row = rows.first().ok_or_else(|| unreadable("no number was given out"))?;
        let number: String = get(row, 0)?;
        Ok(number.parse().map_err(|_| unreadable(&format!("{number:?} is no transaction")))?)
    }

    /// The table has nothing more that the stream has not.
    pub(super) async fn arrive(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let group = self.group_mut()?;
        if let Some(window) = group.window.take() {
            group.low = window.high;
            // The slot begins before what that does not see.
            self.compares = true;
        }
        self.note(cdc, &ParkedRows::default()).await?;
        self.stage = if self.let_go { Stage::LetGo } else { Stage::Starting };
        Ok(())
    }

    /// Writes down how far we are, with what is set aside, in one commit under our epochs; then the server may hear it.
    pub(super) async fn note(&mut self, cdc: &Cdc, aside: &ParkedRows) -> Result<(), OutboxReaderError> {
        // Everything that snapshot sees is done: the cursor comes forward, and what it leaves behind may be forgotten.
        if let Some((seen, before)) = self.pair.take_if(|(_, before)| *before <= self.whole)
            && matches!(self.stage, Stage::Stream(_))
            && self.table.routed.is_none()
        {
            self.compare(cdc, &seen).await?;
            tracing::trace!(%seen, %before, "the cursor comes forward");
            self.group_mut()?.low = seen;
        }
        let (acked, spot, retry_ms) = (self.whole.to_string(), self.spot, cdc.outbox.options.retry_ms());
        let (commit, index) = (spot.commit.to_string(), i64::try_from(spot.index).unwrap_or(i64::MAX));
        let lineage = self.log().to_string();
        let group = self.group()?;
        let high = group.window.as_ref().map(|window| window.high.text());
        let after = group.window.as_ref().map_or(0, |window| window.after);
        let [topic, kind, key, of, about, media, headers, once, trace] = &aside.texts;
        let values: [&(dyn ToSql + Sync); 28] = [
            &group.lanes,
            &group.epochs,
            &self.names.slot,
            &lineage,
            &acked,
            &commit,
            &index,
            &high,
            &group.low.text(),
            &high,
            &after,
            &aside.errors,
            &aside.keys,
            &aside.for_good,
            &retry_ms,
            &aside.made_at,
            &aside.ids,
            topic,
            kind,
            key,
            of,
            about,
            media,
            headers,
            once,
            trace,
            &aside.intents,
            &aside.payloads,
        ];
        let rows = self.link.query(&NOTE, &values).await?;
        let row = rows.first().ok_or(OutboxReaderError::Fenced)?;
        if self.pair.is_none() {
            let (seen, before): (String, String) = (get(row, 0)?, get(row, 1)?);
            let before = Lsn::read(&before).ok_or_else(|| unreadable("a place in the log"))?;
            self.pair = Some((snapshot(&seen)?, before));
        }
        self.parked |= !aside.is_empty();
        (self.acked, self.recorded) = (self.whole, self.spot);
        self.note_at = Instant::now();
        if let Stage::Stream(stream) = &mut self.stage {
            stream.tell(self.acked).await?;
        }
        Ok(())
    }

    /// Writes it down if it is time to. Where no event came it may take longer: only the server's log has grown.
    pub(super) async fn note_if_due(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let every = cdc.stream.checkpoint_interval;
        let moved = self.spot != self.recorded;
        let due = self.note_at.elapsed() >= if moved { every } else { every * 5 };
        if due && (moved || self.whole > self.acked) {
            self.note(cdc, &ParkedRows::default()).await
        } else {
            Ok(())
        }
    }

    /// Begins to stream.
    pub(super) async fn start(&mut self, cdc: &Cdc) -> Result<Started, OutboxReaderError> {
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => {
                let mut wire = connect(&cdc.outbox.connections).await?;
                let patience = cdc.outbox.connections.options.connect_timeout();
                self.system.must_be(&System::ask(&mut wire, patience).await?.id)?;
                wire
            }
        };
        let command = setup::start(&self.names);
        match wire.start(&command, cdc.outbox.connections.options.connect_timeout()).await {
            Ok(()) => {
                let mut stream = Stream::new(wire, self.table.clone(), self.whole);
                stream.tell(self.acked).await?;
                self.streamed_from = self.number().await?;
                self.stage = Stage::Stream(Box::new(stream));
                Ok(Started::Yes)
            }
            Err(broken) if broken.is_taken() => {
                // The lanes are ours, so whoever had them has been silent for a whole lease: what is left of it is
                // a connection that nobody reads.
                setup::free_slot(&self.link, &self.names.slot, Whom::Readers).await?;
                Ok(Started::NotYet)
            }
            Err(broken) if broken.is_lost() => Ok(Started::Lost(broken)),
            Err(broken) => Err(broken.into()),
        }
    }

    /// Shows the server, and the other relays, that we live.
    pub(super) async fn renew_lease(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        // Tried again soon if it fails, not at once.
        self.link.beat_at = Instant::now() + cdc.outbox.options.lease / 10;
        self.link.heartbeat(&cdc.outbox).await?;
        self.link.beat_at = self.link.beat_at.min(Instant::now() + self.sender_timeout / 3);
        if let Stage::Stream(stream) = &mut self.stage {
            stream.tell(self.acked).await?;
        }
        self.watch(cdc).await
    }

    /// Looks how much the slot keeps the server from forgetting.
    async fn watch(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let stream = &cdc.stream;
        let walks = matches!(self.stage, Stage::Table);
        if Instant::now() < self.watch_at || self.let_go || !(walks || matches!(self.stage, Stage::Stream(_)))
        {
            return Ok(());
        }
        self.watch_at = Instant::now() + WATCH_EVERY.min(cdc.outbox.options.lease);
        self.check_publication(cdc).await?;
        let known = Known::ask(&self.link, &self.names.slot).await?;
        let held = known.held_bytes.unwrap_or(0);
        if (held > stream.warn_bytes || known.wal_status == "unreserved") && Instant::now() >= self.warn_at {
            self.warn_at = Instant::now() + Duration::from_secs(60);
            tracing::warn!(
                slot = self.names.slot,
                held_bytes = held,
                wal_status = known.wal_status,
                "the slot keeps the server from forgetting its log; see that the sink takes what it is given"
            );
        }
        if self.table.routed.is_none() && stream.held_bytes_max.is_some_and(|most| held > most) {
            tracing::warn!(
                slot = self.names.slot,
                held_bytes = held,
                "the slot is let go; the table has it all"
            );
            self.let_go = true;
            // A walk through the table needs no slot, and goes on to its end: begun again each time, it might never
            // come there.
            if !walks {
                self.stage = Stage::LetGo;
            }
            setup::drop_slot(&self.link, &self.names.slot).await?;
        }
        Ok(())
    }

    /// Ends in order.
    pub(super) async fn release(mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        if matches!(self.stage, Stage::Stream(_)) && (self.spot != self.recorded || self.whole > self.acked) {
            self.note(cdc, &ParkedRows::default()).await?;
        }
        if let Stage::Stream(stream) = self.stage {
            stream.close().await;
        }
        Ok(self.link.release(&cdc.outbox).await?)
    }
}

/// Lanes that polling has left at different places go on together from the place of the last. Whether they were at one.
fn together(groups: Vec<PartitionGroup>) -> Result<(PartitionGroup, bool), OutboxReaderError> {
    let alike = groups.len() == 1;
    let mut groups = groups.into_iter();
    let mut all = groups.next().ok_or(OutboxReaderError::Fenced)?;
    for other in groups {
        all.window = None;
        if other.low.age(&all.low).is_lt() {
            all.low = other.low;
        }
        all.lanes.extend(other.lanes);
        all.epochs.extend(other.epochs);
        all.tids.extend(other.tids);
    }
    Ok((all, alike))
}

/// Whether only the timeline differs.
fn is_promoted(stored: &OutboxLineage, found: &OutboxLineage) -> bool {
    let (stored, found) = (stored.to_string(), found.to_string());
    let cluster = |text: &str| text.rsplit_once('.').map(|(cluster, _)| cluster.to_owned());
    cluster(&stored).is_some_and(|stored| Some(stored) == cluster(&found))
}

fn snapshot(text: &str) -> Result<Snapshot, StoreError> {
    Snapshot::read(text).ok_or_else(|| unreadable(&format!("{text:?} is no snapshot")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_is_another_timeline_of_the_same_cluster() {
        let read = OutboxLineage::read;
        assert!(is_promoted(&read("a/71.1"), &read("a/71.2")));
        assert!(!is_promoted(&read("a/71.1"), &read("a/72.1")));
        assert!(!is_promoted(&read("a/71.1"), &read("b/71.2")));
    }
}
