//! `relay_process --from postgres://… --to kafka://HOST:PORT [--mode poll]`: see [`proof::relay_process`].

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match proof::relay_process::run(std::env::args().skip(1)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay: {error}");
            ExitCode::FAILURE
        }
    }
}
