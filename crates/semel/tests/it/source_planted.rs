//! The laws of sources can fail: the queue in memory passes them all, and each planted bug is caught by the law that forbids
//! it.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::conformance::source::{Abilities, LAWS, Lease, Sent, SourceHarness, run};
use semel::source::memory::{MemoryQueue, MemorySource};
use semel::source::{Delivery, Receipt, Settle, Source, SourceError};
use uuid::Uuid;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    AcksAtReceive,
    AcksNothing,
    DropsAgain,
    ForgetsAgain,
    SettlesTheWholeBatch,
    SettlesUpToTheHighest,
    RefusesToHearItTwice,
    SettlesByTheMessage,
    Reverses,
    ReordersAfterAgain,
    KeepDoesNothing,
    LostSaysNothing,
    LostDecides,
    LeaveKeepsEverything,
    WaitsForEver,
    GivesMore,
    DescendingReceipts,
    ForgetsWhenLeft,
    LosesTheKey,
    LosesAHeader,
    TakesBytesForText,
    Truncates,
    AnotherPlaceEachTime,
    CountsFromOne,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::AcksAtReceive, "nothing_is_acknowledged_before_it_is_done"),
    (Bug::AcksNothing, "what_is_done_does_not_come_again"),
    (Bug::DropsAgain, "what_is_given_back_comes_again"),
    (Bug::ForgetsAgain, "what_is_given_back_comes_again"),
    (Bug::SettlesTheWholeBatch, "a_part_of_what_came_is_settled"),
    (Bug::SettlesUpToTheHighest, "messages_are_settled_in_any_order"),
    (Bug::RefusesToHearItTwice, "acked_again_is_acked_once"),
    (Bug::SettlesByTheMessage, "an_old_receipt_settles_nothing"),
    (Bug::Reverses, "order_is_kept_within_a_key"),
    (Bug::ReordersAfterAgain, "what_comes_again_comes_before_its_successors"),
    (Bug::KeepDoesNothing, "what_is_kept_stays"),
    (Bug::LostSaysNothing, "what_another_has_is_named_lost"),
    (Bug::LostDecides, "settling_what_was_lost_does_nothing"),
    (Bug::LeaveKeepsEverything, "who_leaves_gives_back_at_once"),
    (Bug::WaitsForEver, "nothing_arrives_within_the_wait"),
    (Bug::GivesMore, "no_more_comes_than_was_asked_for"),
    (Bug::DescendingReceipts, "receipts_ascend"),
    (Bug::ForgetsWhenLeft, "a_receive_that_is_left_loses_nothing"),
    (Bug::LosesTheKey, "what_travels_with_a_message"),
    (Bug::LosesAHeader, "what_travels_with_a_message"),
    (Bug::TakesBytesForText, "any_bytes_arrive_as_they_are"),
    (Bug::Truncates, "a_large_payload_arrives_whole"),
    (Bug::AnotherPlaceEachTime, "a_place_is_one_message_s"),
    (Bug::CountsFromOne, "deliveries_are_counted"),
];

const SHORT: Duration = Duration::from_secs(4);

#[derive(Default)]
struct World {
    queues: HashMap<String, MemoryQueue>,
    /// Places that a wrong source took for done.
    wrongly_done: HashSet<String>,
}

struct Memory {
    bug: Bug,
    world: Arc<Mutex<World>>,
}

impl Memory {
    fn with(bug: Bug) -> Self {
        Self { bug, world: Arc::default() }
    }

    fn of(&self, queue: &str) -> MemoryQueue {
        self.world.lock().unwrap().queues[queue].clone()
    }
}

impl SourceHarness for Memory {
    type Source = Planted;

    async fn queue(&self, lease: Lease) -> String {
        let name = Uuid::now_v7().to_string();
        let lease = if lease == Lease::Long { Duration::from_secs(600) } else { SHORT };
        self.world.lock().unwrap().queues.insert(name.clone(), MemoryQueue::with_lease(&name, lease));
        name
    }

    async fn publish(&self, queue: &str, messages: &[Sent]) {
        let queue = self.of(queue);
        for message in messages {
            let headers: Vec<_> =
                message.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            queue.push(message.key.as_deref(), &headers, message.payload.clone());
        }
    }

    async fn source(&self, queue: &str) -> Planted {
        let source = self.of(queue).source();
        Planted {
            bug: self.bug,
            source,
            world: Arc::clone(&self.world),
            given: Vec::new(),
            last: Vec::new(),
            settled: HashSet::new(),
            late: Vec::new(),
        }
    }

    async fn left(&self, queue: &str) -> Option<usize> {
        Some(self.of(queue).len())
    }

    fn abilities(&self) -> Abilities {
        Abilities { lease: Some(SHORT), ..Abilities::default() }
    }

    fn patience(&self) -> Duration {
        match self.bug {
            Bug::None => Duration::from_secs(30),
            _ => SHORT * 3,
        }
    }
}

/// The source in memory, and one thing that is wrong with it.
struct Planted {
    bug: Bug,
    source: MemorySource,
    world: Arc<Mutex<World>>,
    /// Every receipt, and the place it was for.
    given: Vec<(Receipt, String)>,
    last: Vec<Receipt>,
    settled: HashSet<Receipt>,
    late: Vec<Delivery>,
}

impl Planted {
    fn place(&self, receipt: Receipt) -> &str {
        let given = self.given.iter().find(|(given, _)| *given == receipt);
        given.map_or("", |(_, place)| place)
    }

    fn spoil(&self, delivery: &mut Delivery) {
        match self.bug {
            Bug::LosesTheKey => delivery.key = None,
            Bug::LosesAHeader => delivery.headers.truncate(2),
            Bug::TakesBytesForText => {
                delivery.payload = String::from_utf8_lossy(&delivery.payload).into_owned().into();
            }
            Bug::Truncates => delivery.payload.truncate(65_536),
            Bug::AnotherPlaceEachTime => delivery.place = Uuid::now_v7().to_string(),
            Bug::CountsFromOne => delivery.deliveries = Some(1),
            Bug::DescendingReceipts => delivery.receipt = turned(delivery.receipt),
            _ => {}
        }
    }

    /// What a wrong source says became of its messages.
    fn twist(&self, settled: &[(Receipt, Settle)]) -> Vec<(Receipt, Settle)> {
        let done =
            |receipts: Vec<Receipt>| receipts.into_iter().map(|receipt| (receipt, Settle::Ack)).collect();
        match self.bug {
            Bug::AcksNothing => {
                settled.iter().copied().filter(|(_, settle)| *settle != Settle::Ack).collect()
            }
            Bug::DropsAgain => settled.iter().map(|(receipt, _)| (*receipt, Settle::Ack)).collect(),
            Bug::ForgetsAgain => {
                settled.iter().copied().filter(|(_, settle)| *settle != Settle::Nack).collect()
            }
            Bug::SettlesTheWholeBatch => done(self.last.clone()),
            Bug::SettlesUpToTheHighest => {
                let highest = settled.iter().map(|(receipt, _)| *receipt).max();
                let all = self.given.iter().map(|(receipt, _)| *receipt);
                done(all.filter(|receipt| Some(*receipt) <= highest).collect())
            }
            Bug::SettlesByTheMessage => {
                let newest = |receipt: Receipt| {
                    let place = self.place(receipt);
                    self.given
                        .iter()
                        .rev()
                        .find(|(_, given)| given == place)
                        .map_or(receipt, |(newest, _)| *newest)
                };
                settled.iter().map(|(receipt, settle)| (newest(*receipt), *settle)).collect()
            }
            Bug::DescendingReceipts => {
                settled.iter().map(|(receipt, settle)| (turned(*receipt), *settle)).collect()
            }
            _ => settled.to_vec(),
        }
    }
}

fn turned(receipt: Receipt) -> Receipt {
    Receipt(u64::MAX - receipt.0)
}

impl Source for Planted {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let most = if self.bug == Bug::GivesMore { most + 1 } else { most };
        let wait = if self.bug == Bug::WaitsForEver { Duration::from_secs(86_400) } else { wait };
        let mut came = std::mem::take(&mut self.late);
        came.extend(self.source.receive(most - came.len(), wait).await?);
        if self.bug == Bug::ForgetsWhenLeft {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for delivery in &came {
            self.given.push((delivery.receipt, delivery.place.clone()));
        }
        self.last = came.iter().map(|delivery| delivery.receipt).collect();
        let done = |receipts: &[Delivery]| -> Vec<_> {
            receipts.iter().map(|delivery| (delivery.receipt, Settle::Ack)).collect()
        };
        match self.bug {
            Bug::AcksAtReceive => self.source.settle(&done(&came)).await?,
            Bug::Reverses => came.reverse(),
            Bug::ReordersAfterAgain => came.sort_by_key(|delivery| delivery.deliveries),
            Bug::LostDecides => {
                let wrongly = self.world.lock().unwrap().wrongly_done.clone();
                let (gone, rest): (Vec<_>, Vec<_>) =
                    came.into_iter().partition(|delivery| wrongly.contains(&delivery.place));
                self.source.settle(&done(&gone)).await?;
                came = rest;
            }
            _ => {}
        }
        came.iter_mut().for_each(|delivery| self.spoil(delivery));
        Ok(came)
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        for (receipt, settle) in settled {
            if !self.settled.insert(*receipt) && self.bug == Bug::RefusesToHearItTwice {
                return Err(SourceError::for_good("that was settled"));
            }
            if self.bug == Bug::LostDecides && *settle == Settle::Ack {
                let place = self.place(*receipt).to_owned();
                self.world.lock().unwrap().wrongly_done.insert(place);
            }
        }
        self.source.settle(&self.twist(settled)).await
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        match self.bug {
            Bug::KeepDoesNothing => Ok(()),
            _ => self.source.keep(held).await,
        }
    }

    fn renew_after(&self) -> Duration {
        self.source.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        match self.bug {
            Bug::LostSaysNothing => Vec::new(),
            _ => self.source.lost(),
        }
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        match self.bug {
            Bug::LeaveKeepsEverything => Ok(()),
            _ => self.source.leave().await,
        }
    }
}

fn holds(bug: Bug, law: &str) -> bool {
    let judged = || semel::conformance::block_on(run(law, &Memory::with(bug)));
    catch_unwind(AssertUnwindSafe(judged)).is_ok()
}

mod memory {
    semel::source_conformance!(Some(super::Memory::with(super::Bug::None)));
}

#[test]
fn every_planted_bug_is_caught() {
    // Side by side: most of them are waited for in vain.
    std::thread::scope(|scope| {
        let judged = CAUGHT_BY.iter().map(|(bug, law)| (bug, law, scope.spawn(|| holds(*bug, law))));
        for (bug, law, holds) in judged.collect::<Vec<_>>() {
            assert!(!holds.join().unwrap(), "{bug:?} was not caught by {law}");
        }
    });
}

#[test]
fn every_law_of_sources_catches_something() {
    let caught: HashSet<&str> = CAUGHT_BY.iter().map(|(_, law)| *law).collect();
    let never: Vec<_> = LAWS.iter().filter(|law| !caught.contains(*law)).collect();
    assert!(never.is_empty(), "{never:?} caught nothing");
}
