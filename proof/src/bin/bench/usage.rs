//! What the kernel says that a process has used.

use crate::Failed;

/// Linux counts in these for programs, on all platforms that it is measured on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The most a process has had in memory, in bytes.
pub(crate) fn high_water(pid: u32) -> Result<u64, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    Ok(kib.map(|kib: u64| kib * 1_024).ok_or("the kernel does not say how much memory a process has had")?)
}

/// How long processors have worked for a process, all of its threads, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, Failed> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in brackets, and may have spaces and brackets of its own.
    let words = stat.rsplit_once(')').map(|(_, words)| words.split_whitespace());
    let ticks = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok());
    let used = words.and_then(|words| {
        // Fields 14 and 15; what is behind the name begins with the third.
        let mut words = words.skip(11);
        Some(f64::from(ticks(words.next())?) + f64::from(ticks(words.next())?))
    });
    Ok(used.ok_or("the kernel does not say how long a process has worked")? / TICKS_PER_SECOND)
}
