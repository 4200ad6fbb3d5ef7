//! The gateway killed with many requests in flight, at every crash point, in front of a service with a lookup: after
//! a restart every one of them is settled, by retries alone.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use semel::crash;

use crate::SOON;
use crate::gateway::Gateway;
use crate::upstream::Upstream;
use crate::wire::{connect, exchange, payment};

/// Long enough for a restart on a busy machine to be well within it.
const LEASE: Duration = Duration::from_secs(15);
const CONFIG: &str = r#"
log = "warn"
[scope]
single_tenant = true
[[operation]]
match = "POST /v1/payment_intents"
lease = "15s"
lookup = "GET /v1/payment_intents/by-key/{key}"
lookup_absent = 404
lookup_settle = "100ms"
"#;
/// Keys in flight at once, and the one whose request reaches the crash point.
const KEYS: usize = 8;
const NTH: usize = 4;

/// What a request gets.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Got {
    Paid(String),
    InProgress,
    Uncertain,
    Nothing,
}

fn pay(connection: TcpStream, key: &str) -> Got {
    let Some((head, body)) = exchange(connection, &payment(key)) else { return Got::Nothing };
    match (head.status(), head.header("idempotency-problem")) {
        (200, None) => Got::Paid(String::from_utf8(body).unwrap()),
        (409, Some("IDEMPOTENCY_REQUEST_IN_PROGRESS")) => Got::InProgress,
        (409, Some("IDEMPOTENCY_OUTCOME_UNCERTAIN")) => Got::Uncertain,
        _ => panic!("{head:?} {}", String::from_utf8_lossy(&body)),
    }
}

/// The state right after the restart and at the end, in one line.
fn killed_at(point: &'static str) -> String {
    // A restart that takes as long as a lease cannot show the state within the lease.
    let killed = (0..3).find_map(|_| kill_at(point));
    killed.unwrap_or_else(|| panic!("{point}: three times the restart took longer than the lease"))
}

/// `None` if the machine was too slow to check within the lease.
fn kill_at(point: &'static str) -> Option<String> {
    let (upstream, directory) = (Upstream::start(), testkit::scratch::directory());
    let keys: Vec<String> = (0..KEYS).map(|n| format!("{point}-{n}")).collect();
    let mut gateway =
        Gateway::on(directory.path(), upstream.address, CONFIG, Some(&format!("{point}:{NTH}")));
    let (address, sent) = (gateway.address, Instant::now());
    // All are connected before the first is sent: none reaches a gateway that is already dead.
    let connected: Vec<_> = keys.iter().map(|key| (connect(address), key.clone())).collect();
    let clients =
        connected.into_iter().map(|(connection, key)| std::thread::spawn(move || pay(connection, &key)));
    let clients: Vec<_> = clients.collect();
    assert_eq!(gateway.child.wait_for_point(SOON).unwrap(), point);
    gateway.child.kill().unwrap();
    let earlier: Vec<Got> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert!(earlier.contains(&Got::Nothing), "{point}: the one that was killed has no answer");
    let charged = upstream.charges().len();

    let gateway = Gateway::on(directory.path(), upstream.address, CONFIG, None);
    let mut now: Vec<Got> = keys.iter().map(|key| pay(connect(gateway.address), key)).collect();
    if sent.elapsed() >= LEASE {
        return None;
    }
    assert!(!now.contains(&Got::Uncertain), "{point}: somebody may still be at it: {now:?}");
    let held = now.iter().filter(|got| **got == Got::InProgress).count();
    if [crash::AFTER_CLAIM, crash::BEFORE_EFFECT, crash::AFTER_EFFECT, crash::BEFORE_FINISH].contains(&point)
    {
        assert!(held > 0, "{point}: what was claimed is held until the lease is over: {now:?}");
    }
    // The lease has to expire first.
    let until = Instant::now() + LEASE + SOON;
    for (key, got) in keys.iter().zip(&mut now) {
        while !matches!(got, Got::Paid(_)) {
            assert!(Instant::now() < until, "{point}: {key} is not settled: {got:?}");
            std::thread::sleep(Duration::from_millis(100));
            *got = pay(connect(gateway.address), key);
        }
    }

    let mut judged = upstream.charges();
    judged.sort();
    let paid: Vec<&str> = judged.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(paid, keys, "{point}: each exactly once");
    for (((_, id), now), earlier) in judged.iter().zip(&now).zip(&earlier) {
        assert!(
            matches!(now, Got::Paid(body) if body.contains(&format!("\"{id}\""))),
            "{point}: {id}: {now:?}"
        );
        assert!(*earlier == Got::Nothing || earlier == now, "{point}: {earlier:?} before and {now:?} now");
    }
    Some(format!(
        "{point:14} charged when killed: {charged}/{KEYS}, held within the lease: {held}, in the end: {KEYS}/{KEYS}"
    ))
}

#[test]
#[ignore = "prove: kills at random"]
fn killed_under_way_everything_is_settled_by_retries() {
    let cases: Vec<_> = crash::ALL.map(|point| std::thread::spawn(move || killed_at(point))).into();
    for case in cases {
        println!("{}", case.join().unwrap());
    }
}
