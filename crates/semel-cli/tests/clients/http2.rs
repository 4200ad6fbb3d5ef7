//! HTTP/2 frames that are well formed but out of place, too large or too many: the gateway answers, resets or closes,
//! stays up, and causes no second charge.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::gateway::{CONFIG, Gateway};
use crate::upstream::Upstream;
use crate::wire::{ask, connect, payment};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A connection that is still open after this has no timeout.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// How many sequences, unless `SEMEL_FUZZ` is set.
const SEQUENCES: usize = 400;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const KINDS: [u8; 12] = [
    DATA,
    HEADERS,
    HEADERS,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION,
];

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// An HPACK string, not compressed.
fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match u8::try_from(bytes.len()) {
        Ok(length @ ..127) => out.push(length),
        _ => {
            out.push(127);
            let mut rest = bytes.len() - 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            out.push(rest as u8);
        }
    }
    [&out, bytes].concat()
}

/// A header that is not added to the dynamic table.
fn header(name: &str, value: &str) -> Vec<u8> {
    [vec![0], text(name.as_bytes()), text(value.as_bytes())].concat()
}

fn head(key: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let plain = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/payment_intents"),
        (":authority", "a"),
        ("idempotency-key", key),
    ];
    let all = plain.iter().chain(more).map(|(name, value)| header(name, value));
    all.collect::<Vec<_>>().concat()
}

fn begun() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// Sends, and reads until the other side closes; fails if the connection stays open.
fn said(address: SocketAddr, sent: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    stream.set_read_timeout(Some(OPEN_MAX)).unwrap();
    // It may close while we are still sending.
    let _ = stream.write_all(sent);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("still open after {OPEN_MAX:?}: {}", sent.escape_ascii())
        }
        _ => said,
    }
}

/// The types of the received frames. A GOAWAY without an error does not count: an idle connection ends with it too.
fn kinds(mut said: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [a, b, c, kind, ..] = *said {
        let length = 9 + usize::from(a) * 65_536 + usize::from(b) * 256 + usize::from(c);
        let error = said.get(9 + 4..9 + 8);
        if kind != GOAWAY || error.is_some_and(|error| error != [0; 4]) {
            kinds.push(kind);
        }
        said = said.get(length..).unwrap_or_default();
    }
    kinds
}

fn start(upstream: &Upstream) -> Gateway {
    let config = CONFIG.replace(
        "[timeouts]",
        "[timeouts]\nheader_read = \"300ms\"\nidle = \"300ms\"\nbody_idle = \"300ms\"",
    );
    Gateway::start(upstream.address, &config)
}

fn is_well(gateway: &Gateway, upstream: &Upstream) {
    assert_eq!(gateway.admin("/readyz"), "ready\n");
    let (head, _) = ask(gateway.address, &payment("after-all")).unwrap();
    assert_eq!(head.status(), 200);
    let mut keys: Vec<_> = upstream.charges().into_iter().map(|(key, _)| key).collect();
    let charges = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), charges, "charged more than once");
}

/// A protocol violation ends the connection (GOAWAY) or the stream (RST_STREAM), and does not reach the service.
#[test]
fn frames_out_of_place_are_refused_and_do_not_reach_the_service() {
    let upstream = Upstream::start();
    let gateway = start(&upstream);
    let whole = END_HEADERS | END_STREAM;
    let huge = "x".repeat(40_000);
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("data before a head", vec![frame(DATA, END_STREAM, 1, b"a=1")]),
        ("a head on the connection itself", vec![frame(HEADERS, whole, 0, &head("zero", &[]))]),
        ("a stream of the server's", vec![frame(HEADERS, whole, 2, &head("even", &[]))]),
        ("a continuation of nothing", vec![frame(CONTINUATION, END_HEADERS, 1, &head("none", &[]))]),
        (
            "something else within a head",
            vec![frame(HEADERS, END_STREAM, 1, &head("torn", &[])), frame(PING, 0, 0, &[0; 8])],
        ),
        (
            "another stream within a head",
            vec![
                frame(HEADERS, END_STREAM, 1, &head("torn", &[])),
                frame(CONTINUATION, END_HEADERS, 3, &header("a", "b")),
            ],
        ),
        ("settings of five bytes", vec![frame(SETTINGS, 0, 0, &[0; 5])]),
        ("settings on a stream", vec![frame(SETTINGS, 0, 1, &[])]),
        ("a ping of seven bytes", vec![frame(PING, 0, 0, &[0; 7])]),
        ("a window that grows by nothing", vec![frame(WINDOW_UPDATE, 0, 0, &[0; 4])]),
        ("a reset of what never was", vec![frame(RST_STREAM, 0, 1, &[0; 4])]),
        ("a promise by a client", vec![frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])]),
        ("compression that is none", vec![frame(HEADERS, whole, 1, &[0xff; 40])]),
        ("a frame larger than agreed", vec![frame(DATA, 0, 1, &vec![0; 20_000])]),
        (
            "a head without end",
            [
                vec![frame(HEADERS, END_STREAM, 1, &head("endless", &[]))],
                vec![frame(CONTINUATION, 0, 1, &header("a", &"x".repeat(16_000))); 100],
            ]
            .concat(),
        ),
        (
            "a head that is too large",
            vec![
                frame(HEADERS, END_STREAM, 1, &head("large", &[])),
                frame(CONTINUATION, 0, 1, &header("a", &huge[..16_000])),
                frame(CONTINUATION, 0, 1, &header("b", &huge[..16_000])),
                frame(CONTINUATION, 0, 1, &header("c", &huge[..16_000])),
                frame(CONTINUATION, END_HEADERS, 1, &header("d", &huge[..16_000])),
            ],
        ),
        (
            "a header of a connection",
            vec![frame(HEADERS, whole, 1, &head("hop", &[("connection", "close")]))],
        ),
        ("a name in capitals", vec![frame(HEADERS, whole, 1, &head("loud", &[("X-Loud", "1")]))]),
        (
            "a length that is not kept",
            vec![
                frame(HEADERS, END_HEADERS, 1, &head("short", &[("content-length", "10")])),
                frame(DATA, END_STREAM, 1, b"a=1"),
            ],
        ),
    ];
    for (what, frames) in cases {
        let said = said(gateway.address, &[begun(), frames.concat()].concat());
        let kinds = kinds(&said);
        let refused = kinds.iter().any(|kind| [GOAWAY, RST_STREAM].contains(kind));
        // A head that is too large has its own answer: 431.
        let answered = kinds.contains(&HEADERS);
        assert!(refused || (answered && what == "a head that is too large"), "{what}: {kinds:?}");
    }
    assert_eq!(upstream.charges(), [], "nothing was to be charged");
    is_well(&gateway, &upstream);
}

/// Streams that are opened and reset at once (rapid reset) cost the sender more than the gateway: after some the
/// connection is closed.
#[test]
fn rapid_resets_are_bounded() {
    let upstream = Upstream::start();
    let gateway = start(&upstream);
    let mut sent = begun();
    for n in 0..3_000u32 {
        let stream = 2 * n + 1;
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(&format!("reset-{n}"), &[])));
        sent.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    let kinds = kinds(&said(gateway.address, &sent));
    assert!(kinds.is_empty() || kinds.contains(&GOAWAY), "{kinds:?}");
    assert!(upstream.charges().len() < 1_500, "{} reached the service", upstream.charges().len());
    is_well(&gateway, &upstream);
}

/// Frames of all kinds in any order, with flags, streams and payloads that may be valid.
#[test]
fn frames_in_any_order_break_nothing() {
    let seed = testkit::seed::seed();
    let sequences = std::env::var("SEMEL_FUZZ").map_or(SEQUENCES, |text| text.parse().unwrap());
    let upstream = Upstream::start();
    let mut gateway = start(&upstream);
    let address = gateway.address;
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            std::thread::spawn(move || {
                for n in (thread..sequences).step_by(8) {
                    let mut rng = testkit::seed::rng_for(seed, n as u64);
                    let mut sent = begun();
                    for frames in 0..rng.usize(1..20) {
                        let stream = [0, 1, 1, 3, 5, 2, rng.u32(..1 << 31)][rng.usize(..7)];
                        let kind = rng.usize(..13);
                        let kind = KINDS.get(kind).copied().unwrap_or_else(|| rng.u8(..));
                        let payload = match rng.u8(..4) {
                            0 => head(&format!("frames-{n}-{frames}"), &[]),
                            1 => vec![0; rng.usize(..12)],
                            2 => (0..rng.usize(..60)).map(|_| rng.u8(..)).collect(),
                            _ => b"amount=4200".to_vec(),
                        };
                        let flags = if rng.bool() { END_HEADERS | END_STREAM } else { rng.u8(..) };
                        sent.extend(frame(kind, flags, stream, &payload));
                    }
                    said(address, &sent);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    is_well(&gateway, &upstream);
    gateway.child.terminate().unwrap();
    let end = gateway.child.wait(crate::SOON).unwrap();
    let said = end.stderr.join("\n");
    assert!(end.status.success() && !said.contains("panicked"), "{:?}: {said}", end.status);
}
