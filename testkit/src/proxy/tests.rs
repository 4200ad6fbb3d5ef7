use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::*;

const SOON: Duration = Duration::from_secs(10);
const NOT_NOW: Duration = Duration::from_millis(80);

/// A server that answers each line with `ok <line>` and reports what it received.
fn server() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                    let _ = sender.send(line.trim_end().to_owned());
                    if (&stream).write_all(format!("ok {line}").as_bytes()).is_err() {
                        break;
                    }
                    line.clear();
                }
            });
        }
    });
    (addr, receiver)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn say(mut stream: &TcpStream, line: &str) {
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn hear(stream: &TcpStream) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Closed, whether by FIN or by RST.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn passes_both_ways() {
    let (addr, received) = server();
    let proxy = Proxy::start(addr).unwrap();
    let client = connect(&proxy);
    for line in ["one", "two"] {
        say(&client, line);
        assert_eq!(hear(&client), format!("ok {line}"));
        assert_eq!(received.recv_timeout(SOON).unwrap(), line);
    }
    assert_eq!(proxy.accepted(), 1);
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let (addr, _received) = server();
    let proxy = Proxy::start(addr).unwrap();
    let client = connect(&proxy);
    say(&client, "last words");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(hear(&client), "ok last words");
    assert!(is_closed(&client));
}

#[test]
fn a_dropped_response_was_a_request_done() {
    let (addr, received) = server();
    let proxy = Proxy::start(addr).unwrap();
    let client = connect(&proxy);
    say(&client, "hello");
    assert_eq!(hear(&client), "ok hello");
    proxy.set(Fault::DropResponse);
    say(&client, "charge");
    assert!(is_closed(&client), "the answer got through");
    received.recv_timeout(SOON).unwrap();
    assert_eq!(received.recv_timeout(SOON).unwrap(), "charge");
    assert_eq!(proxy.dropped(), 1);
}

#[test]
fn cut_closes_open_connections_and_only_those() {
    let (addr, _received) = server();
    let proxy = Proxy::start(addr).unwrap();
    let client = connect(&proxy);
    say(&client, "hello");
    assert_eq!(hear(&client), "ok hello");
    proxy.cut();
    assert!(is_closed(&client));
    let again = connect(&proxy);
    say(&again, "back");
    assert_eq!(hear(&again), "ok back");
}

#[test]
fn hung_nothing_moves_and_lifted_everything_arrives() {
    let (addr, received) = server();
    let proxy = Proxy::start(addr).unwrap();
    let client = connect(&proxy);
    say(&client, "hello");
    assert_eq!(hear(&client), "ok hello");
    received.recv_timeout(SOON).unwrap();
    proxy.set(Fault::Hang);
    say(&client, "wait");
    assert!(received.recv_timeout(NOT_NOW).is_err(), "a byte moved");
    proxy.set(Fault::Pass);
    assert_eq!(hear(&client), "ok wait");
}

#[test]
fn a_delay_delays_each_direction() {
    let (addr, _received) = server();
    let proxy = Proxy::start(addr).unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(40)));
    let client = connect(&proxy);
    let start = Instant::now();
    say(&client, "slow");
    assert_eq!(hear(&client), "ok slow");
    // A lower bound only: how much slower it is depends on the machine.
    assert!(start.elapsed() >= Duration::from_millis(80));
}

#[test]
fn only_the_next_connections_suffer() {
    let (addr, received) = server();
    let proxy = Proxy::start(addr).unwrap();
    proxy.next(2, Fault::Refuse);
    for _ in 0..2 {
        assert!(is_closed(&connect(&proxy)));
    }
    assert!(received.try_recv().is_err(), "a refused connection reached the server");
    let third = connect(&proxy);
    say(&third, "third");
    assert_eq!(hear(&third), "ok third");
    assert_eq!(proxy.accepted(), 3);
}

#[test]
fn cut_in_the_middle_of_a_request() {
    let (addr, received) = server();
    let proxy = Proxy::start(addr).unwrap();
    proxy.next(1, Fault::CutRequestAfter(4));
    let client = connect(&proxy);
    say(&client, "one two");
    assert!(is_closed(&client));
    assert_eq!(received.recv_timeout(SOON).unwrap(), "one", "the server saw another part than 4 bytes");
}

#[test]
fn cut_in_the_middle_of_an_answer() {
    let (addr, received) = server();
    let proxy = Proxy::start(addr).unwrap();
    proxy.next(1, Fault::CutAnswerAfter(5));
    let client = connect(&proxy);
    say(&client, "one");
    assert_eq!(hear(&client), "ok on");
    assert_eq!(received.recv_timeout(SOON).unwrap(), "one");
}

#[test]
fn dropped_it_closes_and_listens_no_more() {
    let (addr, _received) = server();
    let proxy = Proxy::start(addr).unwrap();
    let at = proxy.addr();
    proxy.set(Fault::Hang);
    let client = connect(&proxy);
    say(&client, "stuck");
    drop(proxy);
    assert!(is_closed(&client));
    assert!(TcpStream::connect(at).is_err());
}

#[test]
fn a_server_that_is_down_looks_closed() {
    let gone = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let proxy = Proxy::start(gone).unwrap();
    assert!(is_closed(&connect(&proxy)));
}
