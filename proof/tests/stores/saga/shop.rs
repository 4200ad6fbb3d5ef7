//! Sagas of this process on a real database: an atomic step with a row, and a keyed one whose participant keeps a ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::saga::sql::SqlJournal;
use semel::saga::{
    At, AtomicStep, Definition, HasUndo, Journal, Registered, Saga, SagaResult, SagaStep, Sagas,
    SagasBuilder, StepError, StepResult, StepSpec, StepTx, StepType,
};
use tokio::sync::watch;

/// What the step on the database does besides its row, the nth time it runs.
pub type Beside = fn(usize) -> Option<&'static str>;

#[derive(Clone)]
pub struct Shop {
    /// Runs of the atomic step, by order.
    pub runs: Arc<Mutex<BTreeMap<String, usize>>>,
    /// Calls of the stock, by order: each with the same key is one hold.
    pub holds: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    /// Holds wait until it is true.
    pub open: watch::Sender<bool>,
    pub beside: Beside,
    /// The step goes on after an error of what it does beside.
    pub swallows: bool,
}

impl Shop {
    pub fn new(beside: Beside) -> Self {
        let (runs, holds) = (Arc::default(), Arc::default());
        Self { runs, holds, open: watch::channel(true).0, beside, swallows: false }
    }

    pub fn runs(&self, order: &str) -> usize {
        self.runs.lock().unwrap().get(order).copied().unwrap_or_default()
    }

    pub fn calls(&self) -> usize {
        self.holds.lock().unwrap().values().map(Vec::len).sum()
    }
}

struct Create;

impl StepType for Create {
    type Input = String;
    type Output = ();
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::atomic("create").timeout(Duration::from_secs(20))
    }
}

impl AtomicStep<Shop> for Create {
    async fn run(&self, tx: &mut StepTx<'_>, at: At<'_, Shop>, order: &String) -> StepResult<()> {
        let nth = {
            let mut runs = at.app.runs.lock().unwrap();
            let runs = runs.entry(order.clone()).or_default();
            *runs += 1;
            *runs
        };
        let beside = (at.app.beside)(nth);
        insert(tx, order).await?;
        if let Some(beside) = beside
            && let Err(error) = execute(tx, beside).await
        {
            if !at.app.swallows {
                return Err(error);
            }
            // A mistake of many: the transaction is gone, and the step goes on.
            insert(tx, &format!("{order} swallowed")).await?;
        }
        Ok(())
    }
}

async fn insert(tx: &mut StepTx<'_>, order: &str) -> StepResult<()> {
    if let Some(tx) = tx.postgres() {
        tx.execute("INSERT INTO orders (name, what) VALUES ($1, 'created')", &[&order]).await?;
    } else if let Some(tx) = tx.sqlx_postgres() {
        let insert = sqlx::query("INSERT INTO orders (name, what) VALUES ($1, 'created')");
        insert.bind(order).execute(tx).await?;
    } else if let Some(tx) = tx.mysql() {
        let insert = sqlx::query("INSERT INTO orders (name, what) VALUES (?, 'created')");
        insert.bind(order).execute(tx).await?;
    } else {
        return Err(StepError::refused("no server"));
    }
    Ok(())
}

async fn execute(tx: &mut StepTx<'_>, sql: &'static str) -> StepResult<()> {
    if let Some(tx) = tx.postgres() {
        tx.batch_execute(sql).await?;
    } else if let Some(tx) = tx.sqlx_postgres() {
        sqlx::raw_sql(sql).execute(tx).await?;
    } else if let Some(tx) = tx.mysql() {
        sqlx::raw_sql(sql).execute(tx).await?;
    }
    Ok(())
}

struct Hold;

impl StepType for Hold {
    type Input = String;
    type Output = String;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("hold").timeout(Duration::from_secs(10))
    }
}

impl SagaStep<Shop> for Hold {
    async fn run(&self, at: At<'_, Shop>, order: &String) -> StepResult<String> {
        let key = at.key().as_str().to_owned();
        at.app.holds.lock().unwrap().entry(order.clone()).or_default().push(key.clone());
        let mut open = at.app.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
        Ok(key)
    }
}

async fn order(saga: Saga<Shop>, name: String) -> SagaResult<String> {
    saga.run(Create, name.clone()).await?;
    saga.run(Hold, name).await
}

pub async fn worker(url: &str, shop: &Shop) -> (Sagas<Shop>, Registered<String, String>) {
    worker_on(SqlJournal::open(url).await.unwrap(), shop)
}

pub fn worker_on(journal: SqlJournal, shop: &Shop) -> (Sagas<Shop>, Registered<String, String>) {
    let mut sagas = SagasBuilder::new(journal, shop.clone());
    let orders = sagas.register(Definition::new("order", 1, order).atomic(Create).step(Hold)).unwrap();
    (sagas.start(), orders)
}

/// Sagas that a worker left behind: it began them, and its lease is over.
pub async fn left_behind(url: &str, names: &[String]) {
    use semel::intent::fingerprint::Recipe;
    use semel::saga::NewSaga;
    use semel::{Intent, Key, Operation, Scope};

    let journal = SqlJournal::open(url).await.unwrap();
    let dead = journal.join(0).await.unwrap();
    for name in names {
        let operation = Operation::new("order").unwrap();
        let key = Key::new(name.as_str()).unwrap();
        let new = NewSaga {
            intent: Intent::new(Scope::tenant("acme").unwrap(), operation, key),
            fingerprint: Recipe::default().value(name).unwrap(),
            name: "order".to_owned(),
            version: 1,
            input: serde_json::to_vec(name).unwrap().into(),
            deadline_ms: None,
            worker: Some(dead),
        };
        journal.start(new).await.unwrap();
    }
}
