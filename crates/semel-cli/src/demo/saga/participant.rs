//! The participants of an order, each a process with a ledger of its own: stock, payment provider, mail.
//!
//! They lose answers before and after the effect, answer 5xx, are slow, and refuse some orders, all by the seed. Stock
//! and mail honour keys. The provider does not: who asks it twice pays twice. It only says which charge has a key.
//!
//! | request | participant | effect |
//! |---|---|---|
//! | `/hold` | stock | reserves, once for each key; 409 if it is out of stock |
//! | `/release` | stock | releases what a key reserved; where that is nothing, the key reserves nothing later |
//! | `/charge` | provider | charges; 402 if the card is declined |
//! | `/find` | provider | nothing: the charge with a key, 404 if there is none, 503 if that is not known now |
//! | `/notify` | mail | sends a mail, once for each key |
//! | `/calm`, `/quiet` | all | for the demo: no more faults; whether nothing is under way |

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::http::Answered;
use super::plan::{OrderNo, Refusal};
use crate::demo::faults::{Ending, Fault, lookup_is_broken};
use crate::demo::ledger::Ledger;

/// Most keys it keeps.
const KEYS_MAX: usize = 1_000_000;

/// What a participant is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) order: String,
    /// The key of the call; of a release, the key that the reservation had.
    pub(super) key: String,
}

/// What happened at a participant: one line of its ledger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) what: What,
    pub(super) order: String,
    pub(super) key: String,
    /// Its own id for it.
    pub(super) id: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    Held,
    Released,
    Charged,
    Notified,
}

/// What a key stands for.
enum Known {
    Done(String),
    Released,
}

#[derive(Default)]
struct Books {
    calls: HashMap<String, u32>,
    in_flight: HashMap<String, u32>,
    by_key: HashMap<String, Known>,
    given: u64,
    calm: bool,
}

struct Inner {
    ledger: Ledger<Line>,
    seed: u64,
    books: Mutex<Books>,
}

/// One participant. Cheap to clone.
#[derive(Clone)]
pub(super) struct Participant(Arc<Inner>);

/// What is done about a request.
enum Decision {
    Answer(StatusCode, serde_json::Value),
    /// First this is written into the ledger.
    Effect(Line),
}

impl Participant {
    pub(super) fn open(ledger: &Path, seed: u64) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner { ledger: Ledger::open(ledger)?, seed, books: Mutex::default() })))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn answer(self, path: String, ask: Ask) -> Answered {
        match path.as_str() {
            "/calm" => {
                self.books().calm = true;
                return Ok((StatusCode::OK, json!({})));
            }
            "/quiet" => {
                let quiet = self.books().in_flight.is_empty();
                return Ok((StatusCode::OK, json!({ "quiet": quiet })));
            }
            "/find" => return Ok(self.find(&ask)),
            _ => {}
        }
        let Some(fault) = self.begin(&path, &ask) else {
            return Ok((StatusCode::INSUFFICIENT_STORAGE, json!({ "error": "the books are full" })));
        };
        let answered = self.carry_out(&path, &ask, fault).await;
        self.ended(&ask.key);
        tokio::time::sleep(fault.after).await;
        match fault.ending {
            Ending::Answered => answered,
            Ending::FailsBefore | Ending::FailsAfter => {
                Ok((StatusCode::INTERNAL_SERVER_ERROR, json!({ "error": "something went wrong" })))
            }
            Ending::AnswerLost => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Counts the call, and says how it goes wrong: by the order and by how often it was asked for.
    fn begin(&self, path: &str, ask: &Ask) -> Option<Fault> {
        let mut books = self.books();
        if books.calls.len().max(books.by_key.len()) >= KEYS_MAX {
            return None;
        }
        let name = format!("{path}/{}", ask.order);
        let call = books.calls.entry(name.clone()).or_default();
        *call = call.saturating_add(1);
        let call = *call;
        *books.in_flight.entry(ask.key.clone()).or_default() += 1;
        Some(if books.calm { Fault::NONE } else { Fault::of(self.0.seed, &name, call) })
    }

    async fn carry_out(&self, path: &str, ask: &Ask, fault: Fault) -> Answered {
        tokio::time::sleep(fault.before).await;
        if fault.ending == Ending::FailsBefore {
            return Ok((StatusCode::INTERNAL_SERVER_ERROR, json!({})));
        }
        let decision = self.books().decide(path, ask, self.0.seed);
        match decision {
            Decision::Answer(status, body) => Ok((status, body)),
            Decision::Effect(line) => {
                self.0.ledger.append(line.clone()).await?;
                Ok((StatusCode::CREATED, json!(line.id)))
            }
        }
    }

    fn ended(&self, key: &str) {
        let mut books = self.books();
        if let Some(n) = books.in_flight.get_mut(key) {
            *n -= 1;
            if *n == 0 {
                books.in_flight.remove(key);
            }
        }
    }

    /// A charge under way is neither found nor absent, and of some orders nothing is ever found out.
    fn find(&self, ask: &Ask) -> (StatusCode, serde_json::Value) {
        let books = self.books();
        let broken = !books.calm && lookup_is_broken(self.0.seed, &ask.order);
        if broken || books.in_flight.contains_key(&ask.key) {
            return (StatusCode::SERVICE_UNAVAILABLE, json!({ "error": "this is not known now" }));
        }
        match books.by_key.get(&ask.key) {
            Some(Known::Done(id)) => (StatusCode::OK, json!(id)),
            Some(Known::Released) | None => (StatusCode::NOT_FOUND, json!({ "error": "no such charge" })),
        }
    }
}

impl Books {
    fn decide(&mut self, path: &str, ask: &Ask, seed: u64) -> Decision {
        let refuse = |status, why: &str| Decision::Answer(status, json!({ "error": why }));
        let Ok(order) = ask.order.parse::<OrderNo>() else {
            return refuse(StatusCode::BAD_REQUEST, "no such order");
        };
        let refusal = order.refusal(seed);
        match (path, self.by_key.get(&ask.key)) {
            ("/hold", _) if refusal == Some(Refusal::OutOfStock) => {
                refuse(StatusCode::CONFLICT, "out of stock")
            }
            ("/charge", _) if refusal == Some(Refusal::Declined) => {
                refuse(StatusCode::PAYMENT_REQUIRED, "the card was declined")
            }
            ("/hold" | "/notify", Some(Known::Done(id))) => Decision::Answer(StatusCode::OK, json!(id)),
            ("/hold", Some(Known::Released)) => refuse(StatusCode::CONFLICT, "it was released before"),
            ("/release", Some(Known::Released)) => Decision::Answer(StatusCode::OK, json!("released")),
            // What comes later under this key reserves nothing.
            ("/release", None) => {
                self.by_key.insert(ask.key.clone(), Known::Released);
                Decision::Answer(StatusCode::OK, json!("nothing to release"))
            }
            ("/hold", None) => self.effect(What::Held, ask),
            ("/release", Some(Known::Done(_))) => self.effect(What::Released, ask),
            ("/charge", _) => self.effect(What::Charged, ask),
            ("/notify", _) => self.effect(What::Notified, ask),
            _ => refuse(StatusCode::NOT_FOUND, "there is no such path"),
        }
    }

    fn effect(&mut self, what: What, ask: &Ask) -> Decision {
        self.given += 1;
        let id = format!("{what:?}-{}", self.given).to_lowercase();
        let known = if what == What::Released { Known::Released } else { Known::Done(id.clone()) };
        self.by_key.insert(ask.key.clone(), known);
        Decision::Effect(Line { what, order: ask.order.clone(), key: ask.key.clone(), id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn order(refusal: Option<Refusal>) -> String {
        (0..).map(OrderNo).find(|order| order.refusal(SEED) == refusal).unwrap().to_string()
    }

    fn ask(books: &mut Books, path: &str, order: &str, key: &str) -> u16 {
        let ask = Ask { order: order.to_owned(), key: key.to_owned() };
        match books.decide(path, &ask, SEED) {
            Decision::Answer(status, _) => status.as_u16(),
            Decision::Effect(_) => 201,
        }
    }

    #[test]
    fn stock_honours_keys_and_a_released_key_holds_nothing_any_more() {
        let (mut books, order) = (Books::default(), order(None));
        let statuses =
            [("/hold", "a", 201), ("/hold", "a", 200), ("/release", "a", 201), ("/release", "a", 200)];
        for (path, key, status) in statuses.into_iter().chain([("/release", "b", 200), ("/hold", "b", 409)]) {
            assert_eq!(ask(&mut books, path, &order, key), status, "{path} {key}");
        }
    }

    #[test]
    fn the_provider_charges_as_often_as_it_is_asked() {
        let (mut books, order) = (Books::default(), order(None));
        assert_eq!([0; 2].map(|_| ask(&mut books, "/charge", &order, "a")), [201, 201]);
        assert_eq!([0; 2].map(|_| ask(&mut books, "/notify", &order, "m")), [201, 200]);
    }

    #[test]
    fn what_is_refused_is_refused_each_time() {
        let mut books = Books::default();
        for (path, refusal, status) in
            [("/hold", Refusal::OutOfStock, 409), ("/charge", Refusal::Declined, 402)]
        {
            let order = order(Some(refusal));
            assert_eq!([0; 2].map(|_| ask(&mut books, path, &order, "a")), [status; 2]);
        }
        assert_eq!(ask(&mut books, "/hold", "order-1", "a"), 400);
        assert!(books.by_key.is_empty());
    }
}
