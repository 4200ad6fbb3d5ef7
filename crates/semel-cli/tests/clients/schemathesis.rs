//! schemathesis: what the gateway answers is what its OpenAPI description says.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, mpsc};

use serde_json::{Value, json};

use crate::SOON;
use crate::gateway::Gateway;
use crate::upstream::Upstream;
use crate::wire::{ask, connect, exchange, read_message};

const CONFIG: &str = r#"
log = "warn"
require_key = true
[scope]
single_tenant = true
[[operation]]
match = "PUT /{path}"
in_flight = "accept"
"#;
/// Checks that a gateway in front of a service that accepts everything cannot pass.
const NOT_OURS: &str = "positive_data_acceptance,negative_data_rejection,unsupported_method";

fn schemathesis(description: &str, gateway: &Gateway, directory: &Path, exclude: &str) -> Output {
    let python = testkit::python::with(&["schemathesis==4.32.5"]).unwrap();
    Command::new(python.with_file_name("schemathesis"))
        .current_dir(directory)
        .args(["run", description, "--url", &gateway.url(), "--exclude-checks", exclude])
        .args(["--seed", "1", "--max-examples", "40", "--request-timeout", "10", "--no-color"])
        .args(["--phases", "examples,coverage,fuzzing", "--mode", "all"])
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn of_admin(gateway: &Gateway) -> String {
    format!("http://{}/openapi.json", gateway.admin)
}

/// Accepts every request and never answers.
fn breaking_off() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            read_message(&mut stream);
        }
    });
    address
}

/// Answers `PUT /held` with the key `k` when released, and everything else at once. Signals when that one has arrived.
fn holding() -> (SocketAddr, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (came, has_come) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let (came, may_go) = (Arc::new(Mutex::new(came)), Arc::new(Mutex::new(may_go)));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (came, may_go) = (Arc::clone(&came), Arc::clone(&may_go));
            std::thread::spawn(move || {
                let (head, _) = read_message(&mut stream)?;
                if (head.method(), head.path(), head.header("idempotency-key")) == ("PUT", "/held", Some("k"))
                {
                    came.lock().unwrap().send(()).ok()?;
                    may_go.lock().unwrap().recv_timeout(10 * SOON).ok()?;
                }
                let answer = b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 5\r\n\r\nheld\n";
                stream.write_all(answer).ok()
            });
        }
    });
    (address, has_come, go)
}

/// While a request is in flight its duplicates get a status URL, and the status URL answers "in progress"; when it is
/// done both get its answer. The description is narrowed to that one request, so that nothing else is generated.
#[test]
#[ignore = "prove: thousands of generated requests"]
fn answers_about_a_request_under_way_are_as_described() {
    let directory = testkit::scratch::directory();
    let (upstream, has_come, go) = holding();
    let gateway = Gateway::start(upstream, &format!("{CONFIG}[timeouts]\nresponse = \"300s\"\n"));
    const PUT: &[u8] = b"PUT /held HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n";
    let put = |address| ask(address, PUT);
    let address = gateway.address;
    // It waits while schemathesis runs, twice.
    let waiting = connect(address);
    waiting.set_read_timeout(Some(10 * SOON)).unwrap();
    let first = std::thread::spawn(move || exchange(waiting, PUT));
    has_come.recv_timeout(SOON).unwrap();
    let (accepted, _) = put(address).unwrap();
    assert_eq!(accepted.status(), 202);
    let intent = accepted.header("location").unwrap().rsplit_once('/').unwrap().1.to_owned();

    let mut narrow: Value = serde_json::from_str(&gateway.admin("/openapi.json")).unwrap();
    let methods = narrow["paths"]["/{path}"].as_object_mut().unwrap();
    methods.retain(|method, _| method == "put");
    methods["put"].as_object_mut().unwrap().remove("requestBody");
    narrow["paths"]["/.semel/intents/{intent}"]["get"]["parameters"][0]["schema"] =
        json!({ "const": intent });
    let parameters = &mut narrow["components"]["parameters"];
    parameters["Path"]["schema"] = json!({ "const": "held" });
    parameters["IdempotencyKey"]["required"] = json!(true);
    parameters["IdempotencyKey"]["schema"] = json!({ "const": "k" });
    parameters["IdempotencyKey"]["example"] = json!("k");
    let file = directory.path().join("narrow.json");
    let run = |description: &Value| {
        std::fs::write(&file, description.to_string()).unwrap();
        schemathesis(file.to_str().unwrap(), &gateway, directory.path(), NOT_OURS)
    };
    let output = run(&narrow);
    assert!(output.status.success(), "{}", text(&output));

    // The 202 was really checked: with a different description of it both operations fail.
    let mut wrong = narrow.clone();
    wrong["components"]["schemas"]["InProgress"]["required"] = json!(["not_there"]);
    let said = text(&run(&wrong));
    for operation in ["PUT /{path}", "GET /.semel/intents/{intent}"] {
        assert!(said.contains("not_there") && said.contains(&format!("_ {operation} _")), "{said}");
    }

    go.send(()).unwrap();
    assert_eq!(first.join().unwrap().unwrap().0.status(), 201);
    let output = run(&wrong);
    assert!(output.status.success(), "no 202 any more: {}", text(&output));
    let status = format!("GET /.semel/intents/{intent} HTTP/1.1\r\nHost: x\r\n\r\n");
    for (head, body) in [ask(address, status.as_bytes()).unwrap(), put(address).unwrap()] {
        assert_eq!((head.status(), &body[..]), (201, &b"held\n"[..]));
        assert_eq!(head.header("idempotency-replayed"), Some("true"));
    }
}

/// Slow: the tool sends hundreds of generated requests, twice.
#[test]
fn answers_are_as_described() {
    let directory = testkit::scratch::directory();
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.address, CONFIG);
    let output = schemathesis(&of_admin(&gateway), &gateway, directory.path(), NOT_OURS);
    println!("{}", text(&output));
    assert!(output.status.success());

    // A wrong description is detected: the run above could have failed.
    let mut wrong: Value = serde_json::from_str(&gateway.admin("/openapi.json")).unwrap();
    wrong["components"]["schemas"]["Problem"]["required"] = json!(["not_there"]);
    let file = directory.path().join("wrong.json");
    std::fs::write(&file, wrong.to_string()).unwrap();
    let output = schemathesis(file.to_str().unwrap(), &gateway, directory.path(), NOT_OURS);
    assert!(!output.status.success() && text(&output).contains("not_there"), "{}", text(&output));
}

#[test]
#[ignore = "prove: thousands of generated requests"]
fn answers_for_a_service_that_breaks_off_are_as_described() {
    let directory = testkit::scratch::directory();
    let gateway = Gateway::start(breaking_off(), CONFIG);
    // All of them are server errors here, in the described format.
    let exclude = format!("{NOT_OURS},not_a_server_error");
    let output = schemathesis(&of_admin(&gateway), &gateway, directory.path(), &exclude);
    println!("{}", text(&output));
    assert!(output.status.success());
}
