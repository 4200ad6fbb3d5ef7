//! Partitions (column `lane`) that are at the same cursor, and so are read and advanced together.

use std::fmt;
use std::str::FromStr;

use super::snapshot::Snapshot;

/// Partitions at the same cursor. Only partitions just taken over differ, and they catch up: see [`target`].
#[derive(Clone, Debug)]
pub(in crate::relay) struct PartitionGroup {
    pub(in crate::relay) partitions: Vec<i16>,
    /// One for each partition.
    pub(in crate::relay) epochs: Vec<i64>,
    /// The current ctid of each cursor row. A lookup by number would pass all its dead versions, which vacuum cannot
    /// remove while any transaction is open.
    pub(in crate::relay) tids: Vec<String>,
    /// Everything visible in it is published, within these partitions.
    pub(in crate::relay) low: Snapshot,
    /// The window being published, if any.
    pub(in crate::relay) window: Option<Window>,
}

/// The events visible in `high` but not in the group's `low`, read by seq.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::relay) struct Window {
    pub(in crate::relay) high: Snapshot,
    /// Everything up to this seq is published.
    pub(in crate::relay) after: i64,
    /// The chunk up to this seq is in flight, and recorded.
    pub(in crate::relay) recorded: Option<i64>,
    pub(in crate::relay) plan: ScanPlan,
}

/// How a window is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::relay) enum ScanPlan {
    /// Not chosen yet: another relay began this window.
    Unknown,
    Few,
    /// By seq, from the lowest one on.
    Many {
        floor: i64,
    },
}

/// A partition as read from its cursor row.
#[derive(Clone, Debug)]
pub(in crate::relay) struct PartitionRow {
    pub(in crate::relay) partition: i16,
    pub(in crate::relay) epoch: i64,
    pub(in crate::relay) tid: String,
    pub(in crate::relay) low: Snapshot,
    pub(in crate::relay) window: Option<Window>,
}

impl PartitionGroup {
    /// The fence for changes to these partitions: each with the epoch of its lease.
    pub(in crate::relay) fn fence(&self) -> (&[i16], &[i64]) {
        (&self.partitions, &self.epochs)
    }

    /// The cursor of the recorded chunk, if any.
    pub(in crate::relay) fn cursor(&self) -> Option<GroupCursor> {
        let window = self.window.as_ref()?;
        let until = window.recorded?;
        // Sorted, so that the order of taking does not change it.
        let mut partitions = self.partitions.clone();
        partitions.sort_unstable();
        let (low, high) = (self.low.clone(), window.high.clone());
        Some(GroupCursor { partitions, low, high, after: window.after, until })
    }
}

/// A chunk of a group's window: its partitions, the snapshots of the window, and the seqs of the chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupCursor {
    partitions: Vec<i16>,
    low: Snapshot,
    high: Snapshot,
    after: i64,
    until: i64,
}

impl fmt::Display for GroupCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partitions, low, high, after, until } = self;
        write!(f, "{partitions:?} {low}..{high} {after}-{until}")
    }
}

impl FromStr for GroupCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let read = || {
            let (partitions, window) = text.strip_prefix('[')?.split_once("] ")?;
            let (snapshots, seqs) = window.split_once(' ')?;
            let (low, high) = snapshots.split_once("..")?;
            let (after, until) = seqs.split_once('-')?;
            Some(Self {
                partitions: partitions.split(", ").map(|one| one.parse().ok()).collect::<Option<_>>()?,
                low: Snapshot::read(low)?,
                high: Snapshot::read(high)?,
                after: after.parse().ok()?,
                until: until.parse().ok()?,
            })
        };
        read().ok_or(())
    }
}

/// Adds a partition to the group at the same cursor, or a new one.
pub(in crate::relay) fn join(groups: &mut Vec<PartitionGroup>, row: PartitionRow) {
    let same = |group: &&mut PartitionGroup| {
        let cursor = |window: &Option<Window>| {
            window.as_ref().map(|w| (w.high.text().to_owned(), w.after, w.recorded))
        };
        group.low == row.low && cursor(&group.window) == cursor(&row.window)
    };
    match groups.iter_mut().find(same) {
        Some(group) => {
            group.partitions.push(row.partition);
            group.epochs.push(row.epoch);
            group.tids.push(row.tid);
        }
        None => groups.push(PartitionGroup {
            partitions: vec![row.partition],
            epochs: vec![row.epoch],
            tids: vec![row.tid],
            low: row.low,
            window: row.window,
        }),
    }
}

/// Merges groups without an open window that have reached the same snapshot.
pub(in crate::relay) fn merge(groups: &mut Vec<PartitionGroup>) {
    let mut merged: Vec<PartitionGroup> = Vec::with_capacity(groups.len());
    for group in groups.drain(..) {
        let same = |other: &&mut PartitionGroup| {
            other.window.is_none() && group.window.is_none() && other.low == group.low
        };
        match merged.iter_mut().find(same) {
            Some(other) => {
                other.partitions.extend(group.partitions);
                other.epochs.extend(group.epochs);
                other.tids.extend(group.tids);
            }
            None => merged.push(group),
        }
    }
    *groups = merged;
}

/// Where a group's next window should end, so that it meets another group. `None`: at a new snapshot.
pub(in crate::relay) fn target(groups: &[PartitionGroup], at: usize) -> Option<Snapshot> {
    let low = &groups.get(at)?.low;
    // Where each group is, or will be after its window.
    let snapshots =
        groups.iter().map(|group| group.window.as_ref().map_or(&group.low, |window| &window.high));
    snapshots.filter(|other| other.age(low).is_gt()).max_by(|one, other| one.age(other)).cloned()
}

/// Whether another group is about to reach this one's snapshot, and worth a moment's wait.
pub(in crate::relay) fn is_awaited(groups: &[PartitionGroup], at: usize) -> bool {
    let Some(low) = groups.get(at).map(|group| &group.low) else { return false };
    let arrives = |group: &PartitionGroup| {
        group.window.as_ref().is_some_and(|window| window.plan == ScanPlan::Few && window.high == *low)
    };
    groups.iter().any(arrives)
}

/// Whether this cursor is beyond everything recorded here. A chunk is recorded before it is sent, so the cursor rows
/// were set back since.
pub(in crate::relay) fn is_behind(groups: &[PartitionGroup], cursor: &GroupCursor) -> bool {
    let GroupCursor { high, until, .. } = cursor;
    // A relay that shared wrote cursors for some partitions only; the others may be behind.
    let newest = |group: &PartitionGroup| match &group.window {
        None => group.low.age(high),
        Some(window) => {
            window.high.age(high).then_with(|| window.recorded.unwrap_or(window.after).cmp(until))
        }
    };
    groups.iter().map(newest).max().is_some_and(std::cmp::Ordering::is_lt)
}

/// Removes partitions from their groups.
pub(in crate::relay) fn without(groups: &mut Vec<PartitionGroup>, gone: &[i16]) {
    for group in groups.iter_mut() {
        let stays: Vec<bool> = group.partitions.iter().map(|partition| !gone.contains(partition)).collect();
        let mut flags = stays.iter().copied().cycle();
        group.partitions.retain(|_| flags.next().unwrap_or(true));
        group.epochs.retain(|_| flags.next().unwrap_or(true));
        group.tids.retain(|_| flags.next().unwrap_or(true));
    }
    groups.retain(|group| !group.partitions.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::read(text).unwrap()
    }

    fn row(partition: i16, low: &str, window: Option<Window>) -> PartitionRow {
        PartitionRow {
            partition,
            epoch: i64::from(partition) * 10,
            tid: "(0,1)".into(),
            low: snapshot(low),
            window,
        }
    }

    fn window(high: &str, plan: ScanPlan) -> Window {
        Window { high: snapshot(high), after: 0, recorded: None, plan }
    }

    #[test]
    fn partitions_at_one_cursor_go_together_and_the_others_catch_up() {
        let mut groups = Vec::new();
        join(&mut groups, row(0, "5:5:", None));
        join(&mut groups, row(1, "3:3:", None));
        join(&mut groups, row(2, "5:5:", None));
        join(&mut groups, row(3, "3:3:", Some(window("5:5:", ScanPlan::Unknown))));
        assert_eq!(
            groups.iter().map(|group| group.partitions.clone()).collect::<Vec<_>>(),
            [vec![0, 2], vec![1], vec![3]]
        );
        assert_eq!(groups[0].epochs, [0, 20]);
        assert_eq!((target(&groups, 0), target(&groups, 1)), (None, Some(snapshot("5:5:"))));
        assert!(!is_awaited(&groups, 0));
        groups[2].window = Some(window("9:9:", ScanPlan::Unknown));
        assert_eq!(target(&groups, 0), Some(snapshot("9:9:")));
        groups[1].window = Some(window("5:5:", ScanPlan::Few));
        assert!(is_awaited(&groups, 0) && !is_awaited(&groups, 1));
        // Arrived.
        groups[1].low = snapshot("5:5:");
        groups[1].window = None;
        merge(&mut groups);
        assert_eq!((groups.len(), groups[0].partitions.clone()), (2, vec![0, 2, 1]));
        without(&mut groups, &[2, 3]);
        assert_eq!((groups.len(), groups[0].epochs.clone()), (1, vec![0, 10]));
    }

    #[test]
    fn a_cursor_reads_what_it_wrote() {
        let mut groups = Vec::new();
        let recorded = Window { recorded: Some(7), ..window("5:9:6,8", ScanPlan::Few) };
        join(&mut groups, row(3, "3:3:", Some(recorded.clone())));
        join(&mut groups, row(0, "3:3:", Some(recorded)));
        let cursor = groups[0].cursor().unwrap();
        assert_eq!(cursor.to_string(), "[0, 3] 3:3:..5:9:6,8 0-7", "it is stored in sinks");
        assert_eq!("[0, 3] 3:3:..5:9:6,8 0-7".parse(), Ok(cursor));
        for other in ["parked [8, 9]", "0:1-5 1:5-9", "t1 table 3:3: 7", "[] 3:3:..5:5: 0-7", ""] {
            assert_eq!(other.parse::<GroupCursor>(), Err(()));
        }
    }

    #[test]
    fn a_cursor_from_beyond_what_is_recorded_is_noticed() {
        let mut groups = Vec::new();
        join(&mut groups, row(0, "5:5:", None));
        let behind = |groups: &[PartitionGroup], cursor: &str| is_behind(groups, &cursor.parse().unwrap());
        assert!(!behind(&groups, "[0] 3:3:..5:5: 0-7") && !behind(&groups, "[0] 3:3:..4:4: 0-7"));
        assert!(behind(&groups, "[0] 5:5:..6:6: 0-7"));
        let mut open = window("9:9:", ScanPlan::Few);
        (open.after, open.recorded) = (7, None);
        groups[0].window = Some(open);
        assert!(!behind(&groups, "[0] 5:5:..9:9: 0-7"));
        assert!(behind(&groups, "[0] 5:5:..9:9: 7-8"));
        groups[0].window.as_mut().unwrap().recorded = Some(8);
        assert!(!behind(&groups, "[0] 5:5:..9:9: 7-8"));
        assert!(behind(&groups, "[0] 9:9:..10:10: 0-1"));
    }
}
