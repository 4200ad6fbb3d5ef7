//! The judge. Pure: it is given what the table has, what the writers know of their commits, and what a stranger read.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// An event as it was appended, and as it was read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Counted {
    pub id: String,
    pub key: String,
    /// Its place in its key: writers count under a lock, so this is the order that has to be kept.
    pub n: u64,
}

/// What the writers know of their transactions' events.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    pub committed: Vec<Counted>,
    pub rolled_back: Vec<Counted>,
    /// The answer to the commit never came.
    pub in_doubt: Vec<Counted>,
}

/// What was found to be wrong, and what is merely worth knowing.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Committed and never read.
    pub lost: Vec<Counted>,
    /// Read for the first time after a later event of its key.
    pub overtaken: Vec<Counted>,
    /// Read again with the same id and another content.
    pub changed: Vec<Counted>,
    /// Read although it is in no table: rolled back, or never written.
    pub foreign: Vec<Counted>,
    /// A writer's commit of it was confirmed, and the table does not have it.
    pub forgotten: Vec<Counted>,
    /// Read more than once, unchanged. Allowed unless exactly once was promised.
    pub repeats: usize,
    pub events: usize,
}

impl Verdict {
    /// Whether nothing is wrong at least once.
    pub fn holds(&self) -> bool {
        let wrong = [&self.lost, &self.overtaken, &self.changed, &self.foreign, &self.forgotten];
        wrong.iter().all(|list| list.is_empty())
    }

    /// Whether nothing is wrong and nothing came twice.
    pub fn holds_exactly_once(&self) -> bool {
        self.holds() && self.repeats == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, {} repeats", self.events, self.repeats)?;
        for (what, list) in [
            ("lost", &self.lost),
            ("overtaken", &self.overtaken),
            ("changed", &self.changed),
            ("foreign", &self.foreign),
            ("forgotten by the database", &self.forgotten),
        ] {
            if !list.is_empty() {
                write!(f, "; {} {what}, such as {:?}", list.len(), list.iter().take(3).collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }
}

/// `read` is in the order of each partition; a key is in one partition.
pub fn judge(table: &[Counted], ledger: &Ledger, read: &[Counted]) -> Verdict {
    let known: HashMap<&str, &Counted> = table.iter().map(|counted| (counted.id.as_str(), counted)).collect();
    let mut verdict = Verdict { events: table.len(), ..Verdict::default() };
    let mut seen = HashSet::new();
    let mut highest: HashMap<&str, u64> = HashMap::new();
    for counted in read {
        match known.get(counted.id.as_str()) {
            None => verdict.foreign.push(counted.clone()),
            Some(known) if *known != counted => verdict.changed.push(counted.clone()),
            Some(_) if !seen.insert(counted.id.as_str()) => verdict.repeats += 1,
            Some(_) => {
                let highest = highest.entry(&counted.key).or_default();
                if counted.n <= *highest {
                    verdict.overtaken.push(counted.clone());
                }
                *highest = counted.n.max(*highest);
            }
        }
    }
    verdict.lost = table.iter().filter(|counted| !seen.contains(counted.id.as_str())).cloned().collect();
    verdict.forgotten =
        ledger.committed.iter().filter(|counted| !known.contains_key(counted.id.as_str())).cloned().collect();
    // One that was rolled back and is in the table all the same would be published with good reason: not for the relay
    // to answer for, but this must not pass for a run in which all is well.
    let back = ledger.rolled_back.iter().filter(|counted| known.contains_key(counted.id.as_str()));
    verdict.foreign.extend(back.cloned());
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(id: &str, key: &str, n: u64) -> Counted {
        Counted { id: id.into(), key: key.into(), n }
    }

    /// Two keys, each with three events; what is read begins as it should be.
    fn world() -> (Vec<Counted>, Ledger, Vec<Counted>) {
        let table = vec![
            counted("a1", "a", 1),
            counted("b1", "b", 1),
            counted("a2", "a", 2),
            counted("b2", "b", 2),
            counted("a3", "a", 3),
            counted("b3", "b", 3),
        ];
        let ledger = Ledger {
            committed: table[..5].to_vec(),
            rolled_back: vec![counted("x", "a", 3)],
            in_doubt: vec![table[5].clone(), counted("y", "b", 3)],
        };
        let read = table.clone();
        (table, ledger, read)
    }

    #[test]
    fn what_is_right_holds_and_a_repeat_counts() {
        let (table, ledger, mut read) = world();
        let verdict = judge(&table, &ledger, &read);
        assert!(verdict.holds_exactly_once(), "{verdict}");
        // The keys' order among each other is not promised, and a repeat may stand behind later ones.
        read.swap(0, 1);
        read.push(read[0].clone());
        let verdict = judge(&table, &ledger, &read);
        assert!(verdict.holds() && !verdict.holds_exactly_once(), "{verdict}");
        assert_eq!(verdict.repeats, 1);
    }

    #[test]
    fn a_loss_is_seen() {
        let (table, ledger, mut read) = world();
        let lost = read.remove(2);
        let verdict = judge(&table, &ledger, &read);
        assert_eq!(verdict.lost, [lost]);
        assert!(!verdict.holds());
        // Also one whose writer got no answer: the table has it.
        let (_, _, read) = world();
        assert_eq!(judge(&table, &ledger, &read[..5]).lost, [counted("b3", "b", 3)]);
    }

    #[test]
    fn an_inversion_is_seen() {
        let (table, ledger, mut read) = world();
        read.swap(0, 2);
        let verdict = judge(&table, &ledger, &read);
        assert_eq!(verdict.overtaken, [counted("a1", "a", 1)]);
        assert!(verdict.lost.is_empty() && !verdict.holds());
        // That it comes again in its place does not mend it.
        let (_, _, mut read) = world();
        read.insert(0, counted("a2", "a", 2));
        assert_eq!(judge(&table, &ledger, &read).overtaken, [counted("a1", "a", 1)]);
    }

    #[test]
    fn a_changed_repeat_is_seen() {
        let (table, ledger, mut read) = world();
        read.push(counted("a1", "a", 7));
        read.push(counted("a1", "b", 1));
        let verdict = judge(&table, &ledger, &read);
        assert_eq!(verdict.changed, [counted("a1", "a", 7), counted("a1", "b", 1)]);
        assert!(!verdict.holds());
    }

    #[test]
    fn a_foreign_event_is_seen() {
        let (table, ledger, read) = world();
        for stranger in ["x", "y", "z"] {
            let mut read = read.clone();
            read.push(counted(stranger, "a", 3));
            let verdict = judge(&table, &ledger, &read);
            assert_eq!(verdict.foreign, [counted(stranger, "a", 3)]);
            assert!(!verdict.holds());
        }
        let (mut table, ledger, mut read) = world();
        table.push(counted("x", "a", 3));
        read.push(counted("x", "a", 4));
        assert!(!judge(&table, &ledger, &read).holds());
    }

    #[test]
    fn a_database_that_forgets_what_it_confirmed_is_seen() {
        let (mut table, ledger, mut read) = world();
        let gone = table.remove(0);
        read.remove(0);
        let verdict = judge(&table, &ledger, &read);
        assert_eq!(verdict.forgotten, [gone]);
        assert!(!verdict.holds());
    }
}
