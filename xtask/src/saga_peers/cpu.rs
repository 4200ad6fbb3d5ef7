//! How long processors have worked for a tree of processes, as the kernel counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Linux counts in these for programs, on all platforms that it is measured on.
const TICKS_PER_SECOND: f64 = 100.0;

/// One process in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Its own work, in user and kernel mode, and that of its children that have ended.
    ticks: u64,
}

impl Stat {
    /// The name, second field, is in brackets and may have spaces and brackets of its own.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.rsplit_once(')')?;
        // proc(5): behind the name are the state (3), the parent (4), …, utime (14), stime, cutime and cstime (17).
        let mut fields = fields.split_ascii_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let times: Option<Vec<u64>> = fields.skip(9).take(4).map(|field| field.parse().ok()).collect();
        let times = times.filter(|times| times.len() == 4)?;
        Some(Self { parent, ticks: times.iter().sum() })
    }
}

/// Seconds of these processes and of everything below them, ended or not. Only the difference of two readings means
/// something.
pub(super) fn seconds(roots: &[u32]) -> Result<f64, String> {
    let entries = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that ends meanwhile is counted by its parent from then on.
    let read = |pid: u32| Some((pid, Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
    ticks(&numbers.filter_map(read).collect(), roots).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

fn ticks(all: &BTreeMap<u32, Stat>, roots: &[u32]) -> Result<u64, String> {
    let mut tree = BTreeSet::new();
    let mut open = roots.to_vec();
    let mut sum = 0;
    while let Some(pid) = open.pop() {
        let Some(stat) = all.get(&pid) else {
            return Err(format!("process {pid} ended while it was measured"));
        };
        if tree.insert(pid) {
            sum += stat.ticks;
            open.extend(all.iter().filter(|(_, child)| child.parent == pid).map(|(child, _)| *child));
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read_whatever_the_name_is() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1185 9 0 0 100 20 3 4 20 0 1 0 12345 1 2 3";
        assert_eq!(Stat::parse(line), Some(Stat { parent: 7, ticks: 127 }));
        for broken in ["", "42 (x) S", "42 (x) S 7 42 42 0 -1 4194560 1185 9 0 0 100 20 3", "42 (x) S y 1"] {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_tree_is_counted_once_and_without_the_rest() {
        let stat = |parent, ticks| Stat { parent, ticks };
        let all = [
            (1, stat(0, 1_000)),
            (10, stat(1, 1)),
            (11, stat(10, 20)),
            (12, stat(11, 300)),
            (13, stat(1, 5)),
        ];
        let all = BTreeMap::from(all);
        assert_eq!(ticks(&all, &[10]), Ok(321));
        assert_eq!(ticks(&all, &[10, 13]), Ok(326));
        // One of them is below the other.
        assert_eq!(ticks(&all, &[10, 12]), Ok(321));
        assert!(ticks(&all, &[10, 99]).is_err_and(|error| error.contains("99")));
    }

    #[test]
    fn this_process_has_worked() {
        assert!(seconds(&[std::process::id()]).is_ok_and(|seconds| seconds >= 0.0));
    }
}
