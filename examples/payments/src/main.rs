//! The reference service: a payment that is charged once, however often it is asked for.
//!
//! `cargo run -p payments` sends three orders three times each to a bank that loses every third answer, and checks
//! what it prints against the bank's own book. `cargo run -p payments -- --serve` stays, to be tried with curl.

mod app;
mod bank;

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use semel::Guard;
use semel::store::sqlite::SqliteStore;
use tower::ServiceExt;

use crate::app::{MERCHANT, app};
use crate::bank::{Bank, Charge};

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let directory = std::env::temp_dir().join(format!("payments-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let done = run(&directory).await;
    std::fs::remove_dir_all(&directory)?;
    done
}

async fn run(directory: &Path) -> Result<(), Failed> {
    let guard = Guard::new(SqliteStore::open(directory.join("semel.db")).await?);
    let bank = Bank::open(&directory.join("bank.db"))?;
    let app = app(bank.clone(), guard.clone())?;
    match std::env::args().nth(1).as_deref() {
        None => check(app, &bank).await?,
        Some("--serve") => serve(app).await?,
        Some(other) => return Err(format!("{other:?} is not known; use --serve, or nothing").into()),
    }
    // What callers left behind is finished and recorded before the process ends.
    guard.drain(Duration::from_secs(5)).await;
    Ok(())
}

async fn check(app: Router, bank: &Bank) -> Result<(), Failed> {
    println!("three orders, each asked for three times:");
    for order in ["order-1001", "order-1002", "order-1003"] {
        let mut ids = Vec::new();
        for _ in 0..3 {
            let (status, replayed, body) = pay(&app, order, 4_200).await?;
            println!("  {order}: {status} {body}{}", if replayed { " (again)" } else { "" });
            if status == StatusCode::CREATED {
                ids.push(serde_json::from_str::<Charge>(&body)?.id);
            }
        }
        ids.dedup();
        ensure(ids.len() == 1, "every answer names the same charge")?;
    }
    println!("the same key for another amount:");
    let (status, _, _) = pay(&app, "order-1001", 9_900).await?;
    println!("  order-1001: {status}");
    ensure(status == StatusCode::CONFLICT, "a key stands for one request")?;

    let charges = bank.count().await?;
    println!("charges in the bank's book: {charges}");
    ensure(charges == 3, "every order is charged once")
}

async fn pay(app: &Router, order: &str, amount: i64) -> Result<(StatusCode, bool, String), Failed> {
    let request = Request::post("/payments")
        .header(MERCHANT, "acme")
        .header("idempotency-key", order)
        .header("content-type", "application/json")
        .body(Body::from(format!("{{\"amount\":{amount}}}")))?;
    let (parts, body) = app.clone().oneshot(request).await?.into_parts();
    let body = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
    Ok((parts.status, parts.headers.contains_key("idempotency-replayed"), body))
}

fn ensure(holds: bool, what: &str) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("does not hold: {what}").into()) }
}

async fn serve(app: Router) -> Result<(), Failed> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!(
        "curl -i http://{}/payments -H '{MERCHANT}: acme' -H 'Idempotency-Key: order-1001' \
         -H 'Content-Type: application/json' -d '{{\"amount\": 4200}}'",
        listener.local_addr()?
    );
    let ctrl_c = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(axum::serve(listener, app).with_graceful_shutdown(ctrl_c).await?)
}
