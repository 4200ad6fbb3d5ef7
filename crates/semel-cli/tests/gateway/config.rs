//! Settings: effective values, and errors with their line.

use std::process::Output;

use crate::gateway::{Place, semel};

const FULL: &str = r#"
listen = "127.0.0.1:8081"
admin = "127.0.0.1:9091"
upstream = "http://127.0.0.1:3000"
store = "sqlite:semel.db"
profile = "classic"

[scope]
tenant = "header:X-Tenant-Id"

[[operation]]
name = "payment.create"
match = "POST /payments"
key = "required"
retention = "7d"
lease = "30s"
in_flight = "reject"
effect = "opaque"
on_5xx = "retry"
lookup = "GET /payments/by-key/{key}?tenant={tenant}"
lookup_settle = "10s"
lookup_absent = 404
lookup_host = "payments.example"
store_down = "closed"

[[operation]]
match = "POST /orders/{id}/refund"
preset = "payment"
in_flight = "wait:2s"
lookup = "GET /r/{tenant}/{key}"
lookup_headers = { authorization = "Bearer secret" }
"#;

fn check(config: &str, args: &[&str]) -> Output {
    let place = Place::new();
    let mut command = place.command(&[&["gateway", "--check"], args].concat(), config);
    command.env_remove("SEMEL_STORE").env_remove("SEMEL_CACHE").output().unwrap()
}

fn wrong(config: &str, args: &[&str]) -> String {
    let output = check(config, args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn the_effective_settings_are_printed_as_a_file_that_would_set_them() {
    let output = check(FULL, &[]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    for line in [
        "listen = \"127.0.0.1:8081\"",
        "upstream = \"http://127.0.0.1:3000\"",
        "tenant = \"header:x-tenant-id\"",
        "connections_max = 10000",
        "header_read = \"10s\"",
        "name = \"payment.create\"",
        "lookup = \"GET /payments/by-key/{key}?tenant={tenant}\"",
        "lookup_absent = 404",
        "lookup_host = \"payments.example\"",
        "match = \"POST /orders/{id}/refund\"",
        "on_5xx = \"hold\"",
        "verify = true",
        "verify = false",
        "in_flight = \"wait:2s\"",
    ] {
        assert!(printed.lines().any(|have| have == line), "{line}\nis not in\n{printed}");
    }
    assert!(!printed.contains("secret"), "{printed}");
    // It accepts its own output.
    let again = check(&printed, &[]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), printed, "{:?}", again.stderr);
}

#[test]
fn keys_are_checked_and_never_shown() {
    let place = Place::new();
    let base = "upstream = \"http://127.0.0.1:1\"\n[scope]\nsingle_tenant = true\n[protect]\n";
    let path = place.file("keys");
    let (good, shown) = ("5e".repeat(32), path.display());
    std::fs::write(&path, format!("2026-11 {good}\n2025-02 {}\n", "6f".repeat(32))).unwrap();
    let permit = |mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let config = format!("{base}compress_above = \"1KiB\"\nkeys = \"file:{shown}\"\nrefuse_plain = true\n");
    permit(0o600);
    let output = check(&config, &[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("compress_above = \"1KiB\"") && printed.contains(&format!("file:{shown}")));
    assert!(!printed.contains("5e5e"), "{printed}");
    permit(0o644);
    let warned = check(&config, &[]);
    let stderr = String::from_utf8(warned.stderr).unwrap();
    assert!(
        warned.status.success() && stderr.contains("can be read by users other than its owner"),
        "{stderr}"
    );
    permit(0o600);
    std::fs::write(&path, format!("2026-11 {}\n", &good[1..])).unwrap();
    let line = wrong(&config, &[]);
    assert!(line.contains("line 1: a key is its id and 64 hex digits") && !line.contains("5e5e"), "{line}");
    for (settings, says) in [
        ("keys = \"file:/no/such/keys\"", "cannot read the keys"),
        ("keys = \"env:SEMEL_NO_SUCH_KEYS\"", "the environment variable SEMEL_NO_SUCH_KEYS is not set"),
        ("keys = \"2026-11 5e5e\"", "gateway.toml:5: give where the secret is stored"),
        ("compress_above = \"1K\"", "gateway.toml:5: \"1K\" is not a size"),
        ("refuse_plain = true", "without keys"),
    ] {
        let line = wrong(&format!("{base}{settings}\n"), &[]);
        assert!(line.contains(says) && !line.contains("5e5e"), "{settings}\n{line}");
    }
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let place = Place::new();
    let listen = |env: Option<&str>, flag: Option<&str>| {
        let mut args = vec!["gateway", "--check", "--json"];
        args.extend(flag.iter().flat_map(|flag| ["--listen", flag]));
        let mut command = place.command(&args, FULL);
        command.env("SEMEL_STORE", "memory:");
        if let Some(env) = env {
            command.env("SEMEL_LISTEN", env);
        }
        let output = command.output().unwrap();
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed["store"], "memory:");
        printed["listen"].as_str().unwrap().to_owned()
    };
    assert_eq!(listen(None, None), "127.0.0.1:8081");
    assert_eq!(listen(Some("127.0.0.1:1"), None), "127.0.0.1:1");
    assert_eq!(listen(Some("127.0.0.1:1"), Some("127.0.0.1:2")), "127.0.0.1:2");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let base = "upstream = \"http://127.0.0.1:1\"\n[scope]\nsingle_tenant = true\n";
    let operation = |settings: &str| format!("{base}[[operation]]\nmatch = \"POST /a\"\n{settings}\n");
    for (config, says) in [
        (format!("listen_on = 1\n{base}"), "gateway.toml:1: unknown field `listen_on`"),
        (operation("retentoin = \"7d\""), "gateway.toml:6: unknown field `retentoin`"),
        (operation("retention = \"7\""), "gateway.toml:6: \"7\" is not a duration"),
        (operation("in_flight = \"wait\""), "gateway.toml:6: \"wait\" is not a valid in_flight"),
        (operation("effect = \"atomic\""), "a gateway cannot have"),
        (operation("lookup = \"POST /x/{key}\""), "may only read"),
        (operation("lookup = \"GET /x\""), "has no {key}"),
        (operation("lookup_settle = \"1s\""), "lookup_… is set but lookup is not"),
        (operation("lookup_absent = 404"), "lookup_… is set but lookup is not"),
        (operation("lookup = \"GET /x/{key}\"\nlookup_absent = 200"), "is not a status that says"),
        (
            "upstream = \"http://127.0.0.1:1\"\n[scope]\ntenant = \"header:X-Tenant-Id\"\n[[operation]]\n\
             match = \"POST /a\"\nlookup = \"GET /x/{key}\"\n"
                .to_owned(),
            "lookup has no {tenant}",
        ),
        (operation("lease = \"1ms\""), "a lease of 1ms is not between"),
        (operation("replay_headers = [\"set-cookie\"]"), "set-cookie"),
        (format!("{base}[[operation]]\nmatch = \"GET /a\"\n"), "change nothing"),
        (format!("{base}[[operation]]\nmatch = \"/a\"\n"), "is not a route"),
        (format!("{base}[limits]\nconnections_max = 0\n"), "is not in 1..="),
        (format!("{base}[limits]\nnew_intents_per_s = -1.0\n"), "is not a rate"),
        (format!("{base}[limits]\nbuffered_bytes_max = 1000\n"), "could never be read"),
        (format!("status_secret = \"a secret\"\n{base}"), "give where the secret is stored, not the secret"),
        (
            format!("status_secret = \"env:SEMEL_NOT_THERE\"\n{base}"),
            "the environment variable SEMEL_NOT_THERE is not set",
        ),
        (
            "upstream = \"http://127.0.0.1:1\"\n[scope]\ntenant = \"header:Authorization\"\n".to_owned(),
            "gateway.toml:3: the header authorization cannot be the tenant: its value changes when a token",
        ),
        ("upstream = \"http://127.0.0.1:1\"\n[scope]\ntenant = \"auth:X\"\n".to_owned(), "needs authorize"),
        ("upstream = \"http://127.0.0.1:1\"\n".to_owned(), "the tenant of requests is not set"),
        ("[scope]\nsingle_tenant = true\n".to_owned(), "the service is not set"),
        ("upstream = \"https://a\"\n".to_owned(), "plain HTTP"),
    ] {
        let line = wrong(&config, &[]);
        assert!(line.contains(says), "{config}\n{line}");
    }
    let line = wrong("", &["--single-tenant", "--upstream", "http://a", "--admin", "0.0.0.0:9090"]);
    assert!(line.contains("--admin-insecure"), "{line}");
    assert!(wrong("", &["--upstream", "nowhere", "--single-tenant"]).contains("write it like http://"));
    let missing = semel(&["gateway", "--config", "/no/such/file", "--check"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn a_gateway_that_cannot_start_says_why() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let args = ["gateway", "--upstream", "http://127.0.0.1:1", "--single-tenant", "--listen", &listen];
    let output = place.command(&args, "").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot listen on"), "{output:?}");
    let args = ["gateway", "--upstream", "http://127.0.0.1:1", "--single-tenant", "--store", "mongodb://x"];
    assert_eq!(place.command(&args, "").output().unwrap().status.code(), Some(2));
}

#[test]
fn the_example_in_the_documentation_holds() {
    let docs = include_str!("../../../../docs/gateway.md");
    let example = docs.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let output = check(example, &[]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_cache_comes_from_the_file_the_environment_or_a_flag_and_its_password_is_not_shown() {
    let place = Place::new();
    let cached = |file: &str, env: Option<&str>, args: &[&str]| {
        let config = format!("{file}\n{FULL}");
        let mut command = place.command(&[&["gateway", "--check", "--json"], args].concat(), &config);
        command.env_remove("SEMEL_STORE").env_remove("SEMEL_CACHE");
        if let Some(env) = env {
            command.env("SEMEL_CACHE", env);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        document["cache"].as_str().map(str::to_owned)
    };
    let file = "cache = \"redis://u:secret@file\"";
    assert_eq!(cached("", None, &[]), None);
    assert_eq!(cached(file, None, &[]).as_deref(), Some("redis://u:…@file"));
    assert_eq!(cached(file, Some("redis://env"), &[]).as_deref(), Some("redis://env"));
    let flag = ["--cache", "redis://flag"];
    assert_eq!(cached(file, Some("redis://env"), &flag).as_deref(), Some("redis://flag"));
}

#[test]
fn a_keyed_operation_says_how_long_the_service_remembers_keys() {
    let checked = |effect: &str, more: &str| {
        let config = format!("[[operation]]\nmatch = \"POST /charges\"\neffect = \"{effect}\"\n{more}\n");
        let output = check(&config, &["--upstream", "http://127.0.0.1:3000", "--single-tenant"]);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (fine, _, warned) = checked("keyed", "");
    assert!(fine && warned.contains("is keyed and has no safe_for"), "{warned}");
    let (fine, printed, warned) = checked("keyed", "safe_for = \"24h\"");
    assert!(fine && !warned.contains("safe_for"), "{warned}");
    assert!(printed.lines().any(|line| line.starts_with("safe_for = ")), "{printed}");
    let (fine, _, refused) = checked("keyed", "safe_for = \"80s\"");
    assert!(!fine && refused.contains("leaves no time for a retry"), "{refused}");
    let (fine, _, refused) = checked("opaque", "safe_for = \"24h\"");
    assert!(!fine && refused.contains("set Effect::Keyed first"), "{refused}");
}
