//! `semel show`

use serde_json::json;

use crate::world::{World, completed, in_progress, lapsed, not_applied, refused, uncertain};

/// Replaces times, which differ from run to run.
fn steady(text: &str, world: &World) -> String {
    let text = text.replace(&world.url(), "sqlite:FILE");
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let is_moment = word.len() >= 24 && word.as_bytes()[10] == b'T' && word.as_bytes()[23] == b'Z';
        words.push(if is_moment { format!("MOMENT{}", &word[24..]) } else { word.to_owned() });
    }
    words.join(" ")
}

#[test]
fn an_uncertain_intent_and_the_commands_that_settle_it() {
    let world = World::new();
    let id = uncertain().id().to_string();
    let text = world.semel(&["show", &id]).out();
    let shown = "\
intent     ID
state      uncertain, for 3d4h
operation  payment.create
scope      acme/user-42
key        #50ac93f4 (--show-keys shows it)
effect     opaque
attempts   1
epoch      1
created    MOMENT, 3d4h ago
changed    MOMENT, 3d4h ago
outcome    504, body of 15 bytes
    gateway timeout

It is unknown whether it happened, so it is not run again.
Look it up where the effect would be, then record what you found:
  semel resolve ID --applied --code 200 --body @FILE --by NAME --why TEXT --epoch 1 --store sqlite:FILE
  semel resolve ID --not-applied --by NAME --why TEXT --epoch 1 --store sqlite:FILE
";
    assert_eq!(steady(&text, &world), shown.replace("ID", &id));
}

#[test]
fn a_completed_intent_with_its_outcome() {
    let world = World::new();
    let id = completed().id().to_string();
    let text = world.semel(&["show", &id[..10]]).out();
    let shown = "\
intent     ID
state      completed, for 3d4h
operation  payment.refund
scope      globex
key        #c0b2faad (--show-keys shows it)
effect     opaque
attempts   1
epoch      4
created    MOMENT, 3d4h ago
changed    MOMENT, 3d4h ago
expires    never
outcome    201, body of 8 bytes
    content-type: application/json
    {\"id\":7}

It is done. Calls with this key get this outcome forever.
To do the work again under the same key:
  semel release ID --yes --by NAME --why TEXT --epoch 4 --store sqlite:FILE
";
    assert_eq!(steady(&text, &world), shown.replace("ID", &id));
    assert_eq!(world.semel(&["show", &id, "--body"]).out(), "{\"id\":7}");
}

#[test]
fn each_state_says_what_it_means_for_callers() {
    let world = World::new();
    for (intent, means) in [
        (lapsed(), "It is unknown whether it happened, so it is not run again."),
        (
            in_progress(),
            "Its owner is working on it. Wait: if the lease is not renewed, it can be decided in 12h",
        ),
        (refused(), "It failed permanently. Calls with this key get this failure for another 3d19h."),
        (not_applied(), "It did not happen, or it is safe to run again. The next call with this key runs it"),
    ] {
        let text = world.semel(&["show", &intent.id().to_string()]).out();
        assert!(text.contains(means), "{text}");
    }
}

#[test]
fn an_intent_is_found_by_the_parts_of_its_id() {
    let world = World::new();
    let id = |args: &[&str]| {
        let shown = world.semel(&[&["show", "--json"], args].concat()).json();
        shown["id"].as_str().unwrap().to_owned()
    };
    let by_scope = ["--scope", "acme/user-42", "--operation", "payment.create", "--key", "order-1001"];
    assert_eq!(id(&by_scope), uncertain().id().to_string());
    let by_tenant = ["--tenant", "globex", "--operation", "payment.refund", "--key", "order-1004"];
    assert_eq!(id(&by_tenant), completed().id().to_string());
    assert_eq!(id(&["--operation", "mail.send", "--key", "welcome-7"]), not_applied().id().to_string());
    assert_eq!(id(&[&uncertain().id().to_string().to_uppercase()[..8]]), uncertain().id().to_string());
}

#[test]
fn json_has_the_outcome_and_what_comes_next() {
    let world = World::new();
    let shown = world.semel(&["show", "--json", &completed().id().to_string()]).json();
    let outcome = json!({
        "code": 201,
        "headers": [["content-type", "application/json"]],
        "body_bytes": 8,
        "body": "{\"id\":7}",
    });
    assert_eq!(shown["outcome"], outcome);
    assert_eq!(shown["state"], "completed");
    assert_eq!(shown["key"], json!(null));
    let shown = world.semel(&["show", "--json", "--show-keys", &lapsed().id().to_string()]).json();
    assert_eq!((&shown["outcome"], &shown["key"]), (&json!(null), &json!("order-1002")));
    let commands = shown["next"]["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 2);
    assert!(commands[1].as_str().unwrap().starts_with("semel resolve "));
}
