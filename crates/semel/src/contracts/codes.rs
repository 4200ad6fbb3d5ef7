//! Codes that clients and stored rows carry.

use super::pinned;
use crate::http::{Code, Profile};
use crate::intent::policy::Effect;
use crate::intent::state::State;
use crate::store::encoding::{effect_code, state_code};

#[test]
fn contract_problem_codes_and_their_statuses() {
    let mut listing = String::new();
    for code in Code::ALL {
        let statuses =
            Profile::ALL.map(|profile| format!("{}={}", profile.as_str(), code.status(profile).as_u16()));
        let retryable = if code.retryable() { "retryable" } else { "final" };
        listing.push_str(&format!("{} {} {retryable}\n", code.as_str(), statuses.join(" ")));
    }
    for profile in Profile::ALL {
        let (replayed, retry) = (profile.replayed(), profile.should_retry());
        listing.push_str(&format!("profile {}: {replayed}, {retry}\n", profile.as_str()));
    }
    pinned("problems", &listing);
}

#[test]
fn contract_codes_of_states_and_effects() {
    let states = State::ALL.map(|state| format!("state {} {}\n", state.as_str(), state_code(state)));
    let effects = Effect::ALL.map(|effect| format!("effect {} {}\n", effect.as_str(), effect_code(effect)));
    pinned("states", &[states.concat(), effects.concat()].concat());
}
