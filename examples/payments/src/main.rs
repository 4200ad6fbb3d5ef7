//! The reference service: a payment that is charged once, however often it is asked for.
//!
//! Run it: `cargo run -p payments`. It keeps its intents in a SQLite file, asks a card provider that loses
//! answers, and checks what it prints against the provider's own book.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::guard::Guarded;
use semel::store::sqlite::SqliteStore;
use semel::{Failure, Found, Guard, GuardError, Key, OnceError, Outcome, Preset, Scope};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The card provider: books every charge it is asked for, and loses the answer of every third.
#[derive(Clone, Default)]
struct Provider {
    book: Arc<Mutex<Vec<String>>>,
}

impl Provider {
    fn charge(&self, reference: &str) -> Result<String, std::io::Error> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.push(reference.to_owned());
        if book.len().is_multiple_of(3) {
            return Err(std::io::Error::other("connection reset by provider"));
        }
        Ok(format!("charge-{}", book.len()))
    }

    fn charges(&self, reference: &str) -> usize {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.iter().filter(|booked| *booked == reference).count()
    }
}

async fn pay(payments: &Guarded<SqliteStore>, provider: &Provider, order: &str) -> Result<String, Failed> {
    let (merchant, key) = (Scope::tenant("acme")?, Key::new(order)?);
    let asked = provider.clone();
    let charge = |attempt: semel::Attempt| async move { Ok(asked.charge(attempt.child("charge").as_str())?) };
    Ok(match payments.once::<String, _, _, _>(&merchant, &key, &("EUR", 4_200), charge).await {
        Ok(reply) if reply.replayed => format!("{} (again)", reply.value),
        Ok(reply) => reply.value,
        Err(OnceError::Failed { failure: Failure { message, .. }, .. }) => message,
        Err(OnceError::Guard(GuardError::Uncertain { .. })) => "not known whether it was charged".to_owned(),
        Err(error) => return Err(error.into()),
    })
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let directory = std::env::temp_dir().join(format!("payments-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let guard = Guard::new(SqliteStore::open(directory.join("semel.db")).await?);
    let provider = Provider::default();
    let payments = guard.operation("payment.create")?.preset(Preset::Payment);

    println!("three orders, each asked for three times:");
    let orders = ["order-1001", "order-1002", "order-1003"];
    for order in orders {
        for _ in 0..3 {
            println!("  {order}: {}", pay(&payments, &provider, order).await?);
        }
    }

    // The third answer was lost. Whoever knows is asked: here the provider's book.
    let book = provider.clone();
    let look_up = move |record: semel::store::Record| {
        let charged = book.charges(record.intent.child("charge").as_str()) > 0;
        async move { if charged { Found::Applied(Outcome::new(200, r#""charge-3""#)) } else { Found::NotApplied } }
    };
    let payments = payments.lookup(look_up, Duration::ZERO);
    println!("and once more, with a lookup:");
    println!("  order-1003: {}", pay(&payments, &provider, "order-1003").await?);

    println!("charges in the provider's book:");
    let scope = Scope::tenant("acme")?;
    for order in orders {
        let reference = payments.intent(&scope, &Key::new(order)?).child("charge");
        let charges = provider.charges(reference.as_str());
        println!("  {order}: {charges}");
        if charges != 1 {
            return Err(format!("{order} was charged {charges} times").into());
        }
    }
    guard.drain(Duration::from_secs(5)).await;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
