//! Outcomes sealed by the gateway: nothing readable in the store, keys rotated, and no answer without a key.

use crate::gateway::Place;
use crate::upstream::Upstream;

const SCOPE: &str = "[scope]\nsingle_tenant = true\n[protect]\ncompress_above = \"64B\"\n";

fn on_disk(place: &Place, text: &str) -> bool {
    ["semel.db", "semel.db-wal"].iter().any(|name| {
        let bytes = std::fs::read(place.file(name)).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn sealed_answers_are_replayed_with_their_key_only() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let keys = |lines: &[(&str, &str)]| {
        let text: String = lines.iter().map(|(id, hex)| format!("{id} {}\n", hex.repeat(32))).collect();
        std::fs::write(place.file("keys"), text).unwrap();
    };
    let config = format!("{SCOPE}keys = \"file:{}\"\n", place.file("keys").display());
    keys(&[("old", "1a")]);
    let gateway = place.start(&upstream, &[], &config);
    let first = gateway.post("/pay", "k-1", "x");
    let body = first.text();
    assert!(first.status == 201 && body.len() > 3, "{body}");
    assert_eq!(gateway.post("/pay", "k-1", "x").text(), body);
    gateway.stop();
    assert!(!on_disk(&place, &body));

    // After rotation the new key writes, and the old one still reads.
    keys(&[("new", "2b"), ("old", "1a")]);
    let gateway = place.start(&upstream, &[], &config);
    let again = gateway.post("/pay", "k-1", "x");
    assert_eq!((again.text(), again.is_replay()), (body.clone(), true));
    gateway.stop();

    // The key was removed too early: no answer, no second effect, and `semel show` names what is missing.
    keys(&[("new", "2b")]);
    let gateway = place.start(&upstream, &[], &config);
    assert_eq!(gateway.post("/pay", "k-1", "x").code(), "IDEMPOTENCY_STORE_UNAVAILABLE");
    assert_eq!(upstream.effects("k-1"), 1);
    gateway.stop();
    let show = ["show", "--operation", "POST *", "--key", "k-1", "--body"];
    let shown = place.semel(&show);
    let stderr = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(shown.status.code() == Some(2) && stderr.contains("sealed with the key \"old\""), "{stderr}");
    keys(&[("old", "1a")]);
    let source = format!("file:{}", place.file("keys").display());
    let shown = place.semel(&[&show[..], &["--keys", &source]].concat());
    assert_eq!(String::from_utf8_lossy(&shown.stdout), body, "{shown:?}");
}
