//! The servers under load: the same axum handler, bare and behind the layer.

use std::io::Write;

use axum::Router;
use axum::routing::{get, post};
use semel::Guard;
use semel::http::{IdempotencyLayer, Rule};
use semel::store::memory::MemoryStore;

use crate::Failed;

async fn pay(body: String) -> (http::StatusCode, String) {
    (http::StatusCode::CREATED, format!("{{\"paid\":true,\"length\":{}}}", body.len()))
}

fn app() -> Router {
    Router::new().route("/payments", post(pay)).route("/", get(|| async { "hello" }))
}

#[tokio::main]
pub(crate) async fn run(kind: &str) -> Result<(), Failed> {
    let app = match kind {
        "bare" => app(),
        "layer" => {
            let guard = Guard::new(MemoryStore::new().records_max(usize::MAX));
            let rule = Rule::on("POST /payments").name("payment.create");
            app().layer(IdempotencyLayer::builder(guard).single_tenant().rule(rule).build()?)
        }
        other => return Err(format!("no server is called {other:?}").into()),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    Ok(axum::serve(listener, app).await?)
}
