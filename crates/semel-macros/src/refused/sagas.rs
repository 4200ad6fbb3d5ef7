//! Sagas whose function, options or steps are not what a definition needs.

use semel::saga;
use semel::saga::{Saga, SagaResult};

#[saga]
fn not_async(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn no_saga(o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn no_parameters() -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn no_input(s: Saga<Shop>) -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn borrowed_input(s: Saga<Shop>, o: &Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn two_inputs(s: Saga<Shop>, o: Order, count: u32) -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn no_result(s: Saga<Shop>, o: Order) {}

#[saga(name = "check#out")]
async fn wrong_name(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga(version = 0)]
async fn no_version(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga(deadline = "0s")]
async fn no_time(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga(retention = "7 days")]
async fn no_retention(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga(steps = reserve)]
async fn no_list(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga(lease = "1s")]
async fn unknown(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    Ok(String::new())
}

#[saga]
async fn unnamed_step(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    s.run(step_of(&o), o).await
}

#[saga]
async fn step_in_a_variable(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    let step = reserve;
    s.run(step, o).await
}

#[saga]
async fn unnamed_in_a_macro(s: Saga<Shop>, o: Order) -> SagaResult<String> {
    let (a, b) = tokio::join!(s.run(reserve, o.clone()), s.run(Charge { cents: 1 }, o));
    b
}

fn main() {}
