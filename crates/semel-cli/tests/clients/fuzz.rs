//! Broken requests from a seeded generator: the gateway answers or closes, stays up, and causes no wrong charge.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use crate::SOON;
use crate::gateway::{CONFIG, Gateway};
use crate::upstream::Upstream;
use crate::wire::{ask, connect, payment};

/// How many requests, unless `SEMEL_FUZZ` is set.
const REQUESTS: usize = 1_500;
const THREADS: usize = 12;
/// A connection that is still open after this has no timeout.
const OPEN_MAX: Duration = Duration::from_secs(10);

const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"\"",
    b"\\",
    b"%",
    b"\xff\xfe",
    b"\xc3",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Idempotency-Key: other\r\n",
    b"Idempotency-Key: \"a, b\"\r\n",
    b"Idempotency-Key:\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Connection: Idempotency-Key\r\n",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"Host: b\r\n",
    b" HTTP/1.0",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"GET http://a/ HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

fn base(rng: &mut fastrand::Rng, key: &str) -> Vec<u8> {
    let head = |rest: &str| format!("POST /v1/payment_intents HTTP/1.1\r\nHost: a\r\n{rest}").into_bytes();
    match rng.u8(..9) {
        0 => head(&format!(
            "Idempotency-Key: {key}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na=1\r\n0\r\n\r\n"
        )),
        1 => head(&format!(
            "Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{{\"a\":[1e9]}}"
        )),
        2 => head(&format!(
            "Idempotency-Key: {key}\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 62\r\n\r\n\
             --b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n\r\n"
        )),
        3 => head("Content-Length: 3\r\n\r\na=1"),
        4 => b"GET /v1/balance HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        5 => {
            // HTTP/2 by prior knowledge, an empty SETTINGS frame, then random bytes.
            let start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
            let frames = (0..rng.usize(..100)).map(|_| if rng.bool() { rng.u8(..) } else { rng.u8(..4) });
            start.into_iter().chain(frames).collect()
        }
        6 => [payment(key), payment(key)].concat(),
        _ => payment(key),
    }
}

fn broken(rng: &mut fastrand::Rng, key: &str) -> Vec<u8> {
    if rng.u8(..20) == 0 {
        return (0..rng.usize(..2_000)).map(|_| rng.u8(..)).collect();
    }
    let mut request = base(rng, key);
    for _ in 0..rng.usize(..6) {
        let at = rng.usize(..=request.len());
        let to = (at + rng.usize(..40)).min(request.len());
        match rng.u8(..8) {
            0 if at < request.len() => request[at] ^= 1 << rng.u8(..8),
            1 if at < request.len() => request[at] = rng.u8(..),
            2 => drop(request.drain(at..to)),
            3 => {
                let part = request[at..to].to_vec();
                request.splice(at..at, part);
            }
            4 => request.truncate(at),
            5 if rng.u8(..8) == 0 => drop(request.splice(at..at, vec![b'a'; rng.usize(..60_000)])),
            6 => {
                // Between two lines of the head, where a header may be.
                let ends = request.windows(2).enumerate().filter(|(_, two)| *two == b"\r\n");
                let ends: Vec<usize> = ends.map(|(at, _)| at + 2).collect();
                let at = rng.choice(ends).unwrap_or(0);
                request.splice(at..at, rng.choice(TOKENS).unwrap_or(&TOKENS[0]).iter().copied());
            }
            _ => drop(request.splice(at..at, rng.choice(TOKENS).unwrap_or(&TOKENS[0]).iter().copied())),
        }
    }
    request
}

/// Everything the gateway sends until it closes.
fn answers(address: SocketAddr, request: &[u8], half_close: bool) -> Vec<u8> {
    let mut stream = connect(address);
    stream.set_read_timeout(Some(OPEN_MAX)).unwrap();
    // It may close while we are still sending.
    let _ = stream.write_all(request);
    if half_close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("still open after {OPEN_MAX:?}: {}", request.escape_ascii())
        }
        _ => said,
    }
}

/// The first status, or 0 if it only closed.
fn status(request: &[u8], said: &[u8]) -> u16 {
    if said.is_empty() || request.starts_with(b"PRI * HTTP/2.0") {
        return 0;
    }
    let line = said.strip_prefix(b"HTTP/1.1 ").or_else(|| said.strip_prefix(b"HTTP/1.0 "));
    let code = line.and_then(|line| std::str::from_utf8(line.get(..3)?).ok()?.parse().ok());
    code.unwrap_or_else(|| panic!("{} was answered {}", request.escape_ascii(), said.escape_ascii()))
}

#[test]
fn broken_requests_break_nothing() {
    let seed = testkit::seed::seed();
    let requests = std::env::var("SEMEL_FUZZ").map_or(REQUESTS, |text| text.parse().unwrap());
    let upstream = Upstream::start();
    let config = CONFIG.replace(
        "[timeouts]",
        "[timeouts]\nheader_read = \"300ms\"\nidle = \"300ms\"\nbody_idle = \"300ms\"",
    );
    let mut gateway = Gateway::start(upstream.address, &config);
    let address = gateway.address;
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut all = Vec::new();
                for n in (thread..requests).step_by(THREADS) {
                    let mut rng = testkit::seed::rng_for(seed, n as u64);
                    let request = broken(&mut rng, &format!("fuzz-{n}"));
                    let said = answers(address, &request, rng.u8(..4) > 0);
                    let status = status(&request, &said);
                    let fine = matches!(status, 0 | 100 | 200 | 400..=499 | 501 | 505);
                    assert!(fine, "{}: {}", request.escape_ascii(), said.escape_ascii());
                    all.push((request, status));
                }
                all
            })
        })
        .collect();
    let all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let mut statuses = BTreeMap::<u16, usize>::new();
    all.iter().for_each(|(_, status)| *statuses.entry(*status).or_default() += 1);

    assert_eq!(gateway.admin("/healthz"), "ok\n");
    assert_eq!(gateway.admin("/readyz"), "ready\n");
    let fresh = payment("after-all");
    for replayed in [None, Some("true")] {
        let (head, _) = ask(address, &fresh).unwrap();
        assert_eq!((head.status(), head.header("idempotency-replayed")), (200, replayed));
    }

    let texts: Vec<_> = all.iter().map(|(request, _)| String::from_utf8_lossy(request)).collect();
    let mut charged = BTreeMap::<String, usize>::new();
    for (key, _) in upstream.charges() {
        let sent = texts.iter().any(|text| text.contains(&key));
        assert!(key == "after-all" || sent, "{key:?} was never sent");
        let plain = key.len() <= 257 && key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        assert!(plain, "{key:?} is no key");
        // A key in quotes is the same key; a single quote is part of it.
        let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(&key).to_owned();
        *charged.entry(bare).or_default() += 1;
    }
    println!("{requests} requests: {statuses:?}, {} keys charged", charged.len());
    // Some are valid after all, and some are refused.
    let count = |range: std::ops::Range<u16>| statuses.range(range).map(|(_, count)| count).sum::<usize>();
    assert!(count(200..201) > requests / 50, "hardly anything came through: {statuses:?}");
    assert!(count(400..500) > requests / 50, "hardly anything was refused: {statuses:?}");
    charged.retain(|_, times| *times > 1);
    let sent_with = |key: &String| texts.iter().filter(|text| text.contains(key)).collect::<Vec<_>>();
    let requests: Vec<_> = charged.keys().map(sent_with).collect();
    assert!(charged.is_empty(), "charged more than once: {charged:?}, by {requests:?}");

    gateway.child.terminate().unwrap();
    let end = gateway.child.wait(SOON).unwrap();
    let said = end.stderr.join("\n");
    assert!(end.status.success() && !said.contains("panicked"), "{:?}: {said}", end.status);
}
