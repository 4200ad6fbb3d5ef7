//! A saga of three steps that do nothing, as a Restate service. Its callers are threads of `cargo xtask bench`.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};

use restate_sdk::prelude::*;

static STEPS: AtomicU64 = AtomicU64::new(0);

async fn step(number: u64) -> HandlerResult<u64> {
    STEPS.fetch_add(1, Ordering::Relaxed);
    Ok(number)
}

struct Saga;

#[restate_sdk::service(name = "saga")]
impl Saga {
    #[handler]
    async fn run(&self, context: Context<'_>) -> Result<u64, HandlerError> {
        let mut sum = 0;
        for number in 1..=3 {
            sum += context.run(move || step(number)).name("step").await?;
        }
        Ok(sum)
    }
}

#[tokio::main]
async fn main() {
    // One line in, one line out; its end is ours.
    std::thread::spawn(|| {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            println!("steps {}", STEPS.load(Ordering::Relaxed));
        }
        std::process::exit(0);
    });
    let address = std::env::args().nth(1).and_then(|at| at.parse().ok()).expect("the address to listen on");
    println!("ready");
    HttpServer::new(Endpoint::builder().bind(Saga).build()).listen_and_serve(address).await;
}
