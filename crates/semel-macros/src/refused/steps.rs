//! Steps that declare too little, too much, or what does not go together.

use semel::saga::{At, StepResult, StepTx};
use semel::step;

#[step]
async fn no_effect(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, opaque)]
async fn two_effects(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(atomic, safe_for = "24h")]
async fn atomic_safe_for(tx: &mut StepTx<'_>, at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(atomic, lookup = find)]
async fn atomic_lookup(tx: &mut StepTx<'_>, at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(atomic, settle = "1s")]
async fn atomic_settle(tx: &mut StepTx<'_>, at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(atomic, undo = cancel, undo_effect = keyed)]
async fn atomic_undo_effect(tx: &mut StepTx<'_>, at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, undo = release, leaves_nothing)]
async fn undo_of_nothing(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, undo_effect = opaque)]
async fn no_undo(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, undo = release, undo_effect = atomic)]
async fn wrong_undo_effect(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, undo)]
async fn undo_without_value(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, undo = "release")]
async fn undo_in_quotes(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, name = "reserve#1")]
async fn wrong_name(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn réserver(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, attempts = 0)]
async fn no_attempt(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, timeout = "0s")]
async fn no_time(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, safe_for = "0s")]
async fn safe_for_nothing(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, safe_for = "1 day")]
async fn no_duration(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, retention = "1d")]
async fn unknown(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed, keyed)]
async fn twice(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
fn not_async(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn no_at(sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn no_parameters() -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn no_application(at: Alias<'_>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn no_input(at: At<'_, Shop>) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn input_by_value(at: At<'_, Shop>, sku: String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn borrowed_input(at: At<'_, Shop>, sku: &str) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn two_inputs(at: At<'_, Shop>, sku: &String, count: &u32) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn not_atomic(tx: &mut StepTx<'_>, at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(atomic)]
async fn no_transaction(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(atomic)]
async fn transaction_without_at(tx: &mut StepTx<'_>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn generic<T>(at: At<'_, Shop>, sku: &T) -> StepResult<u32> {
    Ok(1)
}

#[step(keyed)]
async fn no_result(at: At<'_, Shop>, sku: &String) {}

#[step(keyed)]
async fn another_result(at: At<'_, Shop>, sku: &String) -> Option<u32> {
    None
}

impl Shop {
    #[step(keyed)]
    async fn method(&self, at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
        Ok(1)
    }
}

#[step(keyed)]
struct NoFunction;

#[step(opaque, safe_for = "24h")]
async fn opaque_safe_for(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}

fn main() {}

#[step(keyed, concurrent = 0)]
async fn none_at_once(at: At<'_, Shop>, sku: &String) -> StepResult<u32> {
    Ok(1)
}
