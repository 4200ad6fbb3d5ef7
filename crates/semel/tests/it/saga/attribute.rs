//! Sagas written with `#[semel::step]` and `#[semel::saga]`.

use std::time::Duration;

use semel::saga::{
    At, Definition, HasUndo, LookedUp, NAME_BYTES_MAX, NoUndo, NothingToUndo, Refused, Saga, SagaEnd,
    SagaResult, SagaStep, SagasBuilder, StepResult, StepSpec, StepTx, StepType,
};
use semel::{Effect, Key, Scope};

use super::shop::{Does, Open, Shop, journal, options};

/// Holds stock.
#[semel::step(
    keyed, safe_for = "24h", timeout = "5s", settle = "1m", attempts = 3, undo = release, undo_effect = opaque
)]
async fn hold(at: At<'_, Shop>, hold: &String) -> StepResult<String> {
    assert!(!hold.is_empty(), "a parameter may have the step's name");
    at.app.call("hold", at.key(), true).await
}

async fn release(at: At<'_, Shop>, _sku: &str, result: Option<String>) -> StepResult<()> {
    let name = if result.is_some() { "release" } else { "release perhaps" };
    at.app.call(name, at.key(), true).await.map(drop)
}

mod trucks {
    use super::*;

    /// Its functions are elsewhere, and its name is its own.
    #[semel::step(keyed, undo = self::cancel, name = "truck.reserve")]
    pub(super) async fn reserve(at @ At { app, .. }: At<'_, Shop>, _: &u32) -> StepResult<String> {
        app.call("truck", at.key(), true).await
    }

    async fn cancel(at: At<'_, Shop>, _day: &u32, _result: Option<String>) -> StepResult<()> {
        at.app.call("no truck", at.key(), true).await.map(drop)
    }
}

#[semel::step(keyed, leaves_nothing)]
async fn price(at: At<'_, Shop>, _sku: &String) -> StepResult<u64> {
    at.app.call("price", at.key(), true).await.map(|_| 42)
}

#[semel::step(opaque, lookup = find_charge, timeout = "5s", settle = "5s")]
async fn charge(at: At<'_, Shop>, _cents: &u64) -> StepResult<String> {
    at.app.call("charge", at.key(), false).await
}

async fn find_charge(at: At<'_, Shop>, _cents: &u64) -> LookedUp<String> {
    let mut ledger = at.app.ledger();
    ledger.calls.push("look up".to_owned());
    let charged = ledger.effects.iter().any(|(name, key)| name == "charge" && key == at.key());
    if charged { LookedUp::Applied("found".to_owned()) } else { LookedUp::NotApplied }
}

#[semel::step(keyed)]
async fn mail(at: At<'_, Shop>, _text: &String) -> StepResult<String> {
    at.app.call("mail", at.key(), true).await
}

/// The attribute takes the longest name that a journal takes.
#[semel::step(keyed, name = "a.name.as.long.as.a.name.can.be.in.a.journal.0123456789.01234567")]
async fn long_name(_: At<'_, Shop>, _: &()) -> StepResult<()> {
    Ok(())
}

#[semel::saga]
async fn longest(s: Saga<Shop>, _: ()) -> SagaResult<()> {
    let (done, _) = s.pivot(long_name, ()).await?;
    Ok(done)
}

/// The order saga.
#[semel::saga(name = "order", version = 3, deadline = "15m", retention = "7d", steps(mail))]
async fn order(s: Saga<Shop>, sku: String) -> SagaResult<String> {
    let (held, truck) = tokio::join!(s.run(hold, sku.clone()), s.run(trucks::reserve, 7));
    held?;
    truck?;
    let cents = s.run(price, sku).await?;
    let (paid, s) = s.pivot(charge, cents).await?;
    confirm(&s, paid.clone()).await;
    Ok(paid)
}

/// Not seen by the attribute, hence `steps(mail)`.
async fn confirm(s: &Saga<Shop, semel::saga::AfterPivot>, paid: String) {
    s.run(mail, paid).await;
}

fn completed(result: &str) -> SagaEnd<String> {
    SagaEnd::Completed(result.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_saga_completes_and_the_same_key_is_the_same_saga() {
    let open = Open::new(order.into());
    for _ in 0..2 {
        assert_eq!(open.once("a").await.unwrap(), completed("charge done"));
    }
    let mut effects = open.shop.effects();
    effects[..2].sort();
    assert_eq!(effects, ["hold", "truck", "price", "charge", "mail"]);
    assert_eq!(open.only().await.name, "order");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_undoes_what_has_an_undo() {
    let open = Open::new(order.into());
    open.shop.script("charge", [Does::Refuses]);
    assert!(matches!(open.once("a").await.unwrap(), SagaEnd::Undone { why, .. } if why == "no"));
    let mut undone = open.shop.effects().split_off(3);
    undone.sort();
    assert_eq!(undone, ["no truck", "release"]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_result_is_looked_up() {
    let open = Open::new(order.into());
    open.shop.script("charge", [Does::TakesAndLosesTheAnswer]);
    assert_eq!(open.once("a").await.unwrap(), completed("found"));
    assert_eq!((open.shop.calls("charge"), open.shop.calls("look up")), (1, 1));
}

#[tokio::test]
async fn options_are_in_the_spec() {
    fn kinds<S: StepType<Undo = U>, U>(step: S) -> StepSpec {
        step.spec()
    }
    let seconds = Duration::from_secs;
    let expected = StepSpec::keyed("hold").safe_for(seconds(86_400)).timeout(seconds(5)).settle(seconds(60));
    assert_eq!(kinds::<_, HasUndo>(hold), expected.attempts_max(3).undo_effect(Effect::Opaque));
    assert_eq!(kinds::<_, HasUndo>(trucks::reserve), StepSpec::keyed("truck.reserve"));
    assert_eq!(kinds::<_, NothingToUndo>(price), StepSpec::keyed("price"));
    assert_eq!(kinds::<_, NoUndo>(mail), StepSpec::keyed("mail"));
    let expected = StepSpec::opaque("charge").timeout(seconds(5)).settle(seconds(5)).with_lookup();
    assert_eq!(kinds::<_, NoUndo>(charge), expected);
    assert_eq!(long_name.spec().name.len(), NAME_BYTES_MAX);
    SagasBuilder::new(journal(), Shop::default()).register(longest).unwrap();

    let definition: Definition<Shop, String, String> = order.into();
    let shown = format!("{definition:?}");
    let steps = r#"["charge", "hold", "mail", "price", "truck.reserve"]"#;
    assert_eq!(shown, format!("Definition {{ name: \"order\", version: 3, steps: {steps}, .. }}"));
}

#[semel::step(atomic, undo = cancel_order, attempts = 2)]
async fn create_order(tx: &mut StepTx<'_>, at: At<'_, Shop>, sku: &String) -> StepResult<i64> {
    at.app.call("create", at.key(), true).await?;
    write(tx, format!("created {sku}"));
    Ok(7)
}

async fn cancel_order(tx: &mut StepTx<'_>, _: At<'_, Shop>, sku: &str, id: i64) -> StepResult<()> {
    write(tx, format!("cancelled {sku} {id}"));
    Ok(())
}

fn write(tx: &mut StepTx<'_>, row: String) {
    tx.memory().expect("a journal in memory").write(row);
}

/// A step without the attribute, beside others.
struct ByHand;

impl StepType for ByHand {
    type Input = i64;
    type Output = i64;
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("by_hand")
    }
}

impl SagaStep<Shop> for ByHand {
    async fn run(&self, _: At<'_, Shop>, id: &i64) -> StepResult<i64> {
        Ok(*id)
    }
}

#[semel::saga]
async fn place(s: Saga<Shop>, sku: String) -> SagaResult<i64> {
    let id = s.run(create_order, sku.clone()).await?;
    let id = s.run(ByHand, id).await?;
    if sku == "nothing" {
        return Err(Refused::new("no such thing"));
    }
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn an_atomic_step_writes_in_the_commit_of_the_journal() {
    let (journal, shop) = (journal(), Shop::default());
    let mut sagas = SagasBuilder::new(journal.clone(), shop.clone()).options(options());
    let placed = sagas.register(place).unwrap();
    let sagas = sagas.start();
    let acme = Scope::tenant("acme").unwrap();
    let once =
        async |sku: &str| sagas.once(&placed, &acme, &Key::new(sku).unwrap(), &sku.to_owned()).await.unwrap();
    shop.script("create", [Does::Fails]);
    assert_eq!(once("book").await, SagaEnd::Completed(7));
    assert_eq!(journal.rows(), ["created book"]);
    assert!(matches!(once("nothing").await, SagaEnd::Undone { why, .. } if why == "no such thing"));
    assert_eq!(journal.rows(), ["created book", "created nothing", "cancelled nothing 7"]);
    let spec = create_order.spec();
    assert_eq!(spec, StepSpec::atomic("create_order").attempts_max(2));
}
