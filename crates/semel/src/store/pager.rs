//! How a SQL store fills a page: a window of rows at a time, until the page is full or the list ends.
//!
//! A scan over millions of rows that do not match is many short reads, not a long one that holds a snapshot. The windows
//! get larger as long as there is room.

use super::{Filter, PAGE_OUTCOME_BYTES, encoding};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use super::{StoreError, cursor};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::intent::policy::StoreTime;

/// Rows in the first window.
const WINDOW_ROWS_MIN: i64 = 1_000;

/// A page being filled. `C` is where a row is in the list.
pub(super) struct Pager<C, T> {
    limit: usize,
    window: i64,
    window_max: i64,
    below: Option<C>,
    last: Option<C>,
    found: Vec<T>,
    outcome_bytes: u64,
    more: bool,
}

impl<C: Copy, T> Pager<C, T> {
    /// A page that comes after a cursor. `window_max`: rows in one window at most.
    pub(super) fn new(filter: &Filter, after: Option<C>, window_max: i64) -> Self {
        Self {
            limit: filter.page_records(),
            window: WINDOW_ROWS_MIN,
            window_max,
            below: after,
            last: None,
            found: Vec::new(),
            outcome_bytes: 0,
            more: false,
        }
    }

    /// The window has the rows below this one. `None`: it begins with the newest.
    pub(super) fn below(&self) -> Option<C> {
        self.below
    }

    /// How many rows the window has.
    pub(super) fn window(&self) -> i64 {
        self.window
    }

    /// How many matching rows to read at most. One more than the limit shows that there is another page.
    pub(super) fn room(&self) -> i64 {
        encoding::number((self.limit + 1 - self.found.len()) as u64)
    }

    /// Whether the page ends before the row that comes next.
    pub(super) fn ends_here(&mut self) -> bool {
        self.more = self.found.len() == self.limit || self.outcome_bytes > PAGE_OUTCOME_BYTES;
        self.more
    }

    pub(super) fn push(&mut self, at: C, outcome_bytes: u64, row: T) {
        self.last = Some(at);
        self.outcome_bytes += outcome_bytes;
        self.found.push(row);
    }

    /// Goes on below `floor`, where the last window ended; `None` is the end of the list. `false`: the page is done.
    pub(super) fn next_window(&mut self, floor: Option<C>) -> bool {
        self.below = floor;
        self.window = (self.window * 2).min(self.window_max);
        floor.is_some() && !self.more
    }

    /// The rows, and the cursor of the next page.
    pub(super) fn finish(self) -> (Vec<T>, Option<C>) {
        (self.found, self.last.filter(|_| self.more))
    }
}

/// A cursor that is a sequence number.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn sequence(filter: &Filter) -> Result<Option<i64>, StoreError> {
    let Some(after) = &filter.after else { return Ok(None) };
    let parsed = after.parse().ok().filter(|seq| *seq > 0);
    parsed.map(Some).ok_or_else(|| cursor::unknown(after))
}

/// By when a key has to be forgotten, if only such are wanted.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn expiring_by(filter: &Filter, now: StoreTime) -> Option<i64> {
    filter.expiring_within_ms.map(|ms| encoding::number(now.plus_ms(ms).0))
}

/// The states that are wanted, one bit each.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn state_bits(filter: &Filter) -> i32 {
    filter.wanted_states().iter().fold(0, |bits, state| bits | 1 << encoding::state_code(*state))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 9, 8 … 1, of which every one matches, in windows of one row each.
    fn pages(limit: usize, outcome_bytes: u64) -> Vec<(Vec<i64>, Option<i64>)> {
        let filter = Filter { limit, ..Filter::default() };
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let mut pager = Pager::new(&filter, after, 20_000);
            loop {
                let floor = Some(pager.below().unwrap_or(10) - 1).filter(|seq| *seq > 0);
                for seq in floor.into_iter() {
                    if pager.ends_here() {
                        break;
                    }
                    pager.push(seq, outcome_bytes, seq);
                }
                if !pager.next_window(floor) {
                    break;
                }
            }
            pages.push(pager.finish());
            after = pages[pages.len() - 1].1;
            if after.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn a_page_ends_at_its_limit_or_after_its_bytes_and_the_next_goes_on_there() {
        let all: Vec<i64> = (1..10).rev().collect();
        for (limit, bytes, sizes) in [
            (9, 0, vec![9]),
            (4, 0, vec![4, 4, 1]),
            (8, 16 << 20, vec![2, 2, 2, 2, 1]),
            (3, 32 << 20, vec![1; 9]),
        ] {
            let pages = pages(limit, bytes);
            let lengths: Vec<usize> = pages.iter().map(|(rows, _)| rows.len()).collect();
            assert_eq!(lengths, sizes, "{limit} rows, {bytes} bytes each");
            let rows: Vec<i64> = pages.into_iter().flat_map(|(rows, _)| rows).collect();
            assert_eq!(rows, all);
        }
    }

    #[test]
    fn windows_grow_up_to_their_bound() {
        let mut pager: Pager<i64, ()> = Pager::new(&Filter::default(), None, 3_000);
        let mut rows = Vec::new();
        for floor in [3, 2, 1] {
            rows.push(pager.window());
            assert!(pager.next_window(Some(floor)));
        }
        assert_eq!((rows, pager.window()), (vec![1_000, 2_000, 3_000], 3_000));
        assert!(!pager.next_window(None));
    }
}
