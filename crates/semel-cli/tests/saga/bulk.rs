//! Decisions about many sagas.

use semel::saga::ParkReason;
use serde_json::json;

use crate::semel_binary::semel;
use crate::shop::Shop;

/// Three parked sagas, one of them past its pivot, and one that waits.
fn shop_with_parked() -> (Shop, [u64; 4]) {
    let shop = Shop::new();
    let numbers = [("gift", "1"), ("gift", "2"), ("checkout", "3"), ("loan", "4")];
    let numbers = numbers.map(|(name, key)| shop.start(name, key));
    (shop, numbers)
}

#[test]
fn the_help_lists_each_reason() {
    for command in ["retry", "compensate", "abandon"] {
        let help = semel(&["saga", command, "--help"]).out();
        for reason in ParkReason::ALL {
            assert!(help.contains(reason.as_str()), "{command}: {}:\n{help}", reason.as_str());
        }
    }
}

#[test]
fn a_plan_changes_nothing_and_needs_no_name() {
    let (shop, [first, second, past_pivot, _]) = shop_with_parked();
    let before = shop.saga("ls", &["--json"]).json()["sagas"].as_array().unwrap().len();
    let plan = shop.saga("retry", &["--reason", "unknown_result", "--plan"]).out();
    assert!(
        plan.contains(&format!("saga {first} (gift, parked (unknown_result)) would be retried")),
        "{plan}"
    );
    assert!(plan.ends_with("3 would be retried, 0 refused; nothing was changed\n"), "{plan}");
    let plan = shop.saga("compensate", &["--status", "parked,waiting", "--plan", "--json"]).json();
    assert_eq!((&plan["done"], &plan["refused"]), (&json!(2), &json!(2)));
    let of = |number: u64| {
        plan["sagas"].as_array().unwrap().iter().find(|saga| saga["number"] == number).unwrap().clone()
    };
    assert_eq!(of(second)["result"], "planned");
    assert!(of(past_pivot)["why"].as_str().unwrap().contains("pivot has begun"), "{plan}");
    assert_eq!(shop.saga("ls", &["--json"]).json()["sagas"].as_array().unwrap().len(), before);
    for number in [first, second, past_pivot] {
        let shown = shop.saga("show", &[&number.to_string(), "--json"]).json();
        assert_eq!(shown["status"], "parked");
        assert!(!shown["entries"].to_string().contains("operator"), "{shown}");
    }
}

#[test]
fn many_are_decided_about_only_with_yes() {
    let (shop, [first, second, past_pivot, waiting]) = shop_with_parked();
    let line = shop.decide("retry", &["--name", "gift"]).failed(2);
    assert!(line.contains("--plan") && line.contains("nothing was changed"), "{line}");
    let one = shop.decide("retry", &["--name", "gift", "--yes", "--limit", "1"]);
    assert_eq!(one.stdout, format!("saga {second} (gift) retried\n1 retried, 0 refused\n"));
    assert!(one.code == 0 && one.stderr.contains("more sagas than --limit"), "{one:?}");
    assert_eq!((shop.status(first), shop.status(second)), ("parked".to_owned(), "waiting".to_owned()));
    // The waiting ones are refused, and so is the one past its pivot.
    let ran = shop.decide("compensate", &["--status", "parked,waiting", "--yes"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains(&format!("saga {first} (gift) undone\n")), "{ran:?}");
    assert!(ran.stdout.contains(&format!("saga {waiting} (loan) refused: it is waiting")), "{ran:?}");
    assert!(ran.stdout.ends_with("1 undone, 3 refused\n"), "{ran:?}");
    assert!(ran.stderr.contains("3 of 4 sagas were refused"), "{ran:?}");
    assert_eq!((shop.status(first), shop.status(past_pivot)), ("undoing".to_owned(), "parked".to_owned()));
    let json = shop.decide("abandon", &["--reason", "unknown_result", "--yes", "--json"]).json();
    assert_eq!(
        json["sagas"][0],
        json!({ "number": past_pivot, "name": "checkout", "result": "recorded", "why": null })
    );
    assert_eq!(shop.status(past_pivot), "abandoned");
}

#[test]
fn a_number_and_filters_do_not_mix() {
    let shop = Shop::new();
    for (args, says) in [
        (&["1", "--name", "gift"][..], "cannot be used with"),
        (&["1", "--plan"], "cannot be used with"),
        (&["--plan"], "required"),
        (&["--yes"], "required"),
        (&["--status", "stuck", "--plan"], "is not a status"),
        (&["--reason", "stuck", "--plan"], "is not a reason"),
        (&["--name", "gift", "--plan", "--yes"], "cannot be used with"),
    ] {
        let line = shop.decide("retry", args).failed(2);
        assert!(line.contains(says), "{args:?}: {line}");
    }
    let line = shop.saga("retry", &["--name", "gift", "--yes"]).failed(2);
    assert!(line.contains("--by"), "{line}");
    assert_eq!(shop.decide("retry", &["--name", "gift", "--yes"]).out(), "0 retried, 0 refused\n");
}
