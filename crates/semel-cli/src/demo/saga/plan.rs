//! What happens to which order, and when which worker is killed: all derived from the seed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// One in so many orders is out of stock, and one in so many has a card that is declined.
const OUT_OF_STOCK_ONE_IN: u32 = 12;
const DECLINED_ONE_IN: u32 = 8;
/// So many orders for each kill, and at most so many kills.
const ORDERS_PER_KILL: u32 = 40;
const KILLS_MAX: u32 = 8;
/// How long after its moment a kill comes, at most.
const KILL_MS_MAX: u64 = 40;

/// One order. Its text has a fixed width, so that none is a prefix of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct OrderNo(pub(super) u32);

/// Why a participant refuses an order for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    OutOfStock,
    Declined,
}

impl OrderNo {
    /// Whether somebody refuses this order.
    pub(super) fn refusal(self, seed: u64) -> Option<Refusal> {
        let mut rng =
            Rng::with_seed(seed.rotate_left(32) ^ u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if rng.u32(..OUT_OF_STOCK_ONE_IN) == 0 {
            Some(Refusal::OutOfStock)
        } else if rng.u32(..DECLINED_ONE_IN) == 0 {
            Some(Refusal::Declined)
        } else {
            None
        }
    }
}

impl fmt::Display for OrderNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order-{:06}", self.0)
    }
}

impl FromStr for OrderNo {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = text.strip_prefix("order-").and_then(|digits| digits.parse().ok()).map(Self);
        number.filter(|number| number.to_string() == text).ok_or(())
    }
}

/// One kill: of which worker, so long after so many orders have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kill {
    pub(super) after: u32,
    pub(super) worker: usize,
    pub(super) pause: Duration,
}

/// The kills, in their order; at least two. The first come while most orders are still under way.
pub(super) fn kills(seed: u64, orders: u32, workers: usize) -> Vec<Kill> {
    let mut rng = Rng::with_seed(!seed);
    let count = (orders / ORDERS_PER_KILL).clamp(2, KILLS_MAX);
    let mut kills: Vec<Kill> = (0..count)
        .map(|_| Kill {
            after: rng.u32(..orders * 3 / 4),
            worker: rng.usize(..workers),
            pause: Duration::from_millis(rng.u64(..=KILL_MS_MAX)),
        })
        .collect();
    kills.sort_by_key(|kill| kill.after);
    kills
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_orders_are_refused_and_the_seed_says_which() {
        let refused = |seed, why| (0..1_000).filter(|n| OrderNo(*n).refusal(seed) == why).count();
        assert!((50..130).contains(&refused(7, Some(Refusal::OutOfStock))));
        assert!((80..180).contains(&refused(7, Some(Refusal::Declined))));
        let of = |seed| (0..100).map(|n| OrderNo(n).refusal(seed)).collect::<Vec<_>>();
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn names_read_back_and_parts_of_names_do_not() {
        assert_eq!("order-000042".parse(), Ok(OrderNo(42)));
        for bad in ["", "order-", "order-42", "order-0000420", "order-00004x", "intent-000042"] {
            assert!(bad.parse::<OrderNo>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kills_come_before_the_last_orders_and_in_order() {
        for orders in [10, 40, 300, 10_000] {
            let kills = kills(7, orders, 3);
            assert!((2..=8).contains(&kills.len()));
            assert!(kills.iter().all(|kill| kill.after < orders && kill.worker < 3));
            assert!(kills.is_sorted_by_key(|kill| kill.after));
        }
    }
}
