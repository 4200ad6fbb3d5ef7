//! What the kernel says that a process has used.

use crate::Failed;

/// Linux counts in these for programs, on all platforms that it is measured on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The most a process has had in memory, in bytes.
#[cfg(feature = "relay")]
pub(crate) fn high_water(pid: u32) -> Result<u64, Failed> {
    status(pid, "VmHWM:")
}

/// What a process has in memory now, in bytes.
pub(crate) fn resident(pid: u32) -> Result<u64, Failed> {
    status(pid, "VmRSS:")
}

fn status(pid: u32, name: &str) -> Result<u64, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    Ok(kib.map(|kib: u64| kib * 1_024).ok_or("the kernel does not say how much memory a process has had")?)
}

/// How long processors have worked for a process, all of its threads, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, Failed> {
    // User and system time.
    Ok(stat(pid, 14..16)?.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// The same for a process and its children, those that have ended included.
pub(crate) fn cpu_seconds_with_children(pid: u32) -> Result<f64, Failed> {
    let mut ticks: f64 = stat(pid, 14..18)?.iter().sum();
    for entry in std::fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has ended meanwhile is not there any more.
        if parent(child).is_ok_and(|parent| parent == pid) {
            ticks += stat(child, 14..16).unwrap_or_default().iter().sum::<f64>();
        }
    }
    Ok(ticks / TICKS_PER_SECOND)
}

/// The process that started it.
pub(crate) fn parent(pid: u32) -> Result<u32, Failed> {
    Ok(stat(pid, 4..5)?.first().copied().unwrap_or_default() as u32)
}

/// These fields of what the kernel says about a process, counted from 1.
fn stat(pid: u32, fields: std::ops::Range<usize>) -> Result<Vec<f64>, Failed> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in brackets, and may have spaces and brackets of its own; behind it is the third field.
    let words = stat.rsplit_once(')').map(|(_, words)| words.split_whitespace());
    let words = words.into_iter().flatten().skip(fields.start - 3).take(fields.len());
    let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    if numbers.len() == fields.len() {
        Ok(numbers)
    } else {
        Err("the kernel says nothing about a process".into())
    }
}
