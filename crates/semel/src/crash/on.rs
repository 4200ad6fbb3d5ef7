//! `SEMEL_CRASH_AT=name` or `name:n` (the n-th time it is reached) arms one point of this process.

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
        let wish = std::env::var("SEMEL_CRASH_AT").ok()?;
        let (name, nth) = wish.split_once(':').unwrap_or((&wish, "1"));
        Some(Armed { name: name.to_owned(), nth: nth.parse().ok()?, reached: AtomicU32::new(0) })
    });
    armed.as_ref()
}

/// Where the process waits for its parent to kill it, if this point is armed.
///
/// It says so on stderr and then reads stdin: the parent kills it there, or stops it and later writes `go`.
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
