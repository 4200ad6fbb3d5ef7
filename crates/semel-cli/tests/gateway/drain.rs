//! Graceful shutdown: the gateway drains.

use crate::client::{Connection, SOON, request, send};
use crate::gateway::{configured, plain};

#[test]
fn what_is_under_way_is_finished_and_idle_connections_are_closed() {
    let (_place, upstream, mut gateway) = plain(&[]);
    let (addr, admin) = (gateway.addr, gateway.admin);
    let mut idle = Connection::open(addr);
    idle.write(request("GET", "/hello", &[], ""));
    assert_eq!(idle.answer().unwrap().status, 200);
    let mut silent = Connection::open(addr);
    let under_way =
        std::thread::spawn(move || send(addr, "POST", "/slow", &[("Idempotency-Key", "k-1")], "x"));
    upstream.wait_for(2);
    gateway.child.terminate().unwrap();
    assert!(idle.is_closed() && silent.is_closed());
    assert_eq!(send(admin, "GET", "/readyz", &[], "").status, 503);
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(addr).is_ok() {
        assert!(begun.elapsed() < SOON, "no new connections");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    upstream.open();
    assert_eq!(under_way.join().unwrap().status, 201);
    let end = gateway.child.wait(SOON).unwrap();
    assert!(end.status.success(), "{end:?}");
}

#[test]
fn a_caller_that_left_its_work_behind_is_waited_for() {
    let (place, upstream, mut gateway) = plain(&[]);
    let mut gone = Connection::open(gateway.addr);
    gone.write(request("POST", "/slow", &[("Idempotency-Key", "k-1")], "x"));
    upstream.wait_for(1);
    drop(gone);
    gateway.child.terminate().unwrap();
    upstream.open();
    assert!(gateway.child.wait(SOON).unwrap().status.success());
    let listed = place.semel(&["ls", "--json", "--state", "completed"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"operation\":\"POST *\""), "{listed:?}");
}

#[test]
fn what_takes_too_long_is_left_and_said() {
    let (_place, upstream, mut gateway) = configured(&["--single-tenant"], "[timeouts]\ndrain = \"200ms\"\n");
    let mut waiting = Connection::open(gateway.addr);
    waiting.write(request("POST", "/slow", &[("Idempotency-Key", "k-1")], "x"));
    upstream.wait_for(1);
    gateway.child.terminate().unwrap();
    let end = gateway.child.wait(SOON).unwrap();
    assert_eq!(end.status.code(), Some(1));
    assert!(end.stderr.last().unwrap().contains("stopped with 1 calls in flight"), "{end:?}");
}
