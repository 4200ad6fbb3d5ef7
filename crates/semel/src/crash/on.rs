//! `SEMEL_CRASH_AT=name` or `name:n` (the n-th time it is reached) arms one crash point of this process.

use std::io::{BufRead, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

struct Armed {
    name: String,
    nth: u32,
    reached: AtomicU32,
}

fn armed() -> Option<&'static Armed> {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let value = std::env::var("SEMEL_CRASH_AT").ok()?;
        let (name, nth) = value.split_once(':').unwrap_or((&value, "1"));
        Some(Armed { name: name.to_owned(), nth: nth.parse().ok()?, reached: AtomicU32::new(0) })
    });
    armed.as_ref()
}

/// Waits for the parent to kill the process, if this point is armed.
///
/// Reports the point on stderr, then reads stdin: the parent kills it there, or stops it and later writes `go`.
pub fn point(name: &'static str) {
    let Some(armed) = armed() else { return };
    if armed.name != name || armed.reached.fetch_add(1, Ordering::Relaxed) + 1 != armed.nth {
        return;
    }
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "semel-crash-point {name}");
    let _ = stderr.flush();
    drop(stderr);
    let mut verdict = String::new();
    let _ = std::io::stdin().lock().read_line(&mut verdict);
}
