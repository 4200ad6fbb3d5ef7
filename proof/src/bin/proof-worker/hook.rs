//! A real process for the webhook tests: a server that receives, and is killed while it does so.
//!
//! `proof-worker hook good|early postgres|sqlite PLACE`, where PLACE is `URL SCHEMA` or a path. It says on stdout where it listens.
//! `POST /stripe` and `POST /standard` receive, `GET /metrics` tells what was counted. The points of [`semel::crash`] around
//! the commit are its own, as a commit is the application's.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rusqlite::TransactionBehavior;
use semel::blocking;
use semel::crash::{AFTER_COMMIT, BEFORE_COMMIT, point};
use semel::inbox::Inbox;
use semel::inbox::webhook::{Done, Received, StandardWebhooks, Stripe, WebhookReceiver};
use semel::observe::Metrics;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

type Failed = Box<dyn std::error::Error + Send + Sync>;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &[&str]) -> Result<(), Failed> {
    match args {
        ["good", "postgres", url, schema] => {
            let pool = connect(url, schema).await?;
            serve(move |event| good_postgres(pool.clone(), event)).await
        }
        ["early", "postgres", url, schema] => {
            let pool = connect(url, schema).await?;
            serve(move |event| early_postgres(pool.clone(), event)).await
        }
        ["good", "sqlite", path] => {
            let path = (*path).to_owned();
            serve(move |event| {
                let path = path.clone();
                async move { tokio::task::spawn_blocking(move || good_sqlite(&path, &event)).await? }
            })
            .await
        }
        _ => Err("usage: proof-worker hook good|early postgres|sqlite …".into()),
    }
}

async fn serve<H, F>(handler: H) -> Result<(), Failed>
where
    H: Fn(Received) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Done, Failed>> + Send + 'static,
{
    let metrics = Metrics::new();
    let stripe = WebhookReceiver::new("stripe", Stripe::new([SECRET])?, handler.clone())?.metrics(&metrics);
    let standard =
        WebhookReceiver::new("standard", StandardWebhooks::new([SECRET])?, handler)?.metrics(&metrics);
    let app = Router::new()
        .route_service("/stripe", stripe)
        .route_service("/standard", standard)
        .route("/metrics", get(move || async move { metrics.render() }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    Ok(axum::serve(listener, app).await?)
}

async fn connect(url: &str, schema: &str) -> Result<PgPool, Failed> {
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([("search_path", schema)]);
    Ok(PgPoolOptions::new().max_connections(8).connect_with(options).await?)
}

async fn good_postgres(pool: PgPool, event: Received) -> Result<Done, Failed> {
    let inbox = Inbox::new("worker")?;
    let mut tx = pool.begin().await?;
    let handled = inbox
        .handle_tx(&mut tx, &event, async |tx| {
            sqlx::query("INSERT INTO effect (event) VALUES ($1)").bind(event.id()).execute(tx).await.map(drop)
        })
        .await?;
    point(BEFORE_COMMIT);
    tx.commit().await?;
    point(AFTER_COMMIT);
    Ok(handled.into())
}

/// What the tests have to catch: the provider hears success before the commit.
async fn early_postgres(pool: PgPool, event: Received) -> Result<Done, Failed> {
    let inbox = Inbox::new("worker")?;
    let mut tx = pool.begin().await?;
    let handled = inbox
        .handle_tx(&mut tx, &event, async |tx| {
            sqlx::query("INSERT INTO effect (event) VALUES ($1)").bind(event.id()).execute(tx).await.map(drop)
        })
        .await?;
    tokio::spawn(async move {
        point(BEFORE_COMMIT);
        tx.commit().await
    });
    Ok(handled.into())
}

fn good_sqlite(path: &str, event: &Received) -> Result<Done, Failed> {
    let inbox = Inbox::new("worker")?;
    let mut db = rusqlite::Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(15))?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let handled = blocking::handle_tx(&inbox, &tx, event, |tx| {
        tx.execute("INSERT INTO effect (event) VALUES (?1)", [event.id()]).map(drop)
    })?;
    point(BEFORE_COMMIT);
    tx.commit()?;
    point(AFTER_COMMIT);
    Ok(handled.into())
}
