//! The stream of a slot, read in batches.

use std::time::Duration;

use futures_util::FutureExt;

use super::broken::Broken;
use super::lsn::Lsn;
use super::place::Spot;
use super::reader::{Read, Reader};
use super::table::{Row, Table};
use super::wire::{Frame, Wire};
use crate::relay::poll::Bounds;

/// How long a look waits for something to come.
const WAIT: Duration = Duration::from_millis(100);
/// How long the server may take to take a word of ours.
const TELL: Duration = Duration::from_secs(5);

pub(super) struct Stream {
    wire: Wire,
    reader: Reader,
    told: Lsn,
}

/// Events that were read, and how far that brings us when they are done.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) rows: Vec<(Spot, Box<Row>)>,
    pub(super) whole: Lsn,
    pub(super) spot: Spot,
}

impl Stream {
    pub(super) fn new(wire: Wire, table: Table, from: Lsn) -> Self {
        Self { wire, reader: Reader::new(table, from), told: from }
    }

    /// Tells the server how far we are.
    pub(super) async fn tell(&mut self, acked: Lsn) -> Result<(), Broken> {
        self.told = acked;
        self.wire.put_status(acked)?;
        tokio::time::timeout(TELL, self.wire.flush()).await.map_err(|_| Broken::Late(TELL))?
    }

    /// Reads events that are wanted, as many as fit or are there. What does not fit stays in the socket, and the server
    /// waits with what comes then: a transaction need not fit anywhere.
    ///
    /// Cancelled it loses what it has read: the stream has to begin again.
    pub(super) async fn read(
        &mut self,
        bounds: Bounds,
        wanted: impl Fn(Spot, &Row) -> bool,
    ) -> Result<Piece, Broken> {
        let until = tokio::time::Instant::now() + WAIT;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            while let Some(Frame { tag, body }) = self.wire.frame()? {
                if tag != b'd' {
                    return Err(Broken::Nonsense(format!("the stream ends with {:?}", char::from(tag))));
                }
                match self.reader.take(body)? {
                    Read::Event(spot, row) if wanted(spot, &row) => {
                        bytes += row.event.payload().len();
                        rows.push((spot, row));
                        if rows.len() >= bounds.events_max || bytes >= bounds.bytes_max {
                            return Ok(self.piece(rows));
                        }
                    }
                    Read::Answer => self.tell(self.told).await?,
                    Read::Event(..) | Read::Nothing => {}
                }
            }
            if rows.is_empty() {
                // Nothing but what is past, perhaps for long: others want to be looked after.
                if tokio::time::Instant::now() >= until {
                    return Ok(self.piece(rows));
                }
                match tokio::time::timeout_at(until, self.wire.fill()).await {
                    Ok(filled) => filled?,
                    Err(_) => return Ok(self.piece(rows)),
                }
                continue;
            }
            // There is something to give: more is taken along only if it is there already.
            tokio::task::yield_now().await;
            match self.wire.fill().now_or_never() {
                Some(filled) => filled?,
                None => return Ok(self.piece(rows)),
            }
        }
    }

    fn piece(&self, rows: Vec<(Spot, Box<Row>)>) -> Piece {
        Piece { rows, whole: self.reader.whole(), spot: self.reader.spot() }
    }

    pub(super) async fn close(self) {
        self.wire.close().await;
    }
}
