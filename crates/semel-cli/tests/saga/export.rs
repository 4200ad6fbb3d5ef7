//! `semel saga export`: what tests run tomorrow's code on.

use semel::saga::{Loaded, Status};

use crate::shop::{Participants, Shop};

#[test]
fn an_exported_saga_is_read_as_it_is_in_its_journal() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    let json = shop.saga("export", &[&n]).out();
    let loaded = Loaded::import(json.as_bytes()).unwrap();
    assert_eq!((loaded.record.number.0, loaded.record.name.as_str()), (number, "checkout"));
    assert_eq!((loaded.record.row.status, loaded.record.intent.key().as_str()), (Status::Parked, "order-1"));
    let shown = shop.saga("show", &[&n, "--json"]).json();
    assert_eq!(loaded.entries.len(), shown["entries"].as_array().unwrap().len());
    assert!(shop.saga("export", &["99"]).failed(1).contains("there is no saga 99"));
    // It was only read.
    assert_eq!(shop.saga("export", &[&n]).out(), json);
    shop.decide("resolve", &[&n, "charge", "--applied", "\"ch_7\""]).out();
    shop.work(number, Participants::Answer, "completed");
}
