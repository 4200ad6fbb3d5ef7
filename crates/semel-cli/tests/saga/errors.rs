//! What is wrong is said in one line, with what to do.

use crate::semel_binary::semel;
use crate::shop::Shop;

#[test]
fn missing_tables_name_the_command_that_makes_them() {
    let directory = testkit::scratch::directory();
    let file = directory.path().join("other.db");
    let url = format!("sqlite:{}", file.display());
    assert!(semel(&["saga", "ls", &url]).failed(2).contains("cannot be opened"));
    rusqlite::Connection::open(&file).unwrap().execute_batch("CREATE TABLE t (n)").unwrap();
    for args in [&["saga", "ls", &url][..], &["saga", "show", &url, "1"]] {
        let line = semel(args).failed(2);
        assert!(line.contains("semel migrate --saga"), "{line}");
    }
    assert!(semel(&["saga", "ls", "redis://h"]).failed(2).contains("no sagas is known"));
}

#[test]
fn a_number_that_is_none() {
    let shop = Shop::new();
    for (command, args) in [("show", &["7"][..]), ("signal", &["7", "approval", "--id", "a"])] {
        assert!(shop.saga(command, args).failed(1).contains("there is no saga 7"), "{command}");
    }
    for (command, args) in [
        ("retry", &["7"][..]),
        ("compensate", &["7"]),
        ("abandon", &["7", "--yes"]),
        ("cancel", &["7"]),
        ("resolve", &["7", "charge", "--not-applied"]),
    ] {
        let line = shop.decide(command, args).failed(1);
        assert!(line.contains("there is no saga 7") && line.contains("semel saga ls"), "{command}: {line}");
    }
    let by_key = ["--name", "checkout", "--key", "order-1"];
    assert!(shop.saga("show", &by_key).failed(1).contains("there is no saga with this name"));
    assert!(shop.saga("show", &["seven"]).failed(2).contains("invalid value"));
}

#[test]
fn a_step_or_a_result_that_is_none() {
    let shop = Shop::new();
    let n = shop.start("checkout", "order-1").to_string();
    let resolve = |args: &[&str]| shop.decide("resolve", &[&[n.as_str()], args].concat());
    assert!(resolve(&["ship", "--not-applied"]).failed(1).contains("ship#0 was never begun"));
    assert!(resolve(&["reserve", "--applied"]).failed(1).contains("reserve#0 was never begun, or is done"));
    assert!(resolve(&["charge#1", "--applied"]).failed(1).contains("charge#1 was never begun"));
    assert!(resolve(&["charge", "--undo", "--applied"]).failed(1).contains("nothing to resolve"));
    assert!(resolve(&["charge#x", "--applied"]).failed(2).contains("is not a step"));
    assert!(resolve(&["charge", "--applied", "ch_81"]).failed(2).contains("it is not JSON"));
    assert!(resolve(&["charge"]).failed(2).contains("--applied"));
    assert!(
        resolve(&["charge", "--applied", "1", "--not-applied"]).failed(2).contains("cannot be used with")
    );
    let anonymous = shop.saga("resolve", &[&n, "charge", "--not-applied"]).failed(2);
    assert!(anonymous.contains("--by") && anonymous.contains("--why"), "{anonymous}");
    let signal = |args: &[&str]| shop.saga("signal", &[&[n.as_str()], args].concat());
    assert!(signal(&["approval", "yes", "--id", "a"]).failed(2).contains("it is not JSON"));
    assert!(signal(&["/cancel", "--id", "a"]).failed(2).contains("a signal has a name"));
    assert!(signal(&["approval", "--id", ""]).failed(2).contains("a signal has a name"));
    assert_eq!(shop.status(n.parse().unwrap()), "parked");
}
