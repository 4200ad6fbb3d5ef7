//! A saga of three steps that do nothing, as a DBOS workflow, and its callers.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dbos::{Config, DBOS, Result};

static STEPS: AtomicU64 = AtomicU64::new(0);

async fn step(number: u64) -> Result<u64> {
    STEPS.fetch_add(1, Ordering::Relaxed);
    Ok(number)
}

async fn saga(_: ()) -> Result<u64> {
    let mut sum = 0;
    for number in 1..=3 {
        sum += dbos::step("step", move || step(number)).await?;
    }
    Ok(sum)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).expect("the address of the database");
    let config = Config { app_version: Some("1".to_owned()), ..Config::new("peer", url) };
    let dbos = DBOS::new(config);
    let saga = dbos.register_workflow("saga", saga)?;
    dbos.launch().await?;
    println!("ready");
    // `run SECONDS CALLERS` is answered with `ended SAGAS`, anything else with `steps N`.
    for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        let numbers: Vec<u64> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
        let [seconds, callers] = numbers[..] else {
            println!("steps {}", STEPS.load(Ordering::Relaxed));
            continue;
        };
        let until = Instant::now() + Duration::from_secs(seconds);
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                let saga = saga.clone();
                tokio::spawn(async move {
                    let mut ended = 0;
                    while Instant::now() < until {
                        let sum = saga.run(()).await?;
                        assert_eq!(sum, 6, "what a saga returned");
                        ended += 1;
                    }
                    Result::Ok(ended)
                })
            })
            .collect();
        let mut ended = 0;
        for caller in callers {
            ended += caller.await.expect("a caller")?;
        }
        println!("ended {ended}");
    }
    dbos.shutdown().await;
    Ok(())
}
