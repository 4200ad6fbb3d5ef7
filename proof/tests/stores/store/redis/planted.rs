//! The laws can fail in Lua too: each bug planted in a script is caught by the law that forbids it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use semel::conformance::{self, Harness};
use semel::store::redis::RedisStore;
use testkit::services::{Service, require};

use super::support::{Server, options, prefix};
use crate::store::caught::broken;

struct Bug {
    name: &'static str,
    script: &'static str,
    from: &'static str,
    to: &'static str,
    caught_by: &'static str,
}

const BUGS: &[Bug] = &[
    Bug {
        name: "finish ignores the epoch",
        script: "finish",
        from: "epoch ~= tonumber(ARGV[3]) or string.sub",
        to: "string.sub",
        caught_by: "finish_is_fenced_by_epoch",
    },
    Bug {
        name: "finish ignores the owner",
        script: "finish",
        from: "or string.sub(raw, 29, 44) ~= ARGV[2]",
        to: "",
        caught_by: "finish_is_fenced_by_owner",
    },
    Bug {
        name: "the second outcome overwrites the first",
        script: "finish",
        from: "if state == to_be then\n    return {2, now}\nend\nif state >= 2 then\n    return {4, now, state}\nend\n",
        to: "",
        caught_by: "the_first_outcome_stands",
    },
    Bug {
        name: "fingerprints are not compared",
        script: "claim",
        from: "if theirs ~= print then",
        to: "if false then",
        caught_by: "mismatch_comes_before_replay",
    },
    Bug {
        name: "an opaque claim runs again after its lease",
        script: "claim",
        from: "if was == 0 or effect == 0 or not is_safe then",
        to: "if false then",
        caught_by: "a_lapsed_opaque_claim_is_uncertain",
    },
    Bug {
        name: "an opaque claimant believes a keyed failure",
        script: "claim",
        from: "elseif (was ~= 0 and effect == 0 and not is_decided) or",
        to: "elseif",
        caught_by: "a_keyed_failure_is_uncertain_to_an_opaque_claimant",
    },
    Bug {
        name: "a lapsed claim is renewed",
        script: "renew",
        from: "or is_lapsed(till) or",
        to: "or",
        caught_by: "a_lapsed_claim_is_not_renewed",
    },
    Bug {
        name: "an epoch is reused after an expiry",
        script: "claim",
        from: "return math.max(now_us, tonumber(marker[2]) + 1, floor + 1)",
        to: "return floor + 1",
        caught_by: "epochs_rise_over_release_expiry_and_sweep",
    },
    Bug {
        name: "what is uncertain expires",
        script: "finish",
        from: "    if state >= 2 then\n        if till > 0 then",
        to: "    if state >= 1 then\n        if till > 0 then till = now + 1",
        caught_by: "uncertain_never_expires",
    },
    Bug {
        name: "a takeover makes a key live longer",
        script: "claim",
        from: "safe_until = there",
        to: "",
        caught_by: "the_time_of_a_key_never_moves",
    },
    Bug {
        name: "a takeover does not ask whether the key may be forgotten",
        script: "claim",
        from: "local is_safe = not there or now + call_ms < there",
        to: "local is_safe = true",
        caught_by: "a_lapsed_keyed_claim_is_uncertain_once_its_key_is_forgotten",
    },
    Bug {
        name: "a keyed failure expires",
        script: "finish",
        from: "if has_safe_until(tag) and (to_be == 1 or to_be == 4) then",
        to: "if false then",
        caught_by: "a_keyed_failure_is_uncertain_once_its_key_is_forgotten",
    },
    Bug {
        name: "a keyed failure is released",
        script: "decide",
        from: "to_be = state >= 2 and not there and 4",
        to: "to_be = state >= 2 and 4",
        caught_by: "a_keyed_failure_is_not_released",
    },
    Bug {
        name: "not applied makes a key live longer",
        script: "decide",
        from: "if ruling == 8 and there and now < there then",
        to: "if false then",
        caught_by: "a_decision_ends_the_time_of_a_key",
    },
    Bug {
        name: "a replay forgets",
        script: "claim",
        from: "return {4, now, other_recipe, raw}",
        to: "redis.call('DEL', KEYS[2]) return {4, now, other_recipe, raw}",
        caught_by: "a_replay_changes_nothing",
    },
    Bug {
        name: "a decision does not fence",
        script: "decide",
        from: ".. string.rep('\\0', 16) .. string.sub(raw, 45",
        to: ".. string.sub(raw, 29",
        caught_by: "a_decision_fences_the_last_owner",
    },
    Bug {
        name: "what is finished stays in the set of the open ones, what is open never gets there",
        script: "claim",
        from: "redis.call('SADD', KEYS[3], ARGV[1])",
        to: "",
        caught_by: "list_filters_by_the_state_that_holds",
    },
];

/// A decision that does not fence keeps the epoch too.
fn edited(bug: &Bug, name: &str, text: String) -> String {
    if name != bug.script {
        return text;
    }
    assert!(text.contains(bug.from), "{}: the script has changed", bug.name);
    let text = text.replace(bug.from, bug.to);
    if bug.script == "decide" { text.replace("epoch = fresh_epoch(epoch)", "") } else { text }
}

struct Planted {
    url: String,
    prefix: String,
    bug: Option<&'static Bug>,
}

impl Harness for Planted {
    type Store = RedisStore;

    async fn store(&self) -> RedisStore {
        let options = options(&self.url, &self.prefix);
        let options = match self.bug {
            Some(bug) => options.editing(move |name, text| edited(bug, name, text)),
            None => options,
        };
        options.create().await.expect("the store opens")
    }

    async fn reopen(&self, store: RedisStore) -> Option<RedisStore> {
        drop(store);
        Some(self.store().await)
    }

    fn sweeps(&self) -> bool {
        false
    }
}

#[test]
fn every_bug_in_a_script_is_caught() {
    let Some(_) = require(Service::Redis) else { return };
    let server = conformance::block_on(Server::start(&[]));
    let judged = |bug, law| {
        let harness = Planted { url: server.url(), prefix: prefix("bug"), bug };
        let judge = || conformance::block_on(conformance::run(law, &harness));
        !broken(catch_unwind(AssertUnwindSafe(judge)))
    };
    for bug in BUGS {
        assert!(judged(None, bug.caught_by), "{} fails without the bug", bug.caught_by);
        assert!(!judged(Some(bug), bug.caught_by), "{:?} is not caught by {}", bug.name, bug.caught_by);
    }
}
