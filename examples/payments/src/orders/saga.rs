//! The saga. Read it from the end: the function at the bottom is the order; above it are its steps.

use semel::outbox::Event;
use semel::saga::{At, LookedUp, Refused, Saga, SagaResult, StepError, StepResult, StepTx};
use serde::{Deserialize, Serialize};

use super::participants::{Bank, Stock};
use super::tables;
use super::{Purchase, Receipt};

/// The topic of orders.
pub const ORDERS: &str = "orders";

/// What the steps work with.
#[derive(Clone, Debug)]
pub struct Shop {
    /// The stock service.
    pub stock: Stock,
    /// The bank.
    pub bank: Bank,
}

/// What is charged for which order.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Charge {
    order: i64,
    cents: i64,
}

/// The order's row, in the commit that also records that the step is done.
#[semel::step(atomic, undo = cancel)]
async fn create(tx: &mut StepTx<'_>, at: At<'_, Shop>, purchase: &Purchase) -> StepResult<i64> {
    if purchase.cents <= 0 {
        return Err(StepError::refused("an order costs at least one cent"));
    }
    tables::create(tx, at.intent(), purchase).await
}

async fn cancel(tx: &mut StepTx<'_>, _: At<'_, Shop>, _: &Purchase, order: i64) -> StepResult<()> {
    tables::cancel(tx, order).await
}

/// The stock service honours keys for a day. While it does, the step is called again until its result is known.
#[semel::step(keyed, safe_for = "24h", timeout = "1s", settle = "1s", undo = release)]
async fn reserve(at: At<'_, Shop>, sku: &String) -> StepResult<String> {
    at.app.stock.hold(sku, at.key()).await
}

/// Also where it is not known whether the stock was reserved. After it, the key of the reservation does nothing any more.
async fn release(at: At<'_, Shop>, _: &str, _hold: Option<String>) -> StepResult<()> {
    at.app.stock.release(at.forward_key()).await
}

/// The bank charges as often as it is asked. So it is asked once; if the answer is lost, the bank's list of charges says
/// what happened.
#[semel::step(opaque, lookup = find_charge, timeout = "1s", settle = "1s")]
async fn charge(at: At<'_, Shop>, charge: &Charge) -> StepResult<String> {
    at.app.bank.charge(charge.cents, at.key()).await
}

async fn find_charge(at: At<'_, Shop>, _: &Charge) -> LookedUp<String> {
    at.app.bank.find(at.key()).await
}

/// After the pivot: it is tried until it happens.
#[semel::step(atomic)]
async fn notify(tx: &mut StepTx<'_>, _: At<'_, Shop>, receipt: &Receipt) -> StepResult<()> {
    tables::notify(tx, receipt).await
}

/// The order.
#[semel::saga(deadline = "15m")]
pub async fn place_order(s: Saga<Shop>, purchase: Purchase) -> SagaResult<Receipt> {
    let (sku, cents) = (purchase.sku.clone(), purchase.cents);
    let order = s.run(create, purchase).await?;
    s.run(reserve, sku).await?;
    let (charged, s) = s.pivot(charge, Charge { order, cents }).await?;
    let receipt = Receipt { order, charge: charged };
    if let Ok(paid) = paid(&receipt) {
        s.publish(paid);
    }
    s.run(notify, receipt.clone()).await;
    Ok(receipt)
}

/// Published in the commit that ends the saga.
fn paid(receipt: &Receipt) -> Result<Event, Refused> {
    let body = serde_json::to_vec(receipt).map_err(Refused::new)?;
    let key = receipt.order.to_string();
    let event = Event::new(ORDERS, "order.paid", body).and_then(|event| event.key(&key));
    event.map_err(Refused::new)
}
