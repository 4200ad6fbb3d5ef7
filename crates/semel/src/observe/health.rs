//! Health of a relay or a consumer: whether it makes progress, from the last results of its source and of its sink or
//! handler. Pure: the caller passes the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The runtime's clock, so that tests can pause it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What is known about a source and a sink.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// When the source last answered.
    source_at: Option<Instant>,
    source_error: Option<String>,
    /// Start of the call in flight.
    call_since: Option<Instant>,
    batch_under_way: bool,
    /// Since when the sink has confirmed nothing.
    failing_since: Option<Instant>,
    failed_at: Option<Instant>,
    sink_error: Option<String>,
    succeeded_at: Option<SystemTime>,
}

impl Health {
    /// All available work is done, even if there was none.
    pub(crate) fn succeeded(&mut self, at: SystemTime) {
        self.succeeded_at = Some(at);
    }

    /// When that was last so, in seconds since 1970.
    pub(crate) fn last_success(&self) -> Option<f64> {
        self.succeeded_at.map(|at| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
    }

    pub(crate) fn source_answered(&mut self, now: Instant) {
        self.source_at = Some(now);
        self.source_error = None;
    }

    pub(crate) fn source_failed(&mut self, error: &str) {
        self.source_error = Some(error.to_owned());
    }

    pub(crate) fn batch_begins(&mut self) {
        self.batch_under_way = true;
    }

    pub(crate) fn batch_ends(&mut self) {
        self.batch_under_way = false;
    }

    pub(crate) fn call_begins(&mut self, now: Instant) {
        self.call_since = Some(now);
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn call_left(&mut self) {
        self.call_since = None;
    }

    /// `answered`: the sink confirmed or refused something, so it is up.
    pub(crate) fn call_ends(&mut self, now: Instant, answered: bool, error: Option<&str>) {
        let began = self.call_since.take().unwrap_or(now);
        match error {
            Some(error) if !answered => {
                self.failing_since.get_or_insert(began);
                self.failed_at = Some(now);
                self.sink_error = Some(error.to_owned());
            }
            _ => {
                self.failing_since = None;
                self.failed_at = None;
                self.sink_error = None;
            }
        }
    }

    /// Why it is unhealthy, if source and sink may each be down for at most this long. `None`: it is healthy.
    pub(crate) fn unhealthy_reason(&self, now: Instant, patience: Duration) -> Option<String> {
        let ago = |since: Instant| now.saturating_duration_since(since);
        let because =
            |error: &Option<String>| error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        match self.source_at {
            None => return Some(format!("the source was not reached yet{}", because(&self.source_error))),
            Some(at) if ago(at) > patience => {
                let seconds = ago(at).as_secs();
                return Some(format!(
                    "the source was last reached {seconds} s ago{}",
                    because(&self.source_error)
                ));
            }
            Some(_) => {}
        }
        if let Some(since) = self.call_since
            && ago(since) > patience
        {
            return Some(format!("the sink has not answered for {} s", ago(since).as_secs()));
        }
        let since = self.failing_since?;
        // A failure that was parked long ago says nothing about now.
        let lately = self.batch_under_way || self.failed_at.is_some_and(|at| ago(at) <= patience);
        (lately && ago(since) > patience).then(|| {
            format!(
                "the sink has confirmed nothing for {} s{}",
                ago(since).as_secs(),
                because(&self.sink_error)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: Duration = Duration::from_secs(30);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_source_that_was_never_reached_or_not_lately_is_unhealthy() {
        let (mut health, start) = (Health::default(), Instant::now());
        assert!(health.unhealthy_reason(start, N).unwrap().contains("not reached yet"));
        health.source_answered(start);
        assert_eq!(health.unhealthy_reason(at(start, 30), N), None);
        health.source_failed("no route");
        let reason = health.unhealthy_reason(at(start, 31), N).unwrap();
        assert_eq!(reason, "the source was last reached 31 s ago: no route");
        health.source_answered(at(start, 31));
        assert_eq!(health.unhealthy_reason(at(start, 31), N), None);
    }

    #[test]
    fn a_sink_that_fails_for_long_is_unhealthy_until_it_takes_something() {
        let (mut health, start) = (Health::default(), Instant::now());
        health.batch_begins();
        for second in [0, 10, 20, 31] {
            health.call_begins(at(start, second));
            health.call_ends(at(start, second + 1), false, Some("refused"));
            health.source_answered(at(start, second + 1));
        }
        assert_eq!(health.unhealthy_reason(at(start, 30), N), None);
        let reason = health.unhealthy_reason(at(start, 32), N).unwrap();
        assert_eq!(reason, "the sink has confirmed nothing for 32 s: refused");
        health.call_begins(at(start, 40));
        health.call_ends(at(start, 40), true, Some("one of them failed"));
        assert_eq!(health.unhealthy_reason(at(start, 41), N), None);
    }

    #[test]
    fn a_call_without_an_end_is_unhealthy() {
        let (mut health, start) = (Health::default(), Instant::now());
        health.call_begins(start);
        health.source_answered(at(start, 20));
        assert_eq!(health.unhealthy_reason(at(start, 30), N), None);
        assert!(health.unhealthy_reason(at(start, 31), N).unwrap().contains("has not answered for 31 s"));
    }

    #[test]
    fn what_was_parked_long_ago_is_not_held_against_a_quiet_relay() {
        let (mut health, start) = (Health::default(), Instant::now());
        health.batch_begins();
        health.call_begins(start);
        health.call_ends(at(start, 35), false, Some("500"));
        health.source_answered(at(start, 36));
        assert!(health.unhealthy_reason(at(start, 36), N).is_some());
        health.batch_ends();
        health.source_answered(at(start, 66));
        assert_eq!(health.unhealthy_reason(at(start, 66), N), None);
    }
}
