//! Unguarded requests pass through unchanged, as a stream.

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::client::{Connection, request, send};
use crate::gateway::{configured, plain};

#[test]
fn both_ways_stream_piece_by_piece() {
    let (_place, upstream, gateway) = plain(&[]);
    let mut client = Connection::open(gateway.addr);
    client.write("POST /both-ways HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(client.head().unwrap().status, 200);
    // Each piece is back before the next one is sent: nothing buffers the whole body.
    for piece in ["one", "two", "three"] {
        client.write(format!("{:x}\r\n{piece}\r\n", piece.len()));
        assert_eq!(client.chunk().unwrap(), piece.as_bytes());
    }
    client.write("0\r\n\r\n");
    assert_eq!(client.chunk(), None);
    client.write(request("GET", "/hello", &[], ""));
    assert_eq!(client.answer().unwrap().text(), "hello");
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn http2_with_prior_knowledge_is_forwarded_and_guarded() {
    let (_place, upstream, gateway) = plain(&[]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let mut bodies = Vec::new();
        for _ in 0..2 {
            let request = http::Request::post("http://shop.example/pay")
                .header("idempotency-key", "k-1")
                .body(Full::new(bytes::Bytes::from_static(b"{\"a\":1}")))
                .unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(
                (response.status(), response.version()),
                (http::StatusCode::CREATED, http::Version::HTTP_2)
            );
            bodies.push(response.into_body().collect().await.unwrap().to_bytes());
        }
        assert_eq!(bodies[0], bodies[1]);
    });
    assert_eq!(upstream.effects("k-1"), 1);
    assert_eq!(upstream.last().header("host"), Some("shop.example"));
    assert!(upstream.last().head.starts_with("POST /pay HTTP/1.1\r\n"));
}

#[test]
fn what_belongs_to_one_connection_stays_there() {
    let (_place, upstream, gateway) = plain(&[]);
    let headers = [
        ("Connection", "keep-alive, X-Private"),
        ("X-Private", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic x"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABk"),
        ("X-Kept", "2"),
    ];
    let answer = send(gateway.addr, "GET", "/pay", &headers, "");
    let seen = upstream.last();
    for gone in ["connection", "x-private", "keep-alive", "te", "proxy-authorization", "upgrade"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    assert_eq!(seen.header("x-kept"), Some("2"));
    assert_eq!((answer.header("x-hop"), answer.header("set-cookie")), (None, Some("a=b")));
}

#[test]
fn the_service_learns_who_asked() {
    let (_place, upstream, gateway) = plain(&[]);
    send(
        gateway.addr,
        "GET",
        "/hello",
        &[("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "https")],
        "",
    );
    let seen = upstream.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("1.2.3.4, 127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(
        (seen.header("host"), seen.header("x-forwarded-host")),
        (Some("shop.example"), Some("shop.example"))
    );

    let config = "trusted_proxies = []\nkeep_host = false\n";
    let (_place, upstream, gateway) = configured(&["--single-tenant"], config);
    send(
        gateway.addr,
        "GET",
        "/hello",
        &[("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "https")],
        "",
    );
    let seen = upstream.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("host"), Some(upstream.addr.to_string().as_str()));
}

#[test]
fn answers_without_a_body_have_none() {
    let (_place, _upstream, gateway) = plain(&[]);
    let mut client = Connection::open(gateway.addr);
    client.write(request("HEAD", "/hello", &[], ""));
    let head = client.head().unwrap();
    assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
    for (path, status) in [("/nothing", 204), ("/cached", 304)] {
        client.write(request("GET", path, &[], ""));
        assert_eq!(client.head().unwrap().status, status);
    }
    client.write(request("GET", "/hello", &[], ""));
    assert_eq!(client.answer().unwrap().text(), "hello");
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let (_place, upstream, gateway) = plain(&["--require-key"]);
    let mut client = Connection::open(gateway.addr);
    let head = "POST /pay HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n";
    client.write(format!("{head}Idempotency-Key: k-1\r\n\r\n"));
    assert_eq!(client.head().unwrap().status, 100);
    client.write("x");
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(upstream.last().header("expect"), None);
    // A client that is refused anyway does not have to send the body.
    let mut client = Connection::open(gateway.addr);
    client.write(format!("{head}\r\n"));
    assert_eq!(client.answer().unwrap().status, 400);
}

#[test]
fn tunnels_and_other_protocols_are_refused() {
    let (_place, upstream, gateway) = plain(&[]);
    let websocket = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    for (method, path, headers, status, code) in [
        ("CONNECT", "shop.example:443", &[][..], 405, "GATEWAY_METHOD_REFUSED"),
        ("TRACE", "/", &[], 405, "GATEWAY_METHOD_REFUSED"),
        ("GET", "/chat", &websocket, 501, "GATEWAY_UPGRADE_REFUSED"),
    ] {
        let mut client = Connection::open(gateway.addr);
        let host = if method == "CONNECT" { "shop.example:443" } else { "shop.example" };
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        client.write(text + "\r\n");
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.code()), (status, code), "{method}");
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[test]
fn connections_to_the_service_are_kept_and_a_closed_one_is_noticed() {
    let (_place, upstream, gateway) = plain(&[]);
    for _ in 0..5 {
        send(gateway.addr, "GET", "/hello", &[], "");
    }
    // One, unless the next request comes before the connection is back in the pool.
    assert!(upstream.connections() < 5, "{}", upstream.connections());
    // It answers and closes at once, without announcing it. The next request, guarded and opaque, must not be
    // in doubt because of that.
    for n in 0..20 {
        assert_eq!(gateway.post("/stale", &format!("k-{n}"), "x").status, 200);
        upstream.wait_for_closed(n + 1);
        // The gateway may take this long to notice.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_has_no_more_to_say_still_gets_its_answer() {
    let (_place, upstream, gateway) = plain(&[]);
    for (n, headers) in [&[][..], &[("Idempotency-Key", "k-1")]].into_iter().enumerate() {
        let mut client = Connection::open(gateway.addr);
        client.write(request("POST", "/slow", headers, "x"));
        client.no_more();
        upstream.wait_for(n + 1);
        upstream.open();
        let answer = client.answer().expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (201, "slow"));
        assert!(client.is_closed());
    }
    // Half a request does not count as one.
    let mut client = Connection::open(gateway.addr);
    client.write("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Le");
    client.no_more();
    assert!(client.is_closed());
    assert_eq!(upstream.seen().len(), 2);
}
