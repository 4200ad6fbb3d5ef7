//! What needs the server alone: it is restarted, or its settings are changed.

use std::time::Duration;

use semel::relay::OutboxReader;
use testkit::certificates::certificates;
use testkit::services::{Service, alone};

use crate::cdc::world::{Running, World, batch, connect, drained, insert, quick, until};
use crate::relay::sink::TestSink;

/// Slow: a server of its own, killed and recovered.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_comes_back_is_read_on() {
    let Some(mut server) = alone(Service::Postgres) else { return };
    let world = World::on(server.url()).await;
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    let client = world.connect().await;
    for n in 0..20 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(15).await;
    server.restart().unwrap();
    let client = world.connect().await;
    for n in 20..40 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(40).await;
    assert_eq!(sink.first_of_each()["a"], (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    relay.stop().await;
    world.end().await;
}

/// Slow: a server of its own that writes log until its slot is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_log_was_thrown_away_is_made_anew_and_nothing_is_lost() {
    let Some(mut server) = alone(Service::Postgres) else { return };
    server.restart_with(&["-c", "max_slot_wal_keep_size=1MB"]).unwrap();
    let world = World::on(server.url()).await;
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    let client = world.connect().await;
    for n in 0..5 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(5).await;
    relay.stop().await;
    for n in 5..10 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    until("the slot is lost", async || {
        client
            .batch_execute(
                "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)); SELECT pg_switch_wal()",
            )
            .await
            .unwrap();
        client.batch_execute("CHECKPOINT").await.unwrap();
        world.slot("wal_status").await.as_deref() == Some("lost")
    })
    .await;
    let findings = world.outbox().await.check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.says.contains("is lost")), "{findings:?}");
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    for n in 10..15 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(15).await;
    assert_eq!(sink.first_of_each()["a"], (0..15).map(|n| n.to_string()).collect::<Vec<_>>());
    relay.stop().await;
    world.end().await;
}

/// Slow: a server of its own, and a batch that outlasts its `wal_sender_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_on_its_way_for_longer_than_the_server_waits_keeps_its_connection() {
    let Some(mut server) = alone(Service::Postgres) else { return };
    server.restart_with(&["-c", "wal_sender_timeout=12s"]).unwrap();
    let world = World::on(server.url()).await;
    let sink = TestSink::default();
    let outbox = world.options().lease(Duration::from_secs(30)).batch_max(1, 1 << 20).open().await.unwrap();
    let relay = Running::start(outbox.source(), &sink, quick());
    let client = world.connect().await;
    client.batch_execute(&insert("a", "0")).await.unwrap();
    sink.wait_for(1).await;
    until("it streams", async || world.slot("active_pid").await.is_some()).await;
    let pid = world.slot("active_pid").await;
    sink.state().delay = Duration::from_secs(15);
    // More than fits into the sockets: the server waits for us to read while we wait for the sink.
    client
        .batch_execute("INSERT INTO semel_outbox (topic, type, key, payload) SELECT 't', 'made', 'big', decode(repeat('61', 500000), 'hex') FROM generate_series(1, 30)")
        .await
        .unwrap();
    sink.wait_for(2).await;
    assert_eq!(world.slot("active_pid").await, pid);
    sink.state().delay = Duration::ZERO;
    sink.wait_for(31).await;
    assert_eq!(sink.texts().len(), 31);
    relay.stop().await;
    world.end().await;
}

/// Slow: a server of its own, started again with TLS.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_comes_over_tls_and_with_a_password() {
    let Some(mut server) = alone(Service::Postgres) else { return };
    let at = tempfile::tempdir().unwrap();
    certificates(at.path());
    let person = connect(server.url()).await;
    for file in ["server.key", "server.pem"] {
        let text = std::fs::read_to_string(at.path().join(file)).unwrap();
        let lines: Vec<String> = text.lines().map(|line| format!("('{line}')")).collect();
        let sql =
            format!("COPY (VALUES {}) TO PROGRAM 'umask 077; cat > semel_cdc_{file}'", lines.join(", "));
        person.batch_execute(&sql).await.unwrap();
    }
    let rules = "hostssl all cdc_secret 127.0.0.1/32 scram-sha-256\nhost all cdc_secret 127.0.0.1/32 reject\n\
                 host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust";
    let lines: Vec<String> = rules.lines().map(|line| format!("('{line}')")).collect();
    let sql = format!("COPY (VALUES {}) TO PROGRAM 'cat > semel_cdc_hba.conf'", lines.join(", "));
    person.batch_execute(&sql).await.unwrap();
    server
        .restart_with(&[
            "-c",
            "ssl=on",
            "-c",
            "ssl_cert_file=semel_cdc_server.pem",
            "-c",
            "ssl_key_file=semel_cdc_server.key",
            "-c",
            "hba_file=semel_cdc_hba.conf",
        ])
        .unwrap();
    let world = World::on(server.url()).await;
    let client = world.connect().await;
    client
        .batch_execute(
            "DROP ROLE IF EXISTS cdc_secret; CREATE ROLE cdc_secret SUPERUSER LOGIN PASSWORD 'p@ss'",
        )
        .await
        .unwrap();
    let url = |password: &str, roots: &str| {
        let secret = world.url().replace("postgres@127.0.0.1", &format!("cdc_secret:{password}@localhost"));
        format!("{secret}&sslmode=verify-full&sslrootcert={}", at.path().join(roots).display())
    };
    let mut source = world.options_at(&url("p%40ss", "ca.pem")).open().await.unwrap().source();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["1"]);
    client.batch_execute(&insert("a", "2")).await.unwrap();
    assert_eq!(batch(&mut source).await.events.len(), 1);
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE backend_type = 'walsender' AND ssl";
    assert_eq!(client.query_one(encrypted, &[]).await.unwrap().get::<_, i64>(0), 1);
    source.release().await.unwrap();
    for wrong in [url("wrong", "ca.pem"), url("p%40ss", "other.pem")] {
        assert!(world.options_at(&wrong).open().await.is_err());
    }
    client.batch_execute("DROP OWNED BY cdc_secret; DROP ROLE cdc_secret").await.unwrap();
    world.end().await;
}
