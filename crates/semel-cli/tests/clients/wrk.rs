//! wrk with the same few keys from many connections at once.

use std::collections::{BTreeSet, HashMap};
use std::process::Command;

use crate::gateway::{CONFIG, Gateway};
use crate::upstream::Upstream;
use crate::{need, said};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/wrk.lua");

#[test]
#[ignore = "prove: load"]
fn duplicates_under_load_charge_each_key_once() {
    need("wrk");
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.address, CONFIG);
    let url = gateway.url();
    let args = ["-t", "2", "-c", "64", "-d", "3s", "--timeout", "30s", "-s", SCRIPT, &url];
    let mut answered = 0;
    // Once, unless a busy machine is very slow.
    for _ in 0..10 {
        let said = said(Command::new("wrk").args(args));
        let line =
            said.lines().find_map(|line| line.strip_prefix("semel ")).unwrap_or_else(|| panic!("{said}"));
        println!("{line}");
        let numbers: HashMap<&str, u64> = line
            .split(' ')
            .filter_map(|field| field.split_once('='))
            .map(|(name, number)| (name, number.parse().unwrap()))
            .collect();
        assert_eq!((numbers["strange"], numbers["broken"]), (0, 0), "{said}");
        answered += numbers["answered"];
        if answered > 1_000 && upstream.charges().len() >= 50 {
            break;
        }
    }
    assert!(answered > 1_000, "{answered}");
    let charges = upstream.charges();
    let keys: BTreeSet<&str> = charges.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!((charges.len(), keys.len()), (50, 50), "{charges:?}");
}
