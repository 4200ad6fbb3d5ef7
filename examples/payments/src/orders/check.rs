//! What `cargo run -p payments -- orders` shows: an order of each kind, asked for twice, and what the ledgers say.

use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use rusqlite::Connection;
use semel::Key;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::participants::{Bank, KEY, Stock};
use super::saga::Shop;
use super::service::Orders;
use super::simulated::{bank, stock};
use crate::Failed;
use crate::app::MERCHANT;

/// Serves on a free port until the process ends.
async fn spawn(app: Router) -> Result<SocketAddr, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// Places the orders on a database in this directory. Prints what it does.
pub async fn check(directory: &Path) -> Result<(), Failed> {
    let [stock_ledger, bank_ledger] = ["stock.db", "bank.db"].map(|name| directory.join(name));
    let stock = spawn(stock::router(&stock_ledger, None)?).await?;
    let bank = spawn(bank::router(&bank_ledger, None)?).await?;
    let database = directory.join("orders.db");
    let shop =
        Shop { stock: Stock::new(&format!("http://{stock}")), bank: Bank::new(&format!("http://{bank}")) };
    let orders = Orders::open(&format!("sqlite:{}", database.display()), shop).await?;
    let service = spawn(orders.router()).await?;

    let merchant = format!("check-{}", Key::random().as_str());
    let http = reqwest::Client::new();
    for (what, key, sku, cents, wanted) in [
        ("an order, asked for twice:", "order-1", "book", 4_200, 201),
        ("out of stock: the order is cancelled:", "order-2", stock::SOLD_OUT, 4_200, 422),
        ("declined by the bank: released and cancelled:", "order-3", "book", bank::LIMIT + 1, 422),
    ] {
        println!("{what}");
        let mut first: Option<Value> = None;
        for _ in 0..2 {
            let request = http.post(format!("http://{service}/api/v1/orders"));
            let request = request.header(MERCHANT.as_str(), &merchant).header(KEY, key);
            let response = request.json(&json!({ "sku": sku, "cents": cents })).send().await?;
            let status = response.status();
            let body: Value = response.json().await?;
            println!("  {key}: {status} {body}");
            ensure(status.as_u16() == wanted, "every request is answered")?;
            ensure(*first.get_or_insert_with(|| body.clone()) == body, "every answer is the same")?;
        }
    }
    let count = |path: &Path, from: &str| -> Result<i64, Failed> {
        let query = format!("SELECT count(*) FROM {from}");
        Ok(Connection::open(path)?.query_row(&query, [], |row| row.get(0))?)
    };
    let live = count(&database, "shop_order WHERE cancelled = 0")?;
    let held = count(&stock_ledger, "effect WHERE what = 'held'")?;
    let released = count(&stock_ledger, "effect WHERE what = 'released'")?;
    let (charged, noticed) = (count(&bank_ledger, "effect")?, count(&database, "notice")?);
    let published = count(&database, "semel_outbox")?;
    println!(
        "orders {live}, reservations {held} of which {released} released, charges {charged}, notices {noticed}, events \
         {published}"
    );
    ensure((live, held, released) == (1, 2, 1), "what was refused is undone")?;
    ensure((charged, noticed, published) == (1, 1, 1), "what was done is done once")?;
    orders.drain().await;
    Ok(())
}

fn ensure(holds: bool, what: &str) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("does not hold: {what}").into()) }
}
