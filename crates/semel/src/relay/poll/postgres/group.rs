//! Lanes that are at the same place, and so are read and moved together.

use super::snapshot::Snapshot;

/// Lanes with one place. Only those who have just been taken over differ, and they catch up: see [`target`].
#[derive(Clone, Debug)]
pub(in crate::relay) struct Group {
    pub(in crate::relay) lanes: Vec<i16>,
    /// One for each lane.
    pub(in crate::relay) epochs: Vec<i64>,
    /// Where each lane's row is just now. Found by the lane's number it would have to be picked from all its earlier
    /// versions, and while somebody's transaction is open none of those can be removed.
    pub(in crate::relay) tids: Vec<String>,
    /// All that it sees is published, as far as it is of these lanes.
    pub(in crate::relay) low: Snapshot,
    /// What is being published, if anything is.
    pub(in crate::relay) window: Option<Window>,
}

/// What one snapshot sees and another does not, walked through by seq.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::relay) struct Window {
    pub(in crate::relay) high: Snapshot,
    /// Up to here everything is published.
    pub(in crate::relay) after: i64,
    /// Up to here it is being sent, and that is written down.
    pub(in crate::relay) noted: Option<i64>,
    pub(in crate::relay) walk: Walk,
}

/// How a window is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::relay) enum Walk {
    /// Nobody has looked yet: it was another's.
    Unknown,
    Few,
    /// By seq, from the lowest one on.
    Many {
        floor: i64,
    },
}

/// A lane as its row has it.
#[derive(Clone, Debug)]
pub(in crate::relay) struct Lane {
    pub(in crate::relay) lane: i16,
    pub(in crate::relay) epoch: i64,
    pub(in crate::relay) tid: String,
    pub(in crate::relay) low: Snapshot,
    pub(in crate::relay) window: Option<Window>,
}

impl Group {
    /// Names what is written down, if anything is.
    pub(super) fn place(&self) -> Option<String> {
        let window = self.window.as_ref()?;
        let until = window.noted?;
        // In order: whose they were before, and in which order they were taken, is nobody's place.
        let mut lanes = self.lanes.clone();
        lanes.sort_unstable();
        Some(format!("{lanes:?} {}..{} {}-{until}", self.low, window.high, window.after))
    }
}

/// Puts lanes that are at one place together.
pub(in crate::relay) fn join(groups: &mut Vec<Group>, lane: Lane) {
    let same = |group: &&mut Group| {
        let place =
            |window: &Option<Window>| window.as_ref().map(|w| (w.high.text().to_owned(), w.after, w.noted));
        group.low == lane.low && place(&group.window) == place(&lane.window)
    };
    match groups.iter_mut().find(same) {
        Some(group) => {
            group.lanes.push(lane.lane);
            group.epochs.push(lane.epoch);
            group.tids.push(lane.tid);
        }
        None => groups.push(Group {
            lanes: vec![lane.lane],
            epochs: vec![lane.epoch],
            tids: vec![lane.tid],
            low: lane.low,
            window: lane.window,
        }),
    }
}

/// Puts groups between windows together that have come to one place.
pub(in crate::relay) fn merge(groups: &mut Vec<Group>) {
    let mut merged: Vec<Group> = Vec::with_capacity(groups.len());
    for group in groups.drain(..) {
        let same =
            |other: &&mut Group| other.window.is_none() && group.window.is_none() && other.low == group.low;
        match merged.iter_mut().find(same) {
            Some(other) => {
                other.lanes.extend(group.lanes);
                other.epochs.extend(group.epochs);
                other.tids.extend(group.tids);
            }
            None => merged.push(group),
        }
    }
    *groups = merged;
}

/// Where the next window of a group should end, so that it meets another one: `None` at the newest snapshot.
pub(in crate::relay) fn target(groups: &[Group], at: usize) -> Option<Snapshot> {
    let low = &groups.get(at)?.low;
    // Where a group is, or is on its way to.
    let places = groups.iter().map(|group| group.window.as_ref().map_or(&group.low, |window| &window.high));
    places.filter(|other| other.age(low).is_gt()).max_by(|one, other| one.age(other)).cloned()
}

/// Whether another group is about to arrive where this one is: it is worth a moment's wait.
pub(in crate::relay) fn is_awaited(groups: &[Group], at: usize) -> bool {
    let Some(low) = groups.get(at).map(|group| &group.low) else { return false };
    let arrives = |group: &Group| {
        group.window.as_ref().is_some_and(|window| window.walk == Walk::Few && window.high == *low)
    };
    groups.iter().any(arrives)
}

/// Takes lanes out.
pub(in crate::relay) fn without(groups: &mut Vec<Group>, gone: &[i16]) {
    for group in groups.iter_mut() {
        let stays: Vec<bool> = group.lanes.iter().map(|lane| !gone.contains(lane)).collect();
        let mut flags = stays.iter().copied().cycle();
        group.lanes.retain(|_| flags.next().unwrap_or(true));
        group.epochs.retain(|_| flags.next().unwrap_or(true));
        group.tids.retain(|_| flags.next().unwrap_or(true));
    }
    groups.retain(|group| !group.lanes.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::read(text).unwrap()
    }

    fn lane(lane: i16, low: &str, window: Option<Window>) -> Lane {
        Lane { lane, epoch: i64::from(lane) * 10, tid: "(0,1)".into(), low: snapshot(low), window }
    }

    fn window(high: &str, walk: Walk) -> Window {
        Window { high: snapshot(high), after: 0, noted: None, walk }
    }

    #[test]
    fn lanes_at_one_place_go_together_and_the_others_catch_up() {
        let mut groups = Vec::new();
        join(&mut groups, lane(0, "5:5:", None));
        join(&mut groups, lane(1, "3:3:", None));
        join(&mut groups, lane(2, "5:5:", None));
        join(&mut groups, lane(3, "3:3:", Some(window("5:5:", Walk::Unknown))));
        assert_eq!(
            groups.iter().map(|group| group.lanes.clone()).collect::<Vec<_>>(),
            [vec![0, 2], vec![1], vec![3]]
        );
        assert_eq!(groups[0].epochs, [0, 20]);
        assert_eq!((target(&groups, 0), target(&groups, 1)), (None, Some(snapshot("5:5:"))));
        assert!(!is_awaited(&groups, 0));
        groups[2].window = Some(window("9:9:", Walk::Unknown));
        assert_eq!(target(&groups, 0), Some(snapshot("9:9:")));
        groups[1].window = Some(window("5:5:", Walk::Few));
        assert!(is_awaited(&groups, 0) && !is_awaited(&groups, 1));
        // Arrived.
        groups[1].low = snapshot("5:5:");
        groups[1].window = None;
        merge(&mut groups);
        assert_eq!((groups.len(), groups[0].lanes.clone()), (2, vec![0, 2, 1]));
        without(&mut groups, &[2, 3]);
        assert_eq!((groups.len(), groups[0].epochs.clone()), (1, vec![0, 10]));
    }
}
