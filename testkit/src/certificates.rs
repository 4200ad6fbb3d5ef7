//! Certificates made for one test.

fn openssl(dir: &std::path::Path, args: &str) {
    let mut command = std::process::Command::new("openssl");
    let output = command.args(args.split_whitespace()).current_dir(dir).output().expect("openssl runs");
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority (`ca.pem`), its certificate for `localhost` (`server.pem`, `server.key`), and an unrelated authority
/// (`other.pem`).
///
/// # Panics
/// When `openssl` is not there or fails.
pub fn certificates(dir: &std::path::Path) {
    let root = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj";
    openssl(dir, &format!("{root} /CN=authority -keyout ca.key -out ca.pem"));
    openssl(dir, &format!("{root} /CN=stranger -keyout other.key -out other.pem"));
    let request = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost";
    openssl(dir, &format!("{request} -keyout server.key -out server.csr"));
    std::fs::write(dir.join("names"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
        .expect("a file");
    openssl(
        dir,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
    );
}
