//! The journal's own clock: the machine's wall clock, but monotonic.
//!
//! The age of an intent decides whether it may still be sent, so a wall clock that is set back must not make it young.
//! The amount by which the wall clock was set back is added to it from then on, and stored in the file for the next
//! process. A clock that jumps ahead is trusted: the machine may have been suspended.
//!
//! | the clock is set back | noticed by | then |
//! |---|---|---|
//! | while a process has the file open | the monotonic clock | the journal's clock goes on |
//! | while none has, before the last change | the file, when opened | age unknown: unanswered intents count as too old |
//! | while none has, to a moment after the last change | nothing | an intent counts as that much younger than it is |

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use tokio::time::Instant;

use super::{MS_MAX, ms};
use crate::store::sqlite::error::SqliteError;

/// The set-back is written to the file when it has grown by this much. Less is normal clock error.
const KEPT_MS_MIN: i64 = 1_000;

/// The wall clock, in milliseconds since 1970.
pub(in super::super) type Wall = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The monotonic clock, counted from some moment of this process.
pub(in super::super) type Steady = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The two clocks of a machine.
#[derive(Clone)]
pub(in super::super) struct Clocks {
    pub(in super::super) wall: Wall,
    pub(in super::super) steady: Steady,
}

impl Clocks {
    pub(in super::super) fn of_the_machine() -> Self {
        let begin = Instant::now();
        let wall = || ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        Self { wall: Arc::new(wall), steady: Arc::new(move || begin.elapsed()) }
    }
}

/// The times that the file has recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    /// The latest moment in it.
    pub(super) latest_ms: i64,
    /// How far the wall clock was set back in total.
    pub(super) set_back_ms: i64,
}

/// A moment of the journal's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    pub(super) now_ms: i64,
    set_back_ms: i64,
}

/// The clock of one open journal.
pub(super) struct JournalClock {
    clocks: Clocks,
    state: Mutex<State>,
}

struct State {
    latest_ms: i64,
    /// When that was, by the monotonic clock.
    at: Duration,
    set_back_ms: i64,
}

impl JournalClock {
    /// Also returns whether the file is further ahead of the machine's clock than `tolerance`.
    pub(super) fn open(clocks: Clocks, seen: Seen, tolerance: Duration) -> (Self, bool) {
        let by_wall = wall(&clocks) + seen.set_back_ms;
        let behind_the_file = seen.latest_ms.saturating_sub(by_wall);
        let state = State {
            latest_ms: seen.latest_ms,
            at: (clocks.steady)(),
            set_back_ms: seen.set_back_ms + behind_the_file.max(0),
        };
        (Self { clocks, state: Mutex::new(state) }, behind_the_file > ms(tolerance))
    }

    pub(super) fn now(&self) -> Moment {
        let (wall, steady) = (wall(&self.clocks), (self.clocks.steady)());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let at_least = state.latest_ms + ms(steady.saturating_sub(state.at));
        let now_ms = at_least.max(wall + state.set_back_ms).min(MS_MAX);
        (state.latest_ms, state.at) = (now_ms, steady.max(state.at));
        state.set_back_ms = state.set_back_ms.max(now_ms - wall);
        Moment { now_ms, set_back_ms: state.set_back_ms }
    }

    /// The machine's wall clock, for times that people read.
    pub(super) fn wall_ms(&self) -> i64 {
        wall(&self.clocks)
    }

    /// Takes over a larger set-back that another process has noticed.
    fn learn(&self, set_back_ms: i64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.set_back_ms = state.set_back_ms.max(set_back_ms);
    }

    /// In a transaction: merges the set-back of this process with that of the file. Returns the moment by both.
    pub(super) fn agree(&self, connection: &Connection, moment: Moment) -> Result<Moment, SqliteError> {
        let in_file = set_back_ms(connection)?;
        if in_file > moment.set_back_ms {
            self.learn(in_file);
            let now_ms = (moment.now_ms + in_file - moment.set_back_ms).min(MS_MAX);
            return Ok(Moment { now_ms, set_back_ms: in_file });
        }
        if moment.set_back_ms - in_file >= KEPT_MS_MIN {
            keep(connection, moment.set_back_ms)?;
        }
        Ok(moment)
    }
}

impl Moment {
    pub(super) fn set_back_ms(self) -> i64 {
        self.set_back_ms
    }
}

fn wall(clocks: &Clocks) -> i64 {
    (clocks.wall)().clamp(0, MS_MAX)
}

fn set_back_ms(connection: &Connection) -> Result<i64, SqliteError> {
    let mut read = connection.prepare_cached("SELECT coalesce(max(set_back_ms), 0) FROM clock")?;
    Ok(read.query_row([], |row| row.get::<_, i64>(0))?.clamp(0, MS_MAX))
}

pub(super) fn keep(connection: &Connection, set_back_ms: i64) -> Result<(), SqliteError> {
    connection.prepare_cached("UPDATE clock SET set_back_ms = ?1")?.execute([set_back_ms])?;
    Ok(())
}

/// Reads the times that the file has recorded.
pub(super) fn seen(connection: &Connection) -> Result<Seen, SqliteError> {
    let latest = "SELECT coalesce(max(changed_at), 0) FROM intent";
    let latest_ms: i64 = connection.query_row(latest, [], |row| row.get(0))?;
    Ok(Seen { latest_ms: latest_ms.clamp(0, MS_MAX), set_back_ms: set_back_ms(connection)? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    /// Clocks that the test moves.
    #[derive(Clone, Default)]
    struct Hands {
        wall: Arc<AtomicI64>,
        steady: Arc<AtomicI64>,
    }

    impl Hands {
        fn at(wall_ms: i64) -> Self {
            Self { wall: Arc::new(AtomicI64::new(wall_ms)), steady: Arc::default() }
        }

        fn clocks(&self) -> Clocks {
            let Self { wall, steady } = self.clone();
            Clocks {
                wall: Arc::new(move || wall.load(Ordering::Relaxed)),
                steady: Arc::new(move || Duration::from_millis(steady.load(Ordering::Relaxed) as u64)),
            }
        }

        fn pass(&self, time_ms: i64) {
            self.wall.fetch_add(time_ms, Ordering::Relaxed);
            self.steady.fetch_add(time_ms, Ordering::Relaxed);
        }

        fn jump(&self, by_ms: i64) {
            self.wall.fetch_add(by_ms, Ordering::Relaxed);
        }
    }

    const TOLERANCE: Duration = Duration::from_secs(30);

    fn open(hands: &Hands, latest_ms: i64, set_back_ms: i64) -> (JournalClock, bool) {
        JournalClock::open(hands.clocks(), Seen { latest_ms, set_back_ms }, TOLERANCE)
    }

    #[test]
    fn it_goes_on_when_the_wall_clock_is_set_back() {
        let hands = Hands::at(1_000_000);
        let (clock, too_far_ahead) = open(&hands, 0, 0);
        assert!(!too_far_ahead);
        assert_eq!(clock.now(), Moment { now_ms: 1_000_000, set_back_ms: 0 });
        hands.pass(5_000);
        hands.jump(-600_000);
        hands.pass(5_000);
        assert_eq!(clock.now(), Moment { now_ms: 1_010_000, set_back_ms: 600_000 });
        hands.pass(5_000);
        assert_eq!(clock.now(), Moment { now_ms: 1_015_000, set_back_ms: 600_000 });
        // Set forward again: a jump ahead like any other.
        hands.jump(600_000);
        assert_eq!(clock.now(), Moment { now_ms: 1_615_000, set_back_ms: 600_000 });
    }

    #[test]
    fn the_next_process_goes_on_where_the_last_one_was() {
        let hands = Hands::at(1_000_000);
        // The last process wrote 1_560_000 when this wall clock showed 960_000, and 40 s have passed.
        let (clock, too_far_ahead) = open(&hands, 1_560_000, 600_000);
        assert!(!too_far_ahead);
        assert_eq!(clock.now(), Moment { now_ms: 1_600_000, set_back_ms: 600_000 });
    }

    #[test]
    fn a_file_that_is_ahead_is_noticed_beyond_the_tolerance() {
        let hands = Hands::at(1_000_000);
        for (latest_ms, noticed) in [(1_000_000, false), (1_030_000, false), (1_030_001, true)] {
            let (clock, too_far_ahead) = open(&hands, latest_ms, 0);
            assert_eq!(too_far_ahead, noticed, "{latest_ms}");
            let moment = Moment { now_ms: latest_ms, set_back_ms: latest_ms - 1_000_000 };
            assert_eq!(clock.now(), moment);
        }
    }

    #[test]
    fn what_another_process_noticed_counts_once() {
        let file = super::super::open::in_memory().unwrap();
        let hands = Hands::at(1_000_000);
        let ((one, _), (other, _)) = (open(&hands, 0, 0), open(&hands, 0, 0));
        assert_eq!((one.now(), other.now()), (one.now(), one.now()));
        hands.jump(-600_000);
        let by_one = one.agree(&file, one.now()).unwrap();
        let by_other = other.agree(&file, other.now()).unwrap();
        assert_eq!(by_one, Moment { now_ms: 1_000_000, set_back_ms: 600_000 });
        assert_eq!(by_other, by_one);
        let (third, _) = open(&hands, 0, 0);
        assert_eq!(third.agree(&file, third.now()).unwrap(), by_one);
        assert_eq!(third.now(), by_one);
        assert_eq!(seen(&file).unwrap().set_back_ms, 600_000);
    }
}
