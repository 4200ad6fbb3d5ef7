//! Checks the server's settings and lineage.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connect::Path;
use super::error::PostgresError;
use super::schema::one;
use crate::store;

/// The oldest supported server: the statements need `gen_random_uuid` and ranges of `ctid`.
const VERSION_MIN: u32 = 130_000;

const ASK: &str = "SELECT current_setting('semel.direct', true), pg_is_in_recovery(), \
    current_setting('transaction_read_only'), current_setting('synchronous_commit'), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('default_transaction_isolation'), current_schema(), \
    current_setting('server_version_num'), current_setting('server_version')";

#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    pub(super) settings_arrived: bool,
    pub(super) in_recovery: bool,
    pub(super) read_only: bool,
    pub(super) synchronous_commit: String,
    pub(super) isolation: String,
    pub(super) schema: Option<String>,
    fsync: bool,
    full_page_writes: bool,
    version_number: u32,
    version: String,
}

impl Probe {
    pub(super) async fn ask(client: &Client) -> Result<Self, PostgresError> {
        let row = one(client, ASK).await?;
        let text = |column: usize| row.get(column).cloned().flatten();
        let is = |column: usize, value: &str| text(column).as_deref() == Some(value);
        Ok(Self {
            settings_arrived: is(0, "yes"),
            in_recovery: is(1, "t"),
            read_only: is(2, "on"),
            synchronous_commit: text(3).unwrap_or_default(),
            fsync: is(4, "on"),
            full_page_writes: is(5, "on"),
            isolation: text(6).unwrap_or_default(),
            schema: text(7),
            version_number: text(8).and_then(|text| text.parse().ok()).unwrap_or(0),
            version: text(9).unwrap_or_default(),
        })
    }

    pub(super) fn settings(&self, path: Path) -> PostgresSettings {
        let mut warnings = Vec::new();
        if !self.fsync {
            warnings.push(
                "fsync is off: a crash of the server's machine may lose or damage records; turn it on".into(),
            );
        }
        if !self.full_page_writes {
            warnings.push(
                "full_page_writes is off: a crash of the server's machine may damage records unless its disk \
                 writes whole pages; turn it on"
                    .into(),
            );
        }
        if self.synchronous_commit == "off" {
            warnings.push("synchronous_commit is off; semel sets it to on for its own transactions".into());
        }
        if self.version_number < VERSION_MIN {
            warnings.push(format!(
                "PostgreSQL {} is older than 13, the oldest version semel supports; upgrade it",
                self.version
            ));
        }
        PostgresSettings {
            version: self.version.clone(),
            durable: self.fsync,
            pooled: path == Path::Pooled,
            synchronous_commit: self.synchronous_commit.clone(),
            warnings,
        }
    }
}

/// The server's settings when the store was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PostgresSettings {
    /// The server's version.
    pub version: String,
    /// Whether acknowledged writes survive a crash of its machine.
    pub durable: bool,
    /// Whether there is a pooler in transaction mode in between.
    pub pooled: bool,
    /// `synchronous_commit` as configured on the server.
    pub synchronous_commit: String,
    /// Warnings for the operator, a sentence each.
    pub warnings: Vec<String>,
}

/// Empty if this user may not read it. Any other error is returned: a failed read must not look like another lineage.
async fn one_if_allowed(client: &Client, sql: &str) -> Result<Vec<Option<String>>, PostgresError> {
    match one(client, sql).await {
        Err(PostgresError::Postgres(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            Ok(Vec::new())
        }
        answer => answer,
    }
}

/// The identity of the tables and their server: a cache or a cursor over them stores it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PostgresLineage {
    /// A random id, created with the tables.
    pub store: String,
    /// The cluster's `system_identifier`; `None` if this user may not read it.
    pub system: Option<String>,
    /// The timeline: one higher after each promotion of a standby. `None` if this user may not read it.
    pub timeline: Option<u32>,
}

impl PostgresLineage {
    pub(super) async fn ask(client: &Client) -> Result<Self, PostgresError> {
        let store = one(client, "SELECT store FROM semel_meta").await?;
        let text = |row: &[Option<String>]| row.first().cloned().flatten();
        let system = one_if_allowed(client, "SELECT system_identifier FROM pg_control_system()").await?;
        // Not the last checkpoint's timeline: right after a promotion that is still the old one.
        let timeline = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
        let timeline = one_if_allowed(client, timeline).await?;
        Ok(Self {
            store: text(&store).unwrap_or_default(),
            system: text(&system),
            timeline: text(&timeline).and_then(|hex| u32::from_str_radix(&hex, 16).ok()),
        })
    }

    pub(super) fn digest(&self) -> store::Lineage {
        let system = self.system.as_deref().unwrap_or_default();
        let timeline = self.timeline.unwrap_or_default().to_be_bytes();
        store::Lineage::of(&[self.store.as_bytes(), system.as_bytes(), &timeline])
    }
}
