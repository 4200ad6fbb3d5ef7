//! Seeds that are printed and can be replayed.
//!
//! A random test is only evidence if it can be repeated. [`seed`] takes the value of `SEMEL_SEED` when it is set and
//! a fresh one otherwise, and prints it either way: the line shows up in the output of a failing test.

/// The environment variable that replays a run.
pub const SEED_ENV: &str = "SEMEL_SEED";

/// The seed of this run: `SEMEL_SEED` if set, else a fresh one. Prints the line that replays it.
///
/// # Panics
/// When `SEMEL_SEED` is set to something that is not a number: running with another seed than the
/// one asked for would look like "does not reproduce".
#[must_use]
pub fn seed() -> u64 {
    let seed = match std::env::var(SEED_ENV) {
        Ok(text) => {
            parse(&text).unwrap_or_else(|| panic!("{SEED_ENV} is {text:?}, not an unsigned 64-bit number"))
        }
        Err(_) => fastrand::u64(..),
    };
    println!("{SEED_ENV}={seed}  (set it to replay)");
    seed
}

/// A small deterministic generator started with [`seed`].
#[must_use]
pub fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(seed())
}

/// A generator for one part of a run, independent of how much the other parts draw.
///
/// Threads that share one generator draw in the order of the scheduler, which no seed replays.
#[must_use]
pub fn rng_for(seed: u64, part: u64) -> fastrand::Rng {
    // The odd constant is SplitMix64's: neighbouring parts get distant states.
    fastrand::Rng::with_seed(seed ^ part.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_seed_parses_back() {
        for seed in [0, 1, 42, u64::MAX] {
            assert_eq!(parse(&seed.to_string()), Some(seed));
        }
        assert_eq!(parse("0xff"), Some(255));
        assert_eq!(parse("-1"), None);
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_another_does_not() {
        let draw = |mut rng: fastrand::Rng| (0..8).map(|_| rng.u32(..)).collect::<Vec<_>>();
        assert_eq!(draw(rng_for(7, 0)), draw(rng_for(7, 0)));
        assert_ne!(draw(rng_for(7, 0)), draw(rng_for(8, 0)));
        assert_ne!(draw(rng_for(7, 0)), draw(rng_for(7, 1)));
    }
}
