//! The whole path on real databases and brokers: migrate, append by SQL, relay, read.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use serde_json::Value;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use testkit::services::{Lease, Service, require};

#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::relay_world::{Relay, text};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::semel::semel;

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use crate::world::block_on;

    struct Corner {
        lease: Lease,
        schema: String,
    }

    impl Corner {
        fn new(name: &str) -> Option<Self> {
            let lease = require(Service::Postgres)?;
            let corner = Self { schema: format!("cli_{name}_{}", std::process::id()), lease };
            corner.sql(&format!("CREATE SCHEMA {}", corner.schema));
            assert_eq!(semel(&["migrate", "--outbox", &corner.url()]).out(), "outbox: created, version 1\n");
            assert_eq!(
                semel(&["migrate", "--outbox", &corner.url()]).out(),
                "outbox: nothing to do, version 1\n"
            );
            Some(corner)
        }

        fn url(&self) -> String {
            format!("{}?schema={}", self.lease.url(), self.schema)
        }

        fn sql(&self, sql: &str) {
            block_on(async {
                let (client, connection) =
                    tokio_postgres::connect(self.lease.url(), tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client
                    .batch_execute(&format!("SET search_path = {}, public; {sql}", self.schema))
                    .await
                    .unwrap();
            });
        }
    }

    impl Drop for Corner {
        fn drop(&mut self) {
            self.sql(&format!("DROP SCHEMA {} CASCADE", self.schema));
        }
    }

    const INSERT: &str = "INSERT INTO semel_outbox (topic, type, key, payload)
        SELECT 'TOPIC', 'paid', 'k-' || n % 7, convert_to('{\"n\":' || n || '}', 'UTF8') FROM generate_series(1, 100) n";

    #[test]
    fn from_postgres_to_redis_streams() {
        let (Some(corner), Some(redis)) = (Corner::new("redis"), require(Service::Redis)) else { return };
        let (url, prefix) = (corner.url(), corner.schema.clone());
        corner.sql(&INSERT.replace("TOPIC", "payments"));
        assert_eq!(states(&url), ["waiting"; 100]);
        let relay = Relay::start(&url, &format!("{}?prefix={prefix}:", redis.url()), &[]);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events >= 100.0);
        relay.wait_for_metric("semel_relay_lanes", |partitions| partitions == 16.0);
        let listed =
            semel(&["outbox", "ls", "--from", &url, "--key", "k-3", "--oldest-first", "--json"]).json();
        let events = listed["events"].as_array().unwrap();
        assert_eq!(events.len(), 14);
        assert!(events.iter().all(|event| event["state"] == "published"), "{events:?}");
        let shown = semel(&["outbox", "show", &text(&events[0]["id"]), "--from", &url, "--json"]).json();
        assert_eq!((&shown["payload"], &shown["state"]), (&"{\"n\":3}".into(), &"published".into()));
        assert!(relay.stop().status.success());
        corner.sql(&INSERT.replace("TOPIC", "payments"));
        let waits =
            semel(&["outbox", "ls", "--from", &url, "--unpublished", "--limit", "1000", "--json"]).json();
        assert_eq!(waits["events"].as_array().unwrap().len(), 100);
        semel(&["outbox", "rebase", "--from-now", "--yes", "--from", &url]).out();
        assert_eq!(states(&url), ["published"; 200]);
    }

    /// What Kafka's own consumer reads with read_committed.
    #[cfg(feature = "kafka")]
    fn consumed(bootstrap: &str, topic: &str, at_least: usize, max: usize) -> Vec<String> {
        use testkit::services::kafka::{asked_until, console_consumer};
        let ask = || console_consumer(bootstrap, topic, true, max);
        asked_until(ask, |lines| lines.len() >= at_least).unwrap()
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn from_postgres_to_kafka_read_by_its_own_consumer() {
        let (Some(corner), Some(kafka)) = (Corner::new("kafka"), require(Service::Kafka)) else { return };
        let (url, to) = (corner.url(), format!("kafka://{}?compression=lz4", kafka.url()));
        let checked = semel(&["relay", "--from", &url, "--to", &to, "--check", "--json"]).json();
        assert_eq!((&checked["delivery"], &checked["holds"]), (&"at_least_once".into(), &true.into()));
        corner.sql(&INSERT.replace("TOPIC", &corner.schema));
        let relay = Relay::start(&url, &to, &[]);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events >= 100.0);
        assert!(relay.stop().status.success());
        let mut read = consumed(kafka.url(), &corner.schema, 100, 200);
        read.sort();
        // At least once.
        read.dedup();
        let mut expected: Vec<String> = (1..=100).map(|n| format!("{{\"n\":{n}}}")).collect();
        expected.sort();
        assert_eq!(read, expected);
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn exactly_once_to_kafka_over_a_kill() {
        let (Some(corner), Some(kafka)) = (Corner::new("once"), require(Service::Kafka)) else { return };
        let (url, topic) = (corner.url(), corner.schema.clone());
        let to = format!("kafka://{}?position_topic=positions-{topic}", kafka.url());
        let once = ["--exactly-once", topic.as_str()];
        let checked =
            semel(&[&["relay", "--from", &url, "--to", &to, "--check", "--json"], &once[..]].concat()).json();
        assert_eq!(checked["delivery"], "exactly_once");
        corner.sql(&INSERT.replace("TOPIC", &topic));
        let relay = Relay::start(&url, &to, &once);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events == 100.0);
        relay.kill();
        corner.sql(&INSERT.replace("TOPIC", &topic));
        let relay = Relay::start(&url, &to, &once);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events == 100.0);
        assert_eq!(relay.wait_for_ready(200), "ready\n");
        assert!(relay.stop().status.success());
        let read = consumed(kafka.url(), &topic, 200, 300);
        assert_eq!(read.len(), 200);
    }

    #[test]
    fn from_the_log_of_postgres() {
        let (Some(corner), Some(redis)) = (Corner::new("cdc"), require(Service::Redis)) else { return };
        let (url, name) = (corner.url(), corner.schema.clone());
        let to = format!("{}?prefix={name}:", redis.url());
        let cdc = ["--mode", "cdc", "--slot", name.as_str(), "--publication", name.as_str()];
        let checked =
            semel(&[&["relay", "--from", &url, "--to", &to, "--check", "--json"], &cdc[..]].concat());
        let report: Value = serde_json::from_str(&checked.stdout).unwrap();
        let about =
            |what: &str| report["checks"].as_array().unwrap().iter().find(|it| it["what"] == what).cloned();
        assert_eq!(about("wal_level").unwrap()["why"], "logical", "{checked:?}");
        assert_eq!((&report["mode"], about("rights").unwrap()["ok"].as_bool()), (&"cdc".into(), Some(true)));
        corner.sql(&INSERT.replace("TOPIC", "payments"));
        let relay = Relay::start(&url, &to, &cdc);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events >= 100.0);
        relay.wait_for_metric("semel_relay_slot_lag_bytes", |bytes| bytes >= 0.0);
        assert_eq!(relay.wait_for_ready(200), "ready\n");
        corner.sql(&INSERT.replace("TOPIC", "payments"));
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events >= 200.0);
        // The cursor lags a few seconds behind the stream.
        let until = std::time::Instant::now() + crate::receiver::SOON;
        while states(&url).iter().any(|state| state != "published") && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let ended = relay.stop();
        corner.sql(&format!("SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION {name}"));
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(states(&url), ["published"; 200]);
    }

    #[cfg(feature = "webhook")]
    #[test]
    fn a_slot_that_keeps_too_much_is_warned_of() {
        let Some(corner) = Corner::new("lags") else { return };
        let receiver = crate::receiver::Receiver::start();
        receiver.answers(|_| 503);
        let (url, to, name) = (corner.url(), receiver.url(), corner.schema.clone());
        let args = |most: &'static str| {
            let hook = ["--webhook-secret", "env:SEMEL_TEST_HOOK", "--webhook-allow-private"];
            let cdc = ["--mode", "cdc", "--slot", &name, "--publication", &name, "--slot-warn", most];
            [&hook[..], &cdc[..]].concat().into_iter().map(str::to_owned).collect::<Vec<String>>()
        };
        let few = args("2KiB");
        let few: Vec<&str> = few.iter().map(String::as_str).collect();
        let mut relay = Relay::start(&url, &to, &few);
        // Too many keys fail for a poison message: all wait until the receiver answers.
        corner.sql(&INSERT.replace("TOPIC", "payments").replace("% 7", "% 20"));
        let said = relay.wait_for_said("the replication slot makes the server retain too much log");
        let held = said.split_once("held_bytes=").and_then(|(_, rest)| rest.split(' ').next());
        assert!(said.contains(" WARN ") && said.contains(&name), "{said}");
        assert!(held.unwrap().parse::<u64>().unwrap() > 2_048, "{said}");
        let check = |most: &'static str| {
            let args = args(most);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let base = ["relay", "--from", &url, "--to", &to, "--check"];
            let mut command = crate::semel::command(&[&base[..], &args].concat());
            command.env("SEMEL_TEST_HOOK", crate::relay_world::SECRET);
            crate::semel::ran(command).stdout
        };
        let (noted, fine) = (check("2KiB"), check("1GiB"));
        receiver.answers(|_| 204);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events >= 100.0);
        let ended = relay.stop();
        corner.sql(&format!("SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION {name}"));
        assert!(noted.contains(&format!("note    slot: {name} is used by")), "{noted}");
        assert!(fine.contains(&format!("ok      slot: {name} is used by")), "{fine}");
        assert!(ended.status.success(), "{ended:?}");
    }

    #[test]
    fn a_user_without_rights_gets_an_error_that_names_them() {
        let (Some(corner), Some(redis)) = (Corner::new("rights"), require(Service::Redis)) else { return };
        let user = format!("u_{}", corner.schema);
        let schema = &corner.schema;
        corner.sql(&format!(
            "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user};
             GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}"
        ));
        let url = corner.url().replace("://postgres@", &format!("://{user}@"));
        let checked = semel(&["relay", "--from", &url, "--to", redis.url(), "--check", "--prune", "never"]);
        corner.sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}"));
        assert_eq!(checked.code, 2, "{checked:?}");
        assert!(checked.stderr.contains("UPDATE on semel_outbox_cursor"), "{checked:?}");
        assert!(!checked.stderr.contains("TRUNCATE"), "nothing is pruned: {checked:?}");
    }

    #[test]
    fn a_database_without_an_outbox_gets_an_error_that_says_how_to_create_it() {
        let Some(lease) = require(Service::Postgres) else { return };
        let line = semel(&["outbox", "ls", "--from", lease.url()]).failed(2);
        assert!(line.contains("semel migrate --outbox"), "{line}");
        let line = semel(&["outbox", "ls", "--from", "postgres://127.0.0.1:1/x"]).failed(1);
        assert!(line.contains("127.0.0.1:1") || line.contains("PostgreSQL"), "{line}");
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use std::process::Command;

    use super::*;

    struct Corner {
        lease: Lease,
        database: String,
    }

    impl Corner {
        fn new(server: Service, name: &str) -> Option<Self> {
            let lease = require(server)?;
            let corner = Self { database: format!("cli_{name}_{}", std::process::id()), lease };
            corner.run("", &format!("CREATE DATABASE {}", corner.database));
            assert_eq!(semel(&["migrate", "--outbox", &corner.url()]).out(), "outbox: created, version 1\n");
            assert_eq!(
                semel(&["migrate", "--outbox", &corner.url()]).out(),
                "outbox: nothing to do, version 1\n"
            );
            Some(corner)
        }

        fn url(&self) -> String {
            let (server, _) = self.lease.url().rsplit_once('/').unwrap();
            format!("{server}/{}", self.database)
        }

        /// With the database's own client, as a service in any language would.
        fn run(&self, database: &str, sql: &str) {
            let rest = self.lease.url().strip_prefix("mysql://").unwrap();
            let (user, rest) = rest.split_once('@').unwrap();
            let (host, _) = rest.split_once('/').unwrap();
            let (host, port) = host.split_once(':').unwrap();
            let mut client = Command::new("mariadb");
            client.args(["--no-defaults", "--protocol=tcp", "-h", host, "-P", port, "-u", user, "-e", sql]);
            if !database.is_empty() {
                client.arg(database);
            }
            let output = client.output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    }

    impl Drop for Corner {
        fn drop(&mut self) {
            self.run("", &format!("DROP DATABASE {}", self.database));
        }
    }

    #[test]
    fn from_mariadb_to_redis_streams() {
        to_redis_streams(Service::Mariadb);
    }

    #[test]
    fn from_mysql_to_redis_streams() {
        to_redis_streams(Service::Mysql);
    }

    fn to_redis_streams(server: Service) {
        let (Some(corner), Some(redis)) = (Corner::new(server, server.name()), require(Service::Redis))
        else {
            return;
        };
        let url = corner.url();
        for n in 0..30 {
            let insert = "INSERT INTO semel_outbox (topic, type, `key`, payload) VALUES";
            corner.run(&corner.database, &format!("{insert} ('payments', 'paid', 'k-{}', '{n}')", n % 5));
        }
        assert_eq!(states(&url), ["waiting"; 30]);
        let to = format!("{}?prefix={}:", redis.url(), corner.database);
        let checked = semel(&["relay", "--from", &url, "--to", &to, "--check", "--json"]);
        assert!(checked.stdout.contains("\"what\":\"rights\",\"ok\":true"), "{checked:?}");
        let relay = Relay::start(&url, &to, &[]);
        relay.wait_for_metric("semel_relay_events_total{outcome=\"confirmed\"}", |events| events >= 30.0);
        assert!(relay.stop().status.success());
        assert_eq!(states(&url), ["published"; 30]);
        let listed =
            semel(&["outbox", "ls", "--from", &url, "--key", "k-3", "--oldest-first", "--json"]).json();
        let events = listed["events"].as_array().unwrap();
        assert_eq!(events.len(), 6);
        let shown = semel(&["outbox", "show", &text(&events[1]["id"]), "--from", &url, "--json"]).json();
        assert_eq!(shown["payload"], "8");
        semel(&["outbox", "rebase", "--everything", "--from", &url]).out();
        assert_eq!(states(&url), ["waiting"; 30]);
    }
}

/// The states of all events.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn states(url: &str) -> Vec<String> {
    let listed: Value = semel(&["outbox", "ls", "--from", url, "--limit", "1000", "--json"]).json();
    listed["events"].as_array().unwrap().iter().map(|event| text(&event["state"])).collect()
}
