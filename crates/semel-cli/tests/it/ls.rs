//! `semel ls`

use semel::intent::fingerprint::Recipe;
use semel::intent::guard_expiry::KeyWindow;
use semel::store::{Claim, Claimed, Finish, Store};
use semel::{Effect, Owner, Retention};

use crate::semel::{command, ran, semel};
use crate::world::{World, block_on, claims, completed, intent, uncertain};

#[test]
fn a_table_newest_first_with_the_state_that_holds_now() {
    let world = World::new();
    let table = "\
ID            STATE             OPERATION       SCOPE         KEY         AGE  ATTEMPTS  CODE
f630d4a14979  failed_retryable  mail.send       -             #93d8535e  3d4h         1   503
4d58801dc655  failed_final      payment.create  globex        #6de18bfa  3d4h         1   402
0adce7b92bfe  completed         payment.refund  globex        #c0b2faad  3d4h         1   201
5be211576629  in_progress       payment.create  acme          #b8bceb23  3d4h         1     -
294150cf949a  uncertain         payment.create  acme          #60fc018d  3d4h         1     -
9c3507a64d69  uncertain         payment.create  acme/user-42  #50ac93f4  3d4h         1   504
";
    assert_eq!(world.semel(&["ls"]).out(), table);
}

#[test]
fn raw_keys_are_shown_only_when_asked_for() {
    let world = World::new();
    for args in [&["ls"][..], &["ls", "--json"]] {
        assert!(!world.semel(args).out().contains("order-1001"));
    }
    for args in [&["ls", "--show-keys"][..], &["ls", "--json", "--show-keys"]] {
        assert!(world.semel(args).out().contains("order-1001"));
    }
}

#[test]
fn each_filter_narrows() {
    let world = World::new();
    let keys = |args: &[&str]| {
        let args = [&["ls", "--json", "--show-keys"], args].concat();
        let page = world.semel(&args).json();
        let keys: Vec<_> = page["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["key"].as_str().unwrap().to_owned())
            .collect();
        keys.join(" ")
    };
    assert_eq!(keys(&["--state", "uncertain"]), "order-1002 order-1001");
    assert_eq!(keys(&["--state", "uncertain,in_progress"]), "order-1003 order-1002 order-1001");
    assert_eq!(keys(&["--state", "completed", "--state", "failed_final"]), "order-1005 order-1004");
    assert_eq!(keys(&["--operation", "payment.refund"]), "order-1004");
    assert_eq!(keys(&["--operation", "unknown.operation"]), "");
    assert_eq!(keys(&["--tenant", "globex"]), "order-1005 order-1004");
    assert_eq!(keys(&["--tenant", "acme", "--state", "in_progress"]), "order-1003");
    assert_eq!(keys(&["--tenant", ""]), "welcome-7");
    assert_eq!(keys(&["--older-than", "3d", "--tenant", "globex"]), "order-1005 order-1004");
    assert_eq!(keys(&["--older-than", "4d"]), "");
}

#[test]
fn nothing_to_list_says_so_beside_the_data() {
    let world = World::new();
    let ran = world.semel(&["ls", "--operation", "unknown.operation"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", "no intents match\n"));
}

#[test]
fn pages_go_on_where_the_last_one_ended() {
    let world = World::empty();
    let all: Vec<_> = (0..1_203).map(|n| intent("acme", "mail.send", &format!("k-{n}"))).collect();
    block_on(async {
        let store = world.store().await;
        for intent in &all {
            claims(&store, intent, 60_000).await;
        }
        store.close().await;
    });
    let mut ids = Vec::new();
    let mut args = vec!["ls".to_owned(), "--json".into(), "--limit".into(), "500".into()];
    let mut pages = 0;
    loop {
        let page = world.semel(&args.iter().map(String::as_str).collect::<Vec<_>>()).json();
        ids.extend(page["records"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        args.truncate(4);
        args.extend(["--after".to_owned(), next.to_owned()]);
    }
    let expected: Vec<_> = all.iter().rev().map(|intent| intent.id().to_string()).collect();
    assert_eq!((pages, &ids), (3, &expected));

    // With --all: one document per page with --json, one table otherwise.
    let documents = world.semel(&["ls", "--all", "--json"]).out();
    assert_eq!(documents.lines().count(), 2);
    let table = world.semel(&["ls", "--all"]).out();
    assert_eq!((table.lines().count(), table.matches("ATTEMPTS").count()), (1_204, 1));

    let page = world.semel(&["ls", "--limit", "2"]);
    assert_eq!((page.code, page.stdout.lines().count()), (0, 3));
    assert!(page.stderr.starts_with("there are more intents: add --after "), "{}", page.stderr);
}

#[test]
fn json_has_every_field() {
    let world = World::new();
    let page = world.semel(&["ls", "--json", "--operation", "payment.refund"]).json();
    let mut record = page["records"][0].clone();
    for changes in ["age_ms", "created_at", "changed_at", "lease_until"] {
        record.as_object_mut().unwrap().remove(changes).unwrap();
    }
    let expected = serde_json::json!({
        "id": completed().id().to_string(),
        "state": "completed",
        "operation": "payment.refund",
        "tenant": "globex",
        "scope": "globex",
        "key_hash": completed().key().short_hash(),
        "effect": "opaque",
        "epoch": 4,
        "attempts": 1,
        "expires_at": null,
        "safe_until": null,
        "code": 201,
        "decision": null,
    });
    assert_eq!(record, expected);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let world = World::new();
    let mut child = command(&["ls", "--store", &world.url()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn the_store_is_named_by_flag_or_environment_or_is_the_default() {
    let world = World::new();
    let id = uncertain().id().to_string();
    assert!(semel(&["--store", &world.url(), "ls"]).out().contains(&id[..12]));
    assert!(world.semel(&["ls"]).out().contains(&id[..12]));
    let mut here = command(&["ls"]);
    here.current_dir(world.path().parent().unwrap());
    assert!(ran(here).out().contains(&id[..12]));
}

/// Whose key is forgotten soon, and what that means for who is too late.
#[test]
fn unfinished_intents_whose_key_is_forgotten_soon_are_listed() {
    let world = World::new();
    let (soon, later, late) = ["soon", "later", "late"].map(|key| intent("acme", "charge", key)).into();
    block_on(async {
        let store = world.store().await;
        for (intent, safe_for_ms) in [(&soon, 3_000_000), (&later, 80_000_000), (&late, 1)] {
            let window = KeyWindow { safe_for_ms: Some(safe_for_ms), call_ms: 0 };
            let (fingerprint, owner) = (Recipe::default().bytes(b"request"), Owner::random());
            let (intent, effect) = (intent.clone(), Effect::Keyed);
            let claim = Claim { intent, fingerprint, owner, effect, lease_ms: 0, window };
            assert!(matches!(store.claim(claim).await.unwrap(), Claimed::Run(_)));
        }
        let forgotten = store.get(late.id()).await.unwrap().unwrap().head.safe_until.unwrap();
        while store.now().await.unwrap() <= forgotten {
            tokio::task::yield_now().await;
        }
        store.close().await;
    });
    let table = world.semel(&["ls", "--expiring", "1h"]).out();
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].ends_with("KEY LEFT") && rows.len() == 3, "{table}");
    assert!(rows[1].contains("uncertain") && rows[1].ends_with("none"), "{table}");
    assert!(rows[2].contains("in_progress") && rows[2].ends_with('s'), "{table}");
    let all = world.semel(&["ls", "--expiring", "30d", "--json"]).json();
    assert_eq!(all["records"].as_array().unwrap().len(), 3);
    assert!(all["records"][0]["safe_until"].as_str().unwrap().ends_with('Z'));
    let shown = world.semel(&["show", &late.id().to_string()]).out();
    assert!(shown.contains("key guard  may be forgotten since"), "{shown}");
    assert!(shown.contains("running it again might do it twice"), "{shown}");
    let shown = world.semel(&["show", &soon.id().to_string()]).out();
    assert!(shown.contains("key guard  remembered until"), "{shown}");
    assert!(
        shown.contains("runs it again if it can end while the other side remembers the key, for"),
        "{shown}"
    );
    // Not applied: it may run again as long as the key protects, and has to be decided again where it does not.
    for (intent, left) in [(&soon, true), (&late, false)] {
        let id = intent.id().to_string();
        let text = world.semel(&["resolve", &id, "--not-applied", "--by", "a", "--why", "b"]).out();
        let expected =
            if left { "runs it if it can end before 20" } else { "the next call with this key runs it" };
        assert!(text.contains(expected), "{text}");
        assert_eq!(world.semel(&["show", &id]).out().contains("key guard  remembered until"), left);
    }
}

/// A release would let it run under a key that the other side has forgotten.
#[test]
fn a_failure_whose_key_is_forgotten_is_not_released() {
    let world = World::new();
    let failed = intent("acme", "charge", "failed");
    block_on(async {
        let store = world.store().await;
        let window = KeyWindow { safe_for_ms: Some(1), call_ms: 0 };
        let (fingerprint, owner) = (Recipe::default().bytes(b"request"), Owner::random());
        let (intent, effect) = (failed.clone(), Effect::Keyed);
        let claim = Claim { intent, fingerprint, owner, effect, lease_ms: 60_000, window };
        let Claimed::Run(ticket) = store.claim(claim).await.unwrap() else { panic!("not granted") };
        store.finish(ticket, Finish::release(Retention::DAY)).await.unwrap();
        while store.now().await.unwrap() <= ticket.safe_until.unwrap() {
            tokio::task::yield_now().await;
        }
        store.close().await;
    });
    let id = failed.id().to_string();
    let refused = world.semel(&["release", &id, "--by", "a", "--why", "b"]).failed(1);
    let why = "refused: it has no outcome to withdraw; record what happened with `semel resolve`";
    assert_eq!(refused, why);
    assert_eq!(world.semel(&["show", &id, "--json"]).json()["state"], "uncertain");
}
