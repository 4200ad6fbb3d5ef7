//! Hostile requests and their answers. None of them reaches the service.

use std::time::Duration;

use crate::client::{Connection, request, send};
use crate::gateway::{configured, plain};

/// The answer, and whether the connection is closed after it.
fn sent(addr: std::net::SocketAddr, bytes: &[u8]) -> Option<u16> {
    let mut connection = Connection::open(addr);
    connection.write(bytes);
    let status = connection.answer().map(|answer| answer.status);
    assert!(connection.is_closed(), "{:?}", String::from_utf8_lossy(bytes));
    status
}

#[test]
fn requests_that_could_be_read_in_two_ways_are_refused_and_the_connection_is_closed() {
    let (_place, upstream, gateway) = plain(&[]);
    let head = "POST /pay HTTP/1.1\r\nHost: a\r\n";
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (name, bytes) in [
        (
            "CL.TE",
            format!("{head}Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        ),
        ("TE.CL", format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n{smuggled}")),
        (
            "TE.TE",
            format!(
                "{head}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        ("TE with a space", format!("{head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{smuggled}")),
        ("TE xchunked", format!("{head}Transfer-Encoding: xchunked\r\n\r\n{smuggled}")),
        ("TE with a tab", format!("{head}Transfer-Encoding: \x0bchunked\r\n\r\n{smuggled}")),
        (
            "TE in HTTP/1.0",
            format!("POST /pay HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        ),
        ("two lengths", format!("{head}Content-Length: 0\r\nContent-Length: 38\r\n\r\n{smuggled}")),
        ("two lengths in one", format!("{head}Content-Length: 0, 38\r\n\r\n{smuggled}")),
        ("signed length", format!("{head}Content-Length: +0\r\n\r\n{smuggled}")),
        ("endless length", format!("{head}Content-Length: 99999999999999999999999\r\n\r\n{smuggled}")),
        ("folded header", format!("{head}X-A: b\r\n c\r\n\r\n")),
        ("folded TE", format!("{head}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{smuggled}")),
        ("NUL in a value", format!("{head}X-A: b\0c\r\n\r\n")),
        ("NUL in a name", format!("{head}X\0A: b\r\n\r\n")),
        ("NUL in the path", "GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
        ("bare LF", "GET / HTTP/1.1\nHost: a\n\n".to_owned()),
        ("bare LF within", format!("{head}X-A: b\nX-B: c\r\n\r\n")),
        ("bare CR", format!("{head}X-A: b\rX-B: c\r\n\r\n")),
        ("space in a name", format!("{head}X A: b\r\n\r\n")),
        ("no name", format!("{head}: b\r\n\r\n")),
        ("no colon", format!("{head}nonsense\r\n\r\n")),
        ("HTTP/0.9", "GET /\r\n\r\n".to_owned()),
        ("HTTP/3.0", "GET / HTTP/3.0\r\nHost: a\r\n\r\n".to_owned()),
        ("space in the path", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
        ("CR LF in the path", "GET /a\r\nX: b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
        ("TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\u{7f}\x03\x03\r\n\r\n".to_owned()),
        ("nonsense", "\r\n\r\nhello there\r\n\r\n".to_owned()),
    ] {
        assert_eq!(sent(gateway.addr, bytes.as_bytes()), Some(400), "{name}");
    }
    let bad_utf8 = [b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n".as_slice()].concat();
    assert_eq!(sent(gateway.addr, &bad_utf8), Some(400), "bad UTF-8 in the path");
    assert_eq!(upstream.seen().len(), 0, "{:?}", upstream.seen());
    assert!(gateway.metrics().contains("semel_gateway_wire_refused_total{kind=\"two_framings\"} 2"));
}

#[test]
fn a_body_of_bad_chunks_ends_the_connection_and_never_a_second_request() {
    let (_place, upstream, gateway) = plain(&[]);
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (name, chunks) in [
        ("no size", format!("\r\nhello\r\n0\r\n\r\n{smuggled}")),
        ("no hex", format!("xyz\r\nhello\r\n0\r\n\r\n{smuggled}")),
        ("negative", format!("-1\r\nhello\r\n0\r\n\r\n{smuggled}")),
        ("too large", format!("ffffffffffffffffff\r\nhello\r\n{smuggled}")),
        ("0x", format!("0x5\r\nhello\r\n0\r\n\r\n{smuggled}")),
        ("bare LF", format!("5\nhello\n0\n\n{smuggled}")),
        ("longer than said", format!("3\r\nhello\r\n0\r\n\r\n{smuggled}")),
        ("trailing space", format!("5 \r\nhello\r\n0\r\n\r\n{smuggled}")),
        ("endless extension", format!("5;{}\r\nhello\r\n0\r\n\r\n{smuggled}", "x".repeat(2_000))),
    ] {
        for key in ["", "Idempotency-Key: k-1\r\n"] {
            let head = format!("POST /pay HTTP/1.1\r\nHost: a\r\n{key}Transfer-Encoding: chunked\r\n\r\n");
            let status = sent(gateway.addr, (head + &chunks).as_bytes());
            assert!(matches!(status, None | Some(400)), "{name}: {status:?}");
        }
    }
    assert!(upstream.seen().iter().all(|seen| seen.path != "/smuggled"), "{:?}", upstream.seen());
    assert_eq!(upstream.effects("k-1"), 0);
}

#[test]
fn addresses_and_hosts_that_disagree_are_refused() {
    let (_place, upstream, gateway) = plain(&[]);
    for (name, bytes, status) in [
        ("absolute, the same", "GET http://a/hello HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("absolute, another", "GET http://b/hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("absolute, a user", "GET http://u:p@a/hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("absolute, another scheme", "GET ftp://a/hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("no host", "GET / HTTP/1.1\r\n\r\n", 400),
        ("a path as host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        ("an asterisk", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ] {
        let mut connection = Connection::open(gateway.addr);
        connection.write(bytes);
        assert_eq!(connection.answer().unwrap().status, status, "{name}");
    }
    assert_eq!((upstream.seen().len(), upstream.last().path.as_str()), (1, "/hello"));
}

#[test]
fn keys_that_could_be_two_are_refused() {
    let (_place, upstream, gateway) = plain(&[]);
    for keys in [&["a", "b"][..], &["a", "a"], &["a, b"], &[""], &["\"a"], &["a\tb"], &["ä"]] {
        let headers: Vec<(&str, &str)> = keys.iter().map(|key| ("Idempotency-Key", *key)).collect();
        let answer = send(gateway.addr, "POST", "/pay", &headers, "x");
        assert_eq!((answer.status, answer.code()), (400, "IDEMPOTENCY_KEY_INVALID"), "{keys:?}");
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[test]
fn heads_have_bounds() {
    let (_place, upstream, gateway) = plain(&[]);
    let head = "GET /hello HTTP/1.1\r\nHost: a\r\n";
    for (name, bytes) in [
        ("one large header", format!("{head}X: {}\r\n\r\n", "x".repeat(40 << 10))),
        ("a header without end", format!("{head}X: {}", "x".repeat(40 << 10))),
        ("many headers", format!("{head}{}\r\n", "X: y\r\n".repeat(101))),
        ("a long path", format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(40 << 10))),
    ] {
        assert_eq!(sent(gateway.addr, bytes.as_bytes()), Some(431), "{name}");
    }
    assert_eq!(upstream.seen().len(), 0);
    let many = format!("{head}{}\r\n", "X: y\r\n".repeat(90));
    let mut connection = Connection::open(gateway.addr);
    connection.write(many);
    assert_eq!(connection.answer().unwrap().status, 200);
}

#[test]
fn a_slow_client_is_closed_and_others_are_served_meanwhile() {
    let timeouts = "[timeouts]\nheader_read = \"2s\"\nidle = \"4s\"\nbody_idle = \"2s\"\n";
    let (_place, upstream, gateway) = configured(&["--single-tenant"], timeouts);
    let mut silent = Connection::open(gateway.addr);
    let mut preface = Connection::open(gateway.addr);
    preface.write("PRI * HT");
    let mut head = Connection::open(gateway.addr);
    head.write("GET /hello HTTP/1.1\r\nHos");
    let mut body = Connection::open(gateway.addr);
    body.write("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\nContent-Length: 5\r\n\r\nhe");
    let mut idle = Connection::open(gateway.addr);
    idle.write(request("GET", "/hello", &[], ""));
    assert_eq!(idle.answer().unwrap().status, 200);
    assert_eq!(send(gateway.addr, "GET", "/hello", &[], "").status, 200);
    let unread = body.answer().unwrap();
    assert_eq!((unread.status, unread.code()), (400, "IDEMPOTENCY_BODY_UNREADABLE"));
    for connection in [&mut silent, &mut preface, &mut head, &mut body, &mut idle] {
        assert!(connection.is_closed());
    }
    assert_eq!(upstream.effects("k-1"), 0);
    // A service that takes longer than these timeouts is still waited for.
    let addr = gateway.addr;
    let slow = std::thread::spawn(move || send(addr, "POST", "/slow", &[("Idempotency-Key", "k-2")], "x"));
    std::thread::sleep(Duration::from_secs(6));
    upstream.open();
    assert_eq!(slow.join().unwrap().status, 201);
}

/// Most clients send a whole request before they read its answer.
#[test]
fn a_body_over_the_limit_is_answered_although_the_client_sends_on() {
    const BODY: usize = 16 << 20;
    let (_place, upstream, gateway) = plain(&[]);
    let head = "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\n";
    let length = format!("{head}Content-Length: {BODY}\r\n\r\n{}", "x".repeat(BODY));
    let chunk = format!("{:x}\r\n{}\r\n", BODY / 4, "x".repeat(BODY / 4));
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(4));
    let refused =
        format!("{head}X: {}\r\nContent-Length: {BODY}\r\n\r\n{}", "x".repeat(40 << 10), "x".repeat(BODY));
    for (name, bytes, status, code) in [
        ("length", length, 413, "IDEMPOTENCY_BODY_TOO_LARGE"),
        ("chunked", chunked, 413, "IDEMPOTENCY_BODY_TOO_LARGE"),
        ("a head that is too large", refused, 431, ""),
    ] {
        let mut connection = Connection::open(gateway.addr);
        if let Err(error) = connection.try_write(bytes) {
            panic!("{name}: {error}");
        }
        let answer = connection.answer().unwrap_or_else(|| panic!("{name}: no answer"));
        assert_eq!((answer.status, answer.code()), (status, code), "{name}");
        assert!(connection.is_closed(), "{name}");
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[test]
fn a_client_that_never_stops_sending_is_closed() {
    let (_place, _upstream, gateway) = configured(&["--single-tenant"], "[timeouts]\nlinger = \"1s\"\n");
    let mut connection = Connection::open(gateway.addr);
    let head =
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\nContent-Length: 1000000000000\r\n\r\n";
    connection.write(head);
    assert_eq!(connection.answer().unwrap().status, 413);
    // Until the gateway no longer reads.
    while connection.try_write([b'x'; 1 << 10]).is_ok() {}
    gateway.wait_for_metric("semel_gateway_connections 0");
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let (_place, upstream, gateway) = plain(&[]);
    let mut connection = Connection::open(gateway.addr);
    let pay = request("POST", "/pay", &[("Idempotency-Key", "k-1")], "x");
    connection.write(format!(
        "{pay}{}{pay}GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET\0",
        request("GET", "/hello", &[], "")
    ));
    assert_eq!(connection.answer().unwrap().status, 201);
    assert_eq!(connection.answer().unwrap().text(), "hello");
    assert!(connection.answer().unwrap().is_replay());
    assert_eq!(connection.answer().unwrap().status, 400);
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn connections_are_bounded_and_more_wait() {
    let (_place, _upstream, gateway) = configured(&["--single-tenant"], "[limits]\nconnections_max = 2\n");
    let mut held = [Connection::open(gateway.addr), Connection::open(gateway.addr)];
    for connection in &mut held {
        connection.write(request("GET", "/hello", &[], ""));
        assert_eq!(connection.answer().unwrap().status, 200);
    }
    let mut third = Connection::open(gateway.addr);
    third.write(request("GET", "/hello", &[], ""));
    drop(held);
    assert_eq!(third.answer().unwrap().status, 200);
}
