//! schemathesis: what the gateway answers is what its OpenAPI description says.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::upstream::Upstream;
use crate::wire::read_message;

const CONFIG: &str = r#"
log = "warn"
require_key = true
[scope]
single_tenant = true
[[operation]]
match = "PUT /{path}"
in_flight = "accept"
"#;
/// What a gateway in front of a service that takes everything cannot be held to.
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

/// Takes every request and never answers.
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

#[test]
fn answers_are_as_described() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.address, CONFIG);
    let output = schemathesis(&of_admin(&gateway), &gateway, directory.path(), NOT_OURS);
    println!("{}", text(&output));
    assert!(output.status.success());

    // A description that is wrong is noticed: the run above could have failed.
    let mut wrong: Value = serde_json::from_str(&gateway.admin("/openapi.json")).unwrap();
    wrong["components"]["schemas"]["Problem"]["required"] = json!(["not_there"]);
    let file = directory.path().join("wrong.json");
    std::fs::write(&file, wrong.to_string()).unwrap();
    let output = schemathesis(file.to_str().unwrap(), &gateway, directory.path(), NOT_OURS);
    assert!(!output.status.success() && text(&output).contains("not_there"), "{}", text(&output));
}

#[test]
fn answers_for_a_service_that_breaks_off_are_as_described() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(breaking_off(), CONFIG);
    // All of them are errors of the server here; what they look like is described.
    let exclude = format!("{NOT_OURS},not_a_server_error");
    let output = schemathesis(&of_admin(&gateway), &gateway, directory.path(), &exclude);
    println!("{}", text(&output));
    assert!(output.status.success());
}
