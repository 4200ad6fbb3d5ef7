//! `relay_process --from postgres://… --to kafka://HOST:PORT [--mode poll|cdc] [--slot NAME]`: see [`proof::relay_process`].

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(proof::relay_process::run(std::env::args().skip(1))).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay: {error}");
            ExitCode::FAILURE
        }
    }
}
