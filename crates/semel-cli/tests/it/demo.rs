//! The demo passes, and it detects planted bugs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::semel::{command, ran, semel};
use crate::world::World;

const SMALL: [&str; 6] = ["demo", "--json", "--intents", "100", "--sends=300", "--tasks=32"];

#[test]
fn each_payment_is_charged_exactly_once_although_the_gateway_is_killed() {
    for seed in ["1", "2"] {
        let ran = semel(&[&SMALL[..], &["--seed", seed]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let number = |path: &str| report.pointer(path).unwrap().as_u64().unwrap();
        assert_eq!((number("/intents"), number("/sends"), number("/tasks")), (100, 300, 32));
        assert_eq!(number("/gateways_killed"), 1);
        // Without a gateway every send is charged at least once, and some keys are used again.
        assert!(number("/without/charges") > 300 && number("/without/intents_repeated") > 50, "{report}");
        assert_eq!((number("/with/charges"), number("/with/intents_repeated")), (100, 0));
        assert_eq!(number("/with/intents_missing"), 0);
        assert!(number("/with/attempts") > 300 && number("/with/replayed") > 50, "{report}");
        assert!(number("/with/refused_conflict") > 0 && number("/with/told_uncertain") > 0, "{report}");
        let settled = report["settled"].as_object().unwrap();
        assert_eq!(settled.len(), 4);
        assert!(settled.values().map(|n| n.as_u64().unwrap()).sum::<u64>() > 0, "{report}");
        assert_eq!(report["wrong"], Value::Array(Vec::new()));
    }
}

#[test]
fn a_planted_bug_is_noticed() {
    for (bug, says) in [("twice", "times"), ("lost", "was never charged"), ("blind", "times")] {
        let ran = semel(&[&SMALL[..], &["--seed", "1", "--break", bug]].concat());
        assert_eq!(ran.code, 1, "{bug}: {ran:?}");
        let last = ran.stderr.lines().last().unwrap();
        assert!(last.starts_with("semel: not exactly once: ") && last.contains(says), "{last}");
    }
}

#[test]
fn nothing_is_left_behind_unless_it_is_kept() {
    let world = World::empty();
    let place = world.path().parent().unwrap().to_owned();
    let demo = |more: &[&str]| {
        let mut command =
            command(&[&["demo", "--intents", "20", "--sends", "60", "--tasks", "8"], more].concat());
        command.env("TMPDIR", &place);
        ran(command)
    };
    let pictures = tempfile::tempdir().unwrap();
    let picture = pictures.path().join("demo.svg");
    let table = demo(&["--seed", "7", "--svg", picture.to_str().unwrap()]);
    assert_eq!(table.code, 0, "{table:?}");
    // One square per payment and side; with semel every payment was charged once.
    assert_eq!(std::fs::read_to_string(&picture).unwrap().matches("h8v8h-8z").count(), 40);
    assert!(table.stdout.ends_with(
        "with semel\n  never charged        0\n  charged once         ████████████████████████ 20\n  \
         charged twice        0\n  three times or more  0\n"
    ));
    let nowhere = demo(&["--svg", "no/such/folder/demo.svg"]);
    assert_eq!((nowhere.code, nowhere.stdout.as_str()), (2, ""), "{nowhere:?}");
    assert!(nowhere.stderr.contains("no folder no/such/folder"), "{}", nowhere.stderr);
    assert!(table.stdout.starts_with("20 payments sent 60 times by 8 clients, seed 7\n"), "{}", table.stdout);
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    assert_eq!(processes_at(&place), Vec::<String>::new());

    let kept = demo(&["--keep"]);
    let directory = std::fs::read_dir(&place).unwrap().next().unwrap().unwrap().path();
    assert!(kept.stderr.contains(&format!("kept: {}", directory.display())), "{}", kept.stderr);
    let url = format!("sqlite:{}", directory.join("semel.db").display());
    assert_eq!(semel(&["ls", "--state", "completed", "--store", &url]).out().lines().count(), 21);
    assert_eq!(processes_at(&place), Vec::<String>::new());
}

#[test]
fn it_stays_to_be_tried_until_it_is_stopped() {
    let world = World::empty();
    let place = world.path().parent().unwrap().to_owned();
    let mut demo = command(&["demo", "--stay", "--intents", "10", "--sends", "20", "--tasks", "8"]);
    demo.env("TMPDIR", &place).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines().map(Result::unwrap);
    let gateway = lines.find_map(|line| line.strip_prefix("gateway  http://").map(str::to_owned)).unwrap();
    let said: Vec<String> = lines.by_ref().take_while(|line| line != "Press Ctrl-C to stop.").collect();
    assert_eq!(said.iter().filter(|line| line.contains("curl -i http://127.0.0.1:")).count(), 2, "{said:?}");

    // The demo's gateway times out after a quarter of a second. On a busy machine the intent may then be in doubt.
    let payments = (0..20).map(|n| [(); 2].map(|()| pay(&gateway, &format!("order-{n}"))));
    let [first, again] = payments.into_iter().find(|[first, _]| first.starts_with("HTTP/1.1 201 ")).unwrap();
    assert!(!first.contains("idempotency-replayed"), "{first}");
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert_eq!(first.split("\r\n\r\n").nth(1), again.split("\r\n\r\n").nth(1));

    assert!(Command::new("kill").args(["-TERM", &demo.id().to_string()]).status().unwrap().success());
    assert!(demo.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    assert_eq!(processes_at(&place), Vec::<String>::new());
}

/// On the user's servers: nothing is in doubt where one commit decides, and nothing is left behind.
#[test]
fn at_the_reference_service_each_payment_is_booked_exactly_once_although_it_is_killed() {
    use testkit::services::{Service, require};
    let (Some(postgres), Some(redis)) = (require(Service::Postgres), require(Service::Redis)) else { return };
    let _one = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    drop_schemas(postgres.url());
    let flags = ["--seed", "3", "--store", postgres.url(), "--cache", redis.url()];
    let ran = semel(&[&SMALL[..], &flags].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let number = |path: &str| report.pointer(path).unwrap().as_u64().unwrap();
    for side in ["with", "in_transaction"] {
        assert_eq!(number(&format!("/{side}/charges")), 100, "{report}");
        assert_eq!(number(&format!("/{side}/intents_repeated")), 0, "{report}");
        assert_eq!(number(&format!("/{side}/intents_missing")), 0, "{report}");
        assert!(number(&format!("/{side}/replayed")) > 50, "{report}");
    }
    assert_eq!((number("/gateways_killed"), number("/services_killed")), (1, 1));
    assert_eq!(number("/in_transaction/told_uncertain"), 0);
    assert_eq!(schemas(postgres.url()), 0, "schemas of the demo's are left behind");
}

/// Demos on one PostgreSQL, where schemas are counted.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

/// A demo removes the schemas of killed demos, but not those of running ones, nor those that were kept.
#[test]
fn schemas_of_a_killed_demo_are_removed_by_the_next_one() {
    use testkit::services::{Service, require};
    let Some(postgres) = require(Service::Postgres) else { return };
    let _one = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let url = postgres.url();
    drop_schemas(url);
    let small = ["demo", "--intents", "10", "--sends", "10", "--tasks", "2", "--store", url];
    let next = |more: &[&str]| {
        let ran = semel(&[&small[..], more].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stderr
    };
    let mut living = command(&[&small[..], &["--stay"]].concat());
    let mut living = living.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(living.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "Press Ctrl-C to stop."));
    let said = next(&[]);
    assert_eq!((schemas(url), said.contains("of a killed demo")), (2, false), "{said}");

    living.kill().unwrap();
    living.wait().unwrap();
    assert_eq!(schemas(url), 2, "they could not be removed");
    wait_for_locks(url);
    let said = next(&["--keep"]);
    assert_eq!((schemas(url), said.matches("of a killed demo").count()), (2, 2), "{said}");

    let said = next(&[]);
    assert_eq!((schemas(url), said.contains("of a killed demo")), (2, false), "kept: {said}");
    drop_schemas(url);
    assert_eq!(schemas(url), 0);
}

/// Also removes what an earlier, failed run left behind.
fn drop_schemas(url: &str) {
    let drop = "DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT nspname FROM pg_namespace WHERE nspname LIKE 'semel\\_demo\\_%' LOOP
            EXECUTE 'DROP SCHEMA ' || name || ' CASCADE';
        END LOOP; END $$";
    on_server(url, async |client| client.batch_execute(drop).await.unwrap());
}

/// Waits until the server has noticed that the owners of all schemas are gone.
fn wait_for_locks(url: &str) {
    let held = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'semel\\_demo\\_%'
                AND NOT pg_try_advisory_xact_lock(hashtextextended(nspname::text, 7075))";
    for _ in 0..3_000 {
        if on_server(url, async |client| client.query_one(held, &[]).await.unwrap().get::<_, i64>(0)) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("somebody still has a schema's lock");
}

/// How many schemas of demos there are.
fn schemas(url: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'semel\\_demo\\_%'";
    on_server(url, async |client| client.query_one(count, &[]).await.unwrap().get(0))
}

fn on_server<T>(url: &str, work: impl AsyncFnOnce(&tokio_postgres::Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let done = work(&client).await;
        drop(client);
        connection.await.unwrap().unwrap();
        done
    })
}

#[test]
fn servers_are_named_by_flags_and_only_postgres_has_books() {
    for (flags, says) in [
        (&["--cache", "redis://127.0.0.1:1"][..], "give --store postgres://"),
        (&["--store", "sqlite:x.db"], "must be PostgreSQL"),
        (&["--store", "postgres://127.0.0.1:1/x?schema=a"], "leave ?schema= out"),
    ] {
        let ran = semel(&[&SMALL[..], flags].concat());
        assert_ne!(ran.code, 0, "{ran:?}");
        assert!(ran.stderr.contains(says), "{ran:?}");
    }
    // The environment's settings do not apply to the demo.
    let mut demo = command(&["demo", "--intents", "10", "--sends", "20", "--tasks", "8"]);
    demo.env("SEMEL_STORE", "postgres://127.0.0.1:1/nowhere").env("SEMEL_CACHE", "redis://127.0.0.1:1");
    let ran = ran(demo);
    assert_eq!(ran.code, 0, "{ran:?}");
}

fn pay(gateway: &str, key: &str) -> String {
    let mut stream = TcpStream::connect(gateway).unwrap();
    let body = r#"{"amount": 4200}"#;
    write!(
        stream,
        "POST /payments HTTP/1.1\r\nHost: {gateway}\r\nIdempotency-Key: {key}\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Processes whose command line contains this path.
fn processes_at(place: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&*place.to_string_lossy()))
        .collect()
}

#[test]
fn a_killed_demo_leaves_no_gateway_behind() {
    let world = World::empty();
    let place = world.path().parent().unwrap().to_owned();
    let mut demo = command(&["demo", "--stay", "--intents", "10", "--sends", "10", "--tasks", "2"]);
    demo.env("TMPDIR", &place).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "Press Ctrl-C to stop."));
    assert_eq!(processes_at(&place).len(), 1);
    demo.kill().unwrap();
    demo.wait().unwrap();
    for _ in 0..2_000 {
        if processes_at(&place).is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("still there: {:?}", processes_at(&place));
}
