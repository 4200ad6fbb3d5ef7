//! One process of the demo: a participant, or a worker that takes orders.
//!
//! A worker answers `/orders`: 200 when the order is complete, 409 when it is undone, 202 when its saga is parked, and
//! 5xx when the client has to ask again.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::StatusCode;
use semel::saga::sql::SqlJournal;
use semel::saga::{Registered, SagaEnd, SagaError, SagaOptions, Sagas, SagasBuilder};
use semel::{Key, Scope};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

use super::http::{Answered, serve};
use super::naive::{self, Naive};
use super::order::{Shop, checkout};
use super::participant::Participant;
use crate::args::Bug;
use crate::failure::Failed;
use crate::gateway::stdin_ended;

/// The tenant of all orders.
pub(super) const TENANT: &str = "demo";

/// A worker that died is noticed after this long: at least twice the longest timeout of a step with the margin.
const LEASE: Duration = Duration::from_millis(1_600);
const LEASE_MARGIN: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(100);
/// How long a client waits for an end before it asks again.
const WAIT: Duration = Duration::from_secs(5);

/// One process of `semel demo --saga`.
#[derive(Args)]
pub(crate) struct DemoSagaProcess {
    #[arg(long)]
    part: Part,
    #[arg(long)]
    listen: SocketAddr,
    /// As for the gateway.
    #[arg(long)]
    until_stdin_ends: bool,
    #[arg(long)]
    seed: u64,
    /// With the ledgers and the database of orders.
    #[arg(long)]
    folder: PathBuf,
    /// Of a worker: stock, provider, mail.
    #[arg(long, value_delimiter = ',')]
    participants: Vec<SocketAddr>,
    #[arg(long = "break")]
    bug: Option<Bug>,
}

/// What the process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Part {
    Stock,
    Provider,
    Mail,
    /// Runs orders as sagas.
    Worker,
    /// Runs them without.
    Naive,
}

impl Part {
    pub(super) const PARTICIPANTS: [Self; 3] = [Self::Stock, Self::Provider, Self::Mail];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Provider => "provider",
            Self::Mail => "mail",
            Self::Worker => "worker",
            Self::Naive => "naive",
        }
    }
}

/// A participant's ledger.
pub(super) fn ledger(folder: &Path, part: Part) -> PathBuf {
    folder.join(format!("{}.ledger", part.name()))
}

/// The database with the orders, and with sagas also with their journal.
pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join("orders.db")
}

/// The database as a URL.
pub(super) fn database_url(folder: &Path) -> String {
    format!("sqlite:{}", database(folder).display())
}

/// A client's order.
#[derive(Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) order: String,
}

/// Runs until stdin ends.
pub(crate) async fn run(args: &DemoSagaProcess) -> Result<(), Failed> {
    let listener = TcpListener::bind(args.listen).await?;
    let listening = listener.local_addr()?;
    let serving: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match args.part {
        Part::Stock | Part::Provider | Part::Mail => {
            let participant = Participant::open(&ledger(&args.folder, args.part), args.seed)?;
            Box::pin(serve(listener, move |path, ask| participant.clone().answer(path, ask)))
        }
        Part::Worker => {
            let [stock, provider, mail] = participants(args)?;
            let worker = Worker::start(&args.folder, Shop { stock, provider, mail, bug: args.bug }).await?;
            let worker = Arc::new(worker);
            Box::pin(serve(listener, move |_, place| Arc::clone(&worker).answer(place)))
        }
        Part::Naive => {
            let naive = Naive::open(&database(&args.folder), participants(args)?)
                .map_err(|error| Failed::not_done(format!("the orders could not be opened: {error}")))?;
            let naive = Arc::new(naive);
            Box::pin(serve(listener, move |_, place: Place| {
                let naive = Arc::clone(&naive);
                async move { Ok(naively(naive.order(&place.order).await)) }
            }))
        }
    };
    println!("listening on {listening}");
    tokio::select! {
        () = serving => Ok(()),
        () = stdin_ended(args.until_stdin_ends) => Ok(()),
    }
}

fn participants(args: &DemoSagaProcess) -> Result<[SocketAddr; 3], Failed> {
    let three = <[SocketAddr; 3]>::try_from(args.participants.clone());
    three.map_err(|_| Failed::usage("a worker needs --participants STOCK,PROVIDER,MAIL"))
}

fn naively(end: naive::End) -> (StatusCode, serde_json::Value) {
    match end {
        naive::End::Completed => (StatusCode::OK, json!({})),
        naive::End::Undone(why) => (StatusCode::CONFLICT, json!({ "why": why })),
        naive::End::Failed(why) => (StatusCode::INTERNAL_SERVER_ERROR, json!({ "why": why })),
    }
}

struct Worker {
    sagas: Sagas<Shop>,
    orders: Registered<String, String>,
    scope: Scope,
}

impl Worker {
    async fn start(folder: &Path, shop: Shop) -> Result<Self, Failed> {
        let journal = SqlJournal::open(&database_url(folder)).await?;
        let mut options = SagaOptions::default();
        (options.lease, options.lease_margin) = (LEASE, LEASE_MARGIN);
        (options.poll_interval, options.wait) = (POLL, WAIT);
        let mut sagas = SagasBuilder::new(journal, shop).options(options);
        let failed = |error: &dyn std::error::Error| Failed::not_done(error.to_string());
        let orders = sagas.register(checkout).map_err(|error| failed(&error))?;
        let scope = Scope::tenant(TENANT).map_err(|error| failed(&error))?;
        Ok(Self { sagas: sagas.start(), orders, scope })
    }

    /// The order's name is the key: however often it is placed, and at whichever worker, it is one saga.
    async fn answer(self: Arc<Self>, place: Place) -> Answered {
        let key = Key::new(place.order.as_str()).map_err(io::Error::other)?;
        Ok(match self.sagas.once(&self.orders, &self.scope, &key, &place.order).await {
            Ok(SagaEnd::Completed(charge)) => (StatusCode::OK, json!({ "charge": charge })),
            Ok(SagaEnd::Undone { why, .. }) => (StatusCode::CONFLICT, json!({ "why": why })),
            Ok(SagaEnd::Abandoned) => (StatusCode::GONE, json!({})),
            Err(SagaError::Parked { reason, .. }) => {
                (StatusCode::ACCEPTED, json!({ "why": reason.as_str() }))
            }
            // Under way, stopping, or the journal did not answer: the same key again.
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, json!({ "why": error.to_string() })),
        })
    }
}
