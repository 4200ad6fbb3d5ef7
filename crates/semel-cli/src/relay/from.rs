//! The outbox of a relay, for any database and both modes (poll and cdc).

use std::time::Duration;

use semel::outbox::dialect;
#[cfg(feature = "postgres")]
use semel::relay::cdc::{self, CdcOutbox};
#[cfg(feature = "mysql")]
use semel::relay::poll::mysql::MysqlOutboxReader;
#[cfg(feature = "postgres")]
use semel::relay::poll::postgres::PostgresOutboxReader;
use semel::relay::poll::sqlite::SqliteOutboxReader;
use semel::relay::{Batch, Lag, OutboxReader, OutboxReaderError, Pruned, Settled, SinkCheckpoint};
use semel::tx::driver::Dialect;

use super::args::{Mode, Prune, Relay};
use crate::failure::Failed;
use crate::outbox::AnyOutbox;

/// Where events come from.
pub(super) enum From {
    Poll(AnyOutbox),
    #[cfg(feature = "postgres")]
    Cdc {
        log: Box<CdcOutbox>,
        /// The same outbox's tables, which have the parked events and the cursor.
        tables: AnyOutbox,
    },
}

/// The result of one check.
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) about: &'static str,
    pub(super) says: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Severity {
    Fine,
    Warning,
    Error,
}

/// Refuses flags that cannot work together, before anything connects.
pub(super) fn fits(args: &Relay) -> Result<(), Failed> {
    let postgres = dialect(&args.from)? == Dialect::Postgres;
    match (args.mode, args.cdc.given()) {
        (Mode::Cdc, _) if !postgres => Err(Failed::usage(
            "--mode cdc reads PostgreSQL's log; use a postgres:// URL, or leave --mode out: polling works everywhere",
        )),
        (Mode::Poll, Some(flag)) => {
            Err(Failed::usage(format!("{flag} is for --mode cdc; add --mode cdc, or leave {flag} out")))
        }
        _ => Ok(()),
    }
}

impl From {
    pub(super) async fn open(args: &Relay) -> Result<Self, OutboxReaderError> {
        let tables = AnyOutbox::open_with(&args.from, &args.bounds.outbox()).await?;
        match args.mode {
            Mode::Poll => Ok(Self::Poll(tables)),
            #[cfg(feature = "postgres")]
            Mode::Cdc => Ok(Self::Cdc { log: Box::new(log(args).await?), tables }),
            #[cfg(not(feature = "postgres"))]
            Mode::Cdc => Ok(Self::Poll(tables)),
        }
    }

    pub(super) fn source(&self) -> AnySource {
        match self {
            Self::Poll(outbox) => outbox.source(),
            #[cfg(feature = "postgres")]
            Self::Cdc { log, .. } => AnySource::Cdc(Box::new(log.source())),
        }
    }

    /// Opening, or the call here, has checked tables, version, lineage and primary; then come privileges, and the log.
    pub(super) async fn check(&self, args: &Relay) -> Result<Vec<Finding>, OutboxReaderError> {
        let tables = match self {
            Self::Poll(outbox) => outbox,
            #[cfg(feature = "postgres")]
            Self::Cdc { tables, .. } => tables,
        };
        let missing = tables.check().await?;
        let prunes = args.bounds.prune != Prune::Never;
        let missing: Vec<&str> = missing
            .iter()
            .filter(|missing| prunes || !missing.only_to_prune)
            .map(|missing| missing.right.as_str())
            .collect();
        let fine = |about| Finding { severity: Severity::Fine, about, says: String::new() };
        let rights = match missing.is_empty() {
            true => fine("rights"),
            false => {
                let says = format!("the relay lacks {}; grant that to its user", missing.join(", "));
                Finding { severity: Severity::Error, about: "rights", says }
            }
        };
        #[cfg_attr(not(feature = "postgres"), allow(unused_mut))]
        let mut findings = vec![fine("outbox"), rights];
        #[cfg(feature = "postgres")]
        if let Self::Cdc { log, .. } = self {
            findings.extend(log.check().await?.into_iter().map(|finding| Finding {
                severity: match finding.severity {
                    cdc::Severity::Fine => Severity::Fine,
                    cdc::Severity::Warning => Severity::Warning,
                    _ => Severity::Error,
                },
                about: finding.about,
                says: finding.says,
            }));
        }
        Ok(findings)
    }
}

#[cfg(feature = "postgres")]
async fn log(args: &Relay) -> Result<CdcOutbox, OutboxReaderError> {
    let (flags, bounds) = (&args.cdc, args.bounds.outbox());
    let mut options = CdcOutbox::options(&args.from)?
        .batch_max(bounds.batch_events, bounds.batch_bytes)
        .lease(bounds.lease)
        .retry_after(bounds.retry_after)
        .create(!flags.no_create.unwrap_or(false))
        .follow_promotions(flags.follow_promotions.unwrap_or(false));
    if let Some(slot) = &flags.slot {
        options = options.slot(slot)?;
    }
    if let Some(publication) = &flags.publication {
        options = options.publication(publication)?;
    }
    if let Some(table) = &flags.debezium_table {
        let table = cdc::RoutedTable::debezium(table);
        options = options.table(match &flags.topic_prefix {
            Some(prefix) => table.topic_prefix(prefix),
            None => table,
        });
    }
    if let Some(bytes) = flags.slot_warn {
        options = options.warn_bytes(bytes as u64);
    }
    if let Some(bytes) = flags.slot_max {
        options = options.held_bytes_max(bytes as u64);
    }
    options.open().await
}

/// The reader of an outbox in one of the databases.
pub(super) enum AnySource {
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresOutboxReader>),
    #[cfg(feature = "mysql")]
    Mysql(Box<MysqlOutboxReader>),
    Sqlite(Box<SqliteOutboxReader>),
    #[cfg(feature = "postgres")]
    Cdc(Box<cdc::CdcOutboxReader>),
}

impl AnyOutbox {
    pub(super) fn source(&self) -> AnySource {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(outbox) => AnySource::Postgres(Box::new(outbox.source())),
            #[cfg(feature = "mysql")]
            Self::Mysql(outbox) => AnySource::Mysql(Box::new(outbox.source())),
            Self::Sqlite(outbox) => AnySource::Sqlite(Box::new(outbox.source())),
        }
    }
}

macro_rules! each {
    ($this:ident, $source:ident => $work:expr) => {
        match $this {
            #[cfg(feature = "postgres")]
            Self::Postgres($source) => $work,
            #[cfg(feature = "mysql")]
            Self::Mysql($source) => $work,
            Self::Sqlite($source) => $work,
            #[cfg(feature = "postgres")]
            Self::Cdc($source) => $work,
        }
    };
}

impl OutboxReader for AnySource {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        each!(self, source => source.next().await)
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        each!(self, source => source.acquire_exclusive().await)
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        each!(self, source => source.resume(reached).await)
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        each!(self, source => source.ack(settled).await)
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        each!(self, source => source.renew_lease().await)
    }

    fn renew_after(&self) -> Duration {
        each!(self, source => source.renew_after())
    }

    fn holds_lease(&self) -> bool {
        each!(self, source => source.holds_lease())
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        each!(self, source => source.prune(older_than).await)
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        each!(self, source => source.lag().await)
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        each!(self, source => source.release().await)
    }
}
