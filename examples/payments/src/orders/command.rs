//! `payments orders`, `payments stock` and `payments bank`: the service of orders, and the servers it calls.

use std::path::{Path, PathBuf};

use axum::Router;
use tokio::net::TcpListener;

use super::check;
use super::participants::{Bank, Stock};
use super::saga::Shop;
use super::service::Orders;
use super::simulated::{bank, stock};
use crate::Failed;
use crate::app::MERCHANT;

const USAGE: &str = "
payments orders                                             tries it, with stock and bank of its own
payments orders --store URL --stock URL --bank URL [--serve ADDRESS]
payments stock --ledger FILE [--seed N] [--serve ADDRESS]   with a seed: answers get lost, calls fail
payments bank --ledger FILE [--seed N] [--serve ADDRESS]";

#[derive(Default)]
struct Args {
    store: Option<String>,
    stock: Option<String>,
    bank: Option<String>,
    ledger: Option<PathBuf>,
    seed: Option<u64>,
    serve: Option<String>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Failed> {
        let mut args = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value; usage:{USAGE}"));
            match word.as_str() {
                "--store" => args.store = Some(value()?),
                "--stock" => args.stock = Some(value()?),
                "--bank" => args.bank = Some(value()?),
                "--ledger" => args.ledger = Some(value()?.into()),
                "--seed" => args.seed = Some(value()?.parse().map_err(|_| "--seed is a number")?),
                "--serve" => args.serve = Some(value()?),
                other => return Err(format!("unknown argument {other:?}; usage:{USAGE}").into()),
            }
        }
        Ok(args)
    }

    fn ledger(&self) -> Result<&Path, Failed> {
        self.ledger.as_deref().ok_or_else(|| format!("--ledger is missing; usage:{USAGE}").into())
    }
}

/// Whether `main` leaves this command to [`run`].
pub fn is_ours(word: &str) -> bool {
    ["orders", "stock", "bank"].contains(&word)
}

/// Runs one of them, with the words behind it. `temporary` is a directory for what is not named.
pub async fn run(command: &str, words: impl Iterator<Item = String>, temporary: &Path) -> Result<(), Failed> {
    let args = Args::parse(words)?;
    let listen = args.serve.as_deref().unwrap_or("127.0.0.1:0");
    match command {
        "stock" => serve(stock::router(args.ledger()?, args.seed)?, listen).await,
        "bank" => serve(bank::router(args.ledger()?, args.seed)?, listen).await,
        _ => match (&args.store, &args.stock, &args.bank) {
            (None, None, None) => check::check(temporary).await,
            (Some(store), Some(stock), Some(bank)) => {
                let orders =
                    Orders::open(store, Shop { stock: Stock::new(stock), bank: Bank::new(bank) }).await?;
                let served = serve(orders.router(), listen).await;
                orders.drain().await;
                served
            }
            _ => Err(format!("--store, --stock and --bank go together; usage:{USAGE}").into()),
        },
    }
}

async fn serve(app: Router, listen: &str) -> Result<(), Failed> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    eprintln!(
        "of `payments orders`: curl -i http://{address}/api/v1/orders -H '{MERCHANT}: acme' -H 'Idempotency-Key: order-1' \
         -H 'Content-Type: application/json' -d '{{\"sku\": \"book\", \"cents\": 4200}}'"
    );
    let ctrl_c = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(axum::serve(listener, app).with_graceful_shutdown(ctrl_c).await?)
}
