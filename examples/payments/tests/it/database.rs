//! Where the service keeps its books, and what they hold, read without the service.

use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::{Connection, OpenFlags};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use testkit::services::{Lease, Service, require};

pub(crate) enum Database {
    Sqlite(TempDir),
    /// A database of its own, not merely a schema: locks of intents are a database's, and the tests use the same keys.
    Postgres {
        server: Lease,
        name: String,
    },
}

impl Database {
    /// Both; without PostgreSQL where the run goes without it.
    pub(crate) fn all() -> Vec<Self> {
        [Some(Self::sqlite()), Self::postgres()].into_iter().flatten().collect()
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(testkit::scratch::directory())
    }

    pub(crate) fn postgres() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = require(Service::Postgres)?;
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("payments_{}_{n}_{}", std::process::id(), fastrand::u32(..));
        run(server.url(), &format!("CREATE DATABASE {name} TEMPLATE template0"));
        Some(Self::Postgres { server, name })
    }

    /// The service's `--store`.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(directory) => format!("sqlite:{}", directory.path().join("payments.db").display()),
            Self::Postgres { server, name } => url(server, name),
        }
    }

    /// The one number a query returns.
    pub(crate) fn number(&self, query: &str) -> i64 {
        self.value(query)
    }

    /// The one text a query returns, or nothing.
    pub(crate) fn text(&self, query: &str) -> Option<String> {
        self.value(query)
    }

    fn value<T>(&self, query: &str) -> T
    where
        T: rusqlite::types::FromSql
            + for<'r> sqlx::Decode<'r, sqlx::Postgres>
            + sqlx::Type<sqlx::Postgres>
            + Send
            + Unpin,
    {
        match self {
            Self::Sqlite(directory) => {
                let path = directory.path().join("payments.db");
                let judge = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
                judge.query_row(query, [], |row| row.get(0)).unwrap()
            }
            Self::Postgres { .. } => on_runtime(async {
                let mut judge = PgConnection::connect(&self.url()).await.unwrap();
                sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_one(&mut judge).await.unwrap()
            }),
        }
    }

    pub(crate) fn payments(&self, key: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM payment WHERE merchant = 'acme' AND key = '{key}'"))
    }

    /// Forgets every answer, as a sweep does when its retention has ended.
    pub(crate) fn sweep(&self) {
        self.write("DELETE FROM semel_intent");
    }

    /// Runs a statement that changes something.
    pub(crate) fn write(&self, statement: &str) {
        match self {
            Self::Sqlite(directory) => {
                let file = Connection::open(directory.path().join("payments.db")).unwrap();
                file.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                file.execute(statement, []).unwrap();
            }
            Self::Postgres { .. } => run(&self.url(), statement),
        }
    }

    /// There are this many payments and refunds, each with one answer; and whatever the numbers are, the books are
    /// right.
    pub(crate) fn judge(&self, payments: i64, refunds: i64) {
        self.judge_books(payments, refunds);
        let answers = "SELECT count(*) FROM semel_intent WHERE state = 2";
        assert_eq!(self.number(answers), payments + refunds, "one answer each");
        let open = "SELECT count(*) FROM semel_intent WHERE state <> 2";
        assert_eq!(self.number(open), 0, "nothing is left open");
    }

    /// The same without the answers, for when they are forgotten.
    pub(crate) fn judge_books(&self, payments: i64, refunds: i64) {
        let number = |query: &str| self.number(query);
        assert_eq!(number("SELECT count(*) FROM payment"), payments);
        assert_eq!(number("SELECT count(*) FROM refund"), refunds);
        assert_eq!(number("SELECT count(*) FROM semel_posting"), payments + refunds, "one posting for each");
        assert_eq!(
            number("SELECT count(*) FROM semel_entry"),
            2 * (payments + refunds),
            "from one to another"
        );
        assert_eq!(
            number("SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM semel_entry"),
            0,
            "sums to zero"
        );
        let revenue =
            "SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM semel_entry WHERE account = 'acme/revenue'";
        let paid = "SELECT CAST(coalesce(sum(amount - refunded), 0) AS bigint) FROM payment";
        assert_eq!(number(revenue), number(paid), "the balance is what was paid");
        let refunded = "SELECT CAST(coalesce(sum(refunded), 0) AS bigint) FROM payment";
        let given_back = "SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM refund";
        assert_eq!(number(refunded), number(given_back));
        self.judge_events();
    }

    /// Events that are committed.
    pub(crate) fn events(&self) -> i64 {
        self.number("SELECT count(*) FROM semel_outbox")
    }

    /// Two for each payment and two for each refund that is there, and none of anything else.
    pub(crate) fn judge_events(&self) {
        let of = |kind: &str| {
            format!("(SELECT count(*) FROM semel_outbox WHERE aggregate_id = p.id AND type = '{kind}')")
        };
        let refunds = "(SELECT count(*) FROM refund WHERE payment = p.id)";
        for (kind, wanted) in [
            ("payment.completed", "1"),
            ("payment.recorded", "1"),
            ("payment.refunded", refunds),
            ("refund.recorded", refunds),
        ] {
            let wrong = format!("SELECT count(*) FROM payment p WHERE {} <> {wanted}", of(kind));
            assert_eq!(self.number(&wrong), 0, "payments without exactly their {kind}");
        }
        let made = self.number("SELECT (SELECT count(*) FROM payment) + (SELECT count(*) FROM refund)");
        assert_eq!(self.events(), 2 * made, "no event without its payment or refund");
        let causes = "SELECT count(DISTINCT intent) FROM semel_outbox";
        assert_eq!(self.number(causes), made, "each names its own intent");
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Self::Postgres { server, name } = self {
            run(server.url(), &format!("DROP DATABASE {name} WITH (FORCE)"));
        }
    }
}

/// The same server, another database.
fn url(server: &Lease, name: &str) -> String {
    let (server, _) = server.url().rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

fn run(url: &str, statement: &str) {
    on_runtime(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    });
}

fn on_runtime<T: Send>(work: impl Future<Output = T> + Send) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
