//! Reads the stream of a slot in batches.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;

use super::decoder::{Decoder, Read};
use super::error::CdcError;
use super::lsn::Lsn;
use super::position::StreamPosition;
use super::replication_connection::{Frame, ReplicationConnection};
use super::table::{Row, Table};
use crate::relay::postgres::snapshot::Snapshot;
use crate::relay::reader_options::Bounds;
use crate::timeout::bounded;

/// How long one read waits for data.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// Most transactions whose events are counted until a snapshot sees them. An old open one may delay that for long.
const UNCOUNTED_MAX: usize = 1_000_000;
/// How long sending a status message may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Stream {
    connection: ReplicationConnection,
    decoder: Decoder,
    acked: Lsn,
    /// Read, but not returned yet.
    rows: Vec<(StreamPosition, Box<Row>)>,
    bytes: usize,
    /// Number of events received of each transaction that is not [counted](Stream::count_seen) yet. `None`: there were
    /// too many transactions.
    uncounted: Option<HashMap<u64, u64>>,
}

/// Events that were read, and how far we are when they are done.
#[derive(Default)]
pub(super) struct StreamBatch {
    pub(super) rows: Vec<(StreamPosition, Box<Row>)>,
    pub(super) complete: Lsn,
    pub(super) position: StreamPosition,
}

impl Stream {
    pub(super) fn new(connection: ReplicationConnection, table: Table, from: Lsn) -> Self {
        Self {
            connection,
            decoder: Decoder::new(table, from),
            acked: from,
            rows: Vec::new(),
            bytes: 0,
            uncounted: Some(HashMap::new()),
        }
    }

    /// Status message: acks to the server, and shows that we are alive.
    pub(super) async fn send_status(&mut self, acked: Lsn) -> Result<(), CdcError> {
        self.acked = acked;
        self.connection.put_status(acked)?;
        bounded(STATUS_TIMEOUT, self.connection.flush(), || CdcError::TimedOut(STATUS_TIMEOUT)).await
    }

    /// Reads wanted events, as many as fit or are available. The rest stays in the socket, and the server waits: a
    /// transaction need not fit into memory. `None`: the batch is not complete yet.
    ///
    /// `until`: events up to this position are returned together, because they were in one batch before.
    pub(super) async fn read(
        &mut self,
        bounds: Bounds,
        until: StreamPosition,
        wanted: impl Fn(StreamPosition, &Row) -> bool,
    ) -> Result<Option<StreamBatch>, CdcError> {
        let deadline = tokio::time::Instant::now() + READ_TIMEOUT;
        loop {
            while let Some(Frame { tag, body }) = self.connection.frame()? {
                if tag != b'd' {
                    return Err(CdcError::Malformed(format!("the stream ended with {:?}", char::from(tag))));
                }
                let read = self.decoder.take(body)?;
                if let Read::Event(_, row) = &read
                    && let Some(xid) = row.xid
                    && let Some(uncounted) = &mut self.uncounted
                {
                    *uncounted.entry(xid).or_default() += 1;
                    if uncounted.len() > UNCOUNTED_MAX {
                        self.uncounted = None;
                    }
                }
                match read {
                    Read::Event(position, row) if wanted(position, &row) => {
                        self.bytes += row.event.payload().len();
                        self.rows.push((position, row));
                    }
                    Read::StatusRequested => self.send_status(self.acked).await?,
                    Read::Event(..) | Read::Nothing => {}
                }
                let full = self.rows.len() >= bounds.events_max || self.bytes >= bounds.bytes_max;
                if full && self.decoder.position() >= until {
                    return Ok(Some(self.take_batch()));
                }
            }
            let reached_until = self.decoder.position() >= until;
            if !self.rows.is_empty() && reached_until && !self.decoder.is_within() {
                // There are events to return: more are added only if available now. The rest of a transaction is on its
                // way, and worth a moment.
                tokio::task::yield_now().await;
                match self.connection.fill().now_or_never() {
                    Some(filled) => filled?,
                    None => return Ok(Some(self.take_batch())),
                }
                continue;
            }
            // Only skipped events, perhaps for long: returns in time for the heartbeat.
            let waited = if tokio::time::Instant::now() < deadline {
                tokio::time::timeout_at(deadline, self.connection.fill()).await.ok()
            } else {
                None
            };
            match waited {
                Some(filled) => filled?,
                None if self.rows.is_empty() || reached_until => return Ok(Some(self.take_batch())),
                None => return Ok(None),
            }
        }
    }

    /// Number of events received of transactions that this snapshot sees and the previous one did not. `None`: there
    /// were too many transactions to count, and counting restarts.
    pub(super) fn count_seen(&mut self, seen: &Snapshot) -> Option<u64> {
        let Some(uncounted) = &mut self.uncounted else {
            self.uncounted = Some(HashMap::new());
            return None;
        };
        let mut count = 0;
        uncounted.retain(|xid, events| {
            let is_seen = seen.sees(*xid);
            count += if is_seen { *events } else { 0 };
            !is_seen
        });
        Some(count)
    }

    fn take_batch(&mut self) -> StreamBatch {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        StreamBatch { rows, complete: self.decoder.complete(), position: self.decoder.position() }
    }

    pub(super) async fn close(self) {
        self.connection.close().await;
    }
}
