//! The order as a saga: create the order, reserve stock, charge the card, send the mail.

use std::net::SocketAddr;

use http::StatusCode;
use semel::Key;
use semel::outbox::Event;
use semel::saga::{At, LookedUp, Saga, SagaResult, StepError, StepResult, StepTx};

use super::http::{CallError, call};
use super::participant::Ask;
use crate::args::Bug;

/// Where the participants are.
pub(super) struct Shop {
    pub(super) stock: SocketAddr,
    pub(super) provider: SocketAddr,
    pub(super) mail: SocketAddr,
    pub(super) bug: Option<Bug>,
}

impl Shop {
    /// What the answer of a participant says about the step.
    async fn ask(&self, to: SocketAddr, path: &str, order: &str, key: &Key) -> StepResult<String> {
        let ask = Ask { order: order.to_owned(), key: key.as_str().to_owned() };
        let (status, body) = match call(to, path, &ask).await {
            Ok(answer) => answer,
            Err(error @ CallError::NotSent(_)) => return Err(StepError::not_applied(error)),
            Err(error @ CallError::Lost(_)) => return Err(StepError::unknown(error)),
        };
        match status {
            StatusCode::OK | StatusCode::CREATED => Ok(serde_json::from_slice(&body)?),
            StatusCode::CONFLICT | StatusCode::PAYMENT_REQUIRED => {
                Err(StepError::refused(String::from_utf8_lossy(&body)))
            }
            // A 5xx may come after the effect.
            status => Err(StepError::unknown(format!("it answered {status}"))),
        }
    }
}

/// With a timeout of its own: the longest one of all steps makes the workers' lease longer.
#[semel::step(atomic, timeout = "500ms", undo = cancel)]
async fn create(tx: &mut StepTx<'_>, _: At<'_, Shop>, order: &String) -> StepResult<i64> {
    let db = tx.sqlite().ok_or_else(|| StepError::refused("the journal is not in SQLite"))?;
    db.execute("INSERT INTO orders (name, cancelled) VALUES (?1, 0)", [order])?;
    Ok(db.last_insert_rowid())
}

async fn cancel(tx: &mut StepTx<'_>, _: At<'_, Shop>, _: &str, id: i64) -> StepResult<()> {
    let db = tx.sqlite().ok_or_else(|| StepError::refused("the journal is not in SQLite"))?;
    db.execute("UPDATE orders SET cancelled = 1 WHERE id = ?1", [id])?;
    Ok(())
}

#[semel::step(keyed, safe_for = "24h", timeout = "250ms", settle = "1s", undo = release)]
async fn reserve(at: At<'_, Shop>, order: &String) -> StepResult<String> {
    at.app.ask(at.app.stock, "/hold", order, at.key()).await
}

/// With the key of the reservation: if that did not arrive yet, it does nothing any more.
async fn release(at: At<'_, Shop>, order: &str, _: Option<String>) -> StepResult<()> {
    if at.app.bug == Some(Bug::Lost) {
        return Ok(());
    }
    at.app.ask(at.app.stock, "/release", order, at.forward_key()).await.map(drop)
}

#[semel::step(opaque, lookup = find_charge, timeout = "250ms", settle = "2s")]
async fn charge(at: At<'_, Shop>, order: &String) -> StepResult<String> {
    at.app.ask(at.app.provider, "/charge", order, at.key()).await
}

async fn find_charge(at: At<'_, Shop>, order: &str) -> LookedUp<String> {
    if at.app.bug == Some(Bug::Blind) {
        return LookedUp::NotApplied;
    }
    let ask = Ask { order: order.to_owned(), key: at.key().as_str().to_owned() };
    match call(at.app.provider, "/find", &ask).await {
        Ok((StatusCode::OK, body)) => {
            serde_json::from_slice(&body).map_or(LookedUp::Unknown, LookedUp::Applied)
        }
        Ok((StatusCode::NOT_FOUND, _)) => LookedUp::NotApplied,
        _ => LookedUp::Unknown,
    }
}

/// Planted: says that the provider honours keys, and it does not.
#[semel::step(keyed, timeout = "250ms")]
async fn charge_again(at: At<'_, Shop>, order: &String) -> StepResult<String> {
    at.app.ask(at.app.provider, "/charge", order, at.key()).await
}

#[semel::step(keyed, timeout = "250ms")]
async fn notify(at: At<'_, Shop>, order: &String) -> StepResult<String> {
    at.app.ask(at.app.mail, "/notify", order, at.key()).await
}

#[semel::saga]
pub(super) async fn checkout(s: Saga<Shop>, name: String) -> SagaResult<String> {
    s.run(create, name.clone()).await?;
    s.run(reserve, name.clone()).await?;
    let (charged, s) = match s.app().bug {
        Some(Bug::Twice) => s.pivot(charge_again, name.clone()).await?,
        _ => s.pivot(charge, name.clone()).await?,
    };
    if let Ok(event) = Event::new("orders", "order.paid", name.clone()) {
        s.publish(event);
    }
    s.run(notify, name).await;
    Ok(charged)
}
