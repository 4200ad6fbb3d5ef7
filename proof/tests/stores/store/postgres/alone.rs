//! What needs the server alone: its settings are changed, or its write-ahead log is watched.

use semel::store::postgres::PostgresStore;
use semel::store::{Claimed, ErrorKind, Store};
use testkit::certificates::certificates;
use testkit::services::{Alone, Service, alone};
use tokio_postgres::{Client, NoTls};

use super::place::{PATIENT, apart, clear_away};
use super::work::*;

/// The server alone, with a schema and settings that both go away with this.
struct Mine {
    server: Alone,
    schema: &'static str,
}

impl Mine {
    fn take(schema: &'static str) -> Option<Self> {
        let server = alone(Service::Postgres)?;
        apart(server.url(), format!("DROP SCHEMA IF EXISTS {schema} CASCADE"));
        apart(server.url(), format!("CREATE SCHEMA {schema}"));
        Some(Self { server, schema })
    }

    fn url(&self, more: &str) -> String {
        format!("{}?schema={}&{PATIENT}{more}", self.server.url(), self.schema)
    }

    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(self.server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Sets, and waits until new connections see it.
    async fn set(&self, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            apart(self.server.url(), format!("ALTER SYSTEM SET {name} = '{value}'"));
        }
        self.reload(settings).await;
    }

    async fn reload(&self, expected: &[(&str, &str)]) {
        apart(self.server.url(), "SELECT pg_reload_conf()".to_owned());
        soon(async {
            loop {
                let client = self.client().await;
                let mut same = true;
                for (name, value) in expected {
                    let row = client.query_one("SELECT current_setting($1)", &[name]).await.unwrap();
                    same &= row.get::<_, &str>(0) == *value;
                }
                if same {
                    return;
                }
            }
        })
        .await;
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        clear_away(self.server.url(), "ALTER SYSTEM RESET ALL".to_owned());
        clear_away(self.server.url(), "SELECT pg_reload_conf()".to_owned());
        clear_away(self.server.url(), format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_writes_nothing() {
    let Some(mine) = Mine::take("alone_replay") else { return };
    let store = PostgresStore::open(&mine.url("")).await.unwrap();
    let ticket = run(&store, "done").await;
    soon(store.finish(ticket, finish())).await.unwrap();
    let person = mine.client().await;
    // The server writes a little by itself now and then, so one quiet round within a minute is asked for.
    let (mut grown, began) = (None, std::time::Instant::now());
    while began.elapsed() < PATIENCE * 2 {
        let position =
            "SELECT pg_current_wal_insert_lsn()::text, pg_snapshot_xmax(pg_current_snapshot())::text";
        let before = person.query_one(position, &[]).await.unwrap();
        for _ in 0..100 {
            let replay = soon(store.claim(claim("done"))).await.unwrap();
            assert!(matches!(replay, Claimed::Replay(_)), "{replay:?}");
        }
        let after = person.query_one(position, &[]).await.unwrap();
        let positions: [(String, String); 2] = [before, after].map(|row| (row.get(0), row.get(1)));
        if positions[0] == positions[1] {
            return;
        }
        grown = Some(positions);
    }
    panic!("replays wrote something or took transaction ids: {grown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_flush_is_not_called_durable() {
    let Some(mine) = Mine::take("alone_fsync") else { return };
    mine.set(&[("fsync", "off"), ("full_page_writes", "off")]).await;
    let store = PostgresStore::open(&mine.url("")).await.unwrap();
    assert!(!store.capabilities().durable);
    let warnings = store.settings().warnings.join("\n");
    assert!(warnings.contains("fsync is off") && warnings.contains("full_page_writes is off"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_where_asked_and_a_certificate_by_a_stranger_is_refused() {
    let Some(mine) = Mine::take("alone_tls") else { return };
    let at = tempfile::tempdir().unwrap();
    certificates(at.path());
    // The server writes the files itself: they have to be its own user's, and readable only by it.
    let person = mine.client().await;
    for file in ["server.key", "server.pem"] {
        let text = std::fs::read_to_string(at.path().join(file)).unwrap();
        let lines: Vec<String> = text.lines().map(|line| format!("('{line}')")).collect();
        let sql =
            format!("COPY (VALUES {}) TO PROGRAM 'umask 077; cat > semel_test_{file}'", lines.join(", "));
        person.batch_execute(&sql).await.unwrap();
    }

    // Without TLS on the server: asked for, it is not to be had.
    let required = PostgresStore::open(&mine.url("&sslmode=require")).await.unwrap_err();
    assert_eq!(required.kind(), ErrorKind::Unavailable, "{required}");
    mine.set(&[
        ("ssl_cert_file", "semel_test_server.pem"),
        ("ssl_key_file", "semel_test_server.key"),
        ("ssl", "on"),
    ])
    .await;

    let (ca, other) = (at.path().join("ca.pem"), at.path().join("other.pem"));
    let full = |host: &str, roots: &std::path::Path| {
        let more = format!("&sslmode=verify-full&sslrootcert={}", roots.display());
        mine.url(&more).replace("127.0.0.1", host)
    };
    for url in [mine.url("&sslmode=require"), mine.url("&sslmode=prefer"), full("localhost", &ca)] {
        let store = PostgresStore::open(&url).await.unwrap();
        run(&store, &format!("over-{}", fastrand::u64(..))).await;
        let sql = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
            WHERE application_name = 'semel' AND ssl";
        let encrypted: i64 = person.query_one(sql, &[]).await.unwrap().get(0);
        assert!(encrypted > 0, "{url} is not encrypted");
        store.close().await;
        soon(async { while person.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {} }).await;
    }
    // A certificate by somebody else, and the right one for another name.
    for url in [full("localhost", &other), full("127.0.0.1", &ca)] {
        let error = PostgresStore::open(&url).await.unwrap_err();
        assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
    }
    let error = PostgresStore::open(&full("localhost", &at.path().join("nothing.pem"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}
