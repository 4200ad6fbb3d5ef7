//! The stream of a slot, read in batches.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;

use super::decoder::{Decoder, Read};
use super::error::CdcError;
use super::lsn::Lsn;
use super::position::StreamPosition;
use super::replication_connection::{Frame, ReplicationConnection};
use super::table::{Row, Table};
use crate::relay::poll::Bounds;
use crate::relay::poll::postgres::snapshot::Snapshot;

/// How long a look waits for something to come.
const WAIT: Duration = Duration::from_millis(100);

/// Transactions whose events are counted until a snapshot sees them. An old open one may hold that up for long.
const UNCOUNTED_MAX: usize = 1_000_000;
/// How long the server may take to take a word of ours.
const TELL: Duration = Duration::from_secs(5);

pub(super) struct Stream {
    wire: ReplicationConnection,
    reader: Decoder,
    told: Lsn,
    /// Read, and not given yet.
    rows: Vec<(StreamPosition, Box<Row>)>,
    bytes: usize,
    /// How many events of each transaction have come, as far as they were not [counted](Stream::count_seen) yet. `None`:
    /// there were too many transactions.
    came: Option<HashMap<u64, u64>>,
}

/// Events that were read, and how far that brings us when they are done.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) rows: Vec<(StreamPosition, Box<Row>)>,
    pub(super) whole: Lsn,
    pub(super) spot: StreamPosition,
}

impl Stream {
    pub(super) fn new(wire: ReplicationConnection, table: Table, from: Lsn) -> Self {
        Self {
            wire,
            reader: Decoder::new(table, from),
            told: from,
            rows: Vec::new(),
            bytes: 0,
            came: Some(HashMap::new()),
        }
    }

    /// Tells the server how far we are.
    pub(super) async fn tell(&mut self, acked: Lsn) -> Result<(), CdcError> {
        self.told = acked;
        self.wire.put_status(acked)?;
        tokio::time::timeout(TELL, self.wire.flush()).await.map_err(|_| CdcError::Late(TELL))?
    }

    /// Reads events that are wanted, as many as fit or are there. What does not fit stays in the socket, and the server
    /// waits with what comes then: a transaction need not fit anywhere. `None`: it is not there yet.
    ///
    /// `until`: what was read up to there is given together. It was in one batch before.
    pub(super) async fn read(
        &mut self,
        bounds: Bounds,
        until: StreamPosition,
        wanted: impl Fn(StreamPosition, &Row) -> bool,
    ) -> Result<Option<Piece>, CdcError> {
        let patience = tokio::time::Instant::now() + WAIT;
        loop {
            while let Some(Frame { tag, body }) = self.wire.frame()? {
                if tag != b'd' {
                    return Err(CdcError::Nonsense(format!("the stream ends with {:?}", char::from(tag))));
                }
                let read = self.reader.take(body)?;
                if let Read::Event(_, row) = &read
                    && let Some(xid) = row.xid
                    && let Some(came) = &mut self.came
                {
                    *came.entry(xid).or_default() += 1;
                    if came.len() > UNCOUNTED_MAX {
                        self.came = None;
                    }
                }
                match read {
                    Read::Event(spot, row) if wanted(spot, &row) => {
                        self.bytes += row.event.payload().len();
                        self.rows.push((spot, row));
                    }
                    Read::Answer => self.tell(self.told).await?,
                    Read::Event(..) | Read::Nothing => {}
                }
                let full = self.rows.len() >= bounds.events_max || self.bytes >= bounds.bytes_max;
                if full && self.reader.spot() >= until {
                    return Ok(Some(self.piece()));
                }
            }
            let whole = self.reader.spot() >= until;
            if !self.rows.is_empty() && whole && !self.reader.is_within() {
                // There is something to give: more is taken along only if it is there already. The rest of a
                // transaction is on its way, and worth a moment.
                tokio::task::yield_now().await;
                match self.wire.fill().now_or_never() {
                    Some(filled) => filled?,
                    None => return Ok(Some(self.piece())),
                }
                continue;
            }
            // Nothing but what is past, perhaps for long: others want to be looked after.
            let waited = if tokio::time::Instant::now() < patience {
                tokio::time::timeout_at(patience, self.wire.fill()).await.ok()
            } else {
                None
            };
            match waited {
                Some(filled) => filled?,
                None if self.rows.is_empty() || whole => return Ok(Some(self.piece())),
                None => return Ok(None),
            }
        }
    }

    /// How many events have come of transactions that this snapshot sees and the one before did not. `None`: they were too
    /// many to be counted, and counting begins anew.
    pub(super) fn count_seen(&mut self, seen: &Snapshot) -> Option<u64> {
        let Some(came) = &mut self.came else {
            self.came = Some(HashMap::new());
            return None;
        };
        let mut count = 0;
        came.retain(|xid, events| {
            let is_seen = seen.sees(*xid);
            count += if is_seen { *events } else { 0 };
            !is_seen
        });
        Some(count)
    }

    fn piece(&mut self) -> Piece {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        Piece { rows, whole: self.reader.whole(), spot: self.reader.spot() }
    }

    pub(super) async fn close(self) {
        self.wire.close().await;
    }
}
