//! `payments [--store URL] [--cache URL] [--cards FILE] [--serve [ADDR]]`
//!
//! Without `--serve` it checks itself and ends. Without `--store` it runs on a temporary SQLite file. `payments
//! notify --from kafka://… --store postgres://…` is the other end: a consumer of the service's events (feature
//! `kafka`). `payments orders`, `payments stock` and `payments bank` are [orders](payments::orders). `--cards` names the file of a card provider, which stands in for a real one; a check uses a temporary
//! one.

use std::path::PathBuf;
use std::process::ExitCode;

use axum::Router;
use payments::{Failed, app::MERCHANT, check, orders::command, place, provider::Provider};

const USAGE: &str =
    "payments [--store sqlite:PATH|postgres://…] [--cache redis://…] [--cards FILE] [--serve [ADDR]]";

#[derive(Default)]
struct Args {
    store: Option<String>,
    cache: Option<String>,
    cards: Option<PathBuf>,
    serve: Option<String>,
}

impl Args {
    fn parse() -> Result<Self, Failed> {
        let (mut args, mut words) = (Self::default(), std::env::args().skip(1).peekable());
        while let Some(word) = words.next() {
            match word.as_str() {
                "--store" => args.store = Some(words.next().ok_or("--store needs a URL")?),
                "--cache" => args.cache = Some(words.next().ok_or("--cache needs a URL")?),
                "--cards" => args.cards = Some(words.next().ok_or("--cards needs a file")?.into()),
                "--serve" => {
                    let address = words.next_if(|word| !word.starts_with('-'));
                    args.serve = Some(address.unwrap_or_else(|| "127.0.0.1:0".to_owned()));
                }
                other => return Err(format!("unknown argument {other:?}; {USAGE}").into()),
            }
        }
        Ok(args)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payments: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failed> {
    if std::env::args().nth(1).is_some_and(|word| word == "notify") {
        return notify(std::env::args().skip(2)).await;
    }
    let temporary = Temporary(std::env::temp_dir().join(format!("payments-{}", std::process::id())));
    std::fs::create_dir_all(&temporary.0)?;
    if let Some(word) = std::env::args().nth(1).filter(|word| command::is_ours(word)) {
        return command::run(&word, std::env::args().skip(2), &temporary.0).await;
    }
    let args = Args::parse()?;
    let here = || format!("sqlite:{}", temporary.0.join("payments.db").display());
    let store = args.store.clone().unwrap_or_else(here);
    let cards = match (args.cards, &args.serve) {
        (None, None) => Some(temporary.0.join("cards")),
        (cards, _) => cards,
    };
    let provider = cards.as_deref().map(Provider::open).transpose()?;
    let app = place::open(&store, args.cache.as_deref(), provider).await?;
    match &args.serve {
        None => check::check(&app).await,
        Some(address) => serve(app, address, cards.is_some()).await,
    }
}

#[cfg(feature = "kafka")]
async fn notify(words: impl Iterator<Item = String>) -> Result<(), Failed> {
    use payments::notify::{NotifyOptions, run};
    run(&NotifyOptions::read(words, |name| std::env::var(name).ok())?).await
}

#[cfg(not(feature = "kafka"))]
async fn notify(_: impl Iterator<Item = String>) -> Result<(), Failed> {
    Err("built without Kafka: cargo run -p payments --features kafka -- notify …".into())
}

/// A temporary directory, removed at the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn serve(app: Router, address: &str, takes_cards: bool) -> Result<(), Failed> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    let card = if takes_cards { r#", "method": "card""# } else { "" };
    eprintln!(
        "curl -i http://{address}/api/v1/payments -H '{MERCHANT}: acme' -H 'Idempotency-Key: order-1001' \
         -H 'Content-Type: application/json' -d '{{\"amount\": 4200, \"customer\": \"ana\"{card}}}'"
    );
    let ctrl_c = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(axum::serve(listener, app).with_graceful_shutdown(ctrl_c).await?)
}
