//! `cargo xtask chaos`: simulated histories, built for speed.

use clap::Args;

use crate::cargo;

/// Run simulated histories of crashes, stalls and faults; each seed is one, the same every time.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The world: guard, client, relay or consumer. Without it, all of them.
    #[arg(long, value_name = "WORLD")]
    world: Option<String>,
    /// How many histories of each world.
    #[arg(long, default_value_t = 20_000, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them; random without it.
    #[arg(long, value_name = "SEED", conflicts_with = "seed")]
    from: Option<u64>,
    /// Just this one, step by step: replays what a failure printed. Needs --world.
    #[arg(long)]
    seed: Option<u64>,
    /// Plant this bug, to see it caught. Needs --world.
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,
    /// Print the minimised plan of a failing history as JSON, for simulation/tests/known/.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let mut words = Vec::new();
    let mut pass = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [format!("--{name}"), value]));
    };
    pass("world", arguments.world.clone());
    pass("seed", arguments.seed.map(|seed| seed.to_string()));
    pass("from", arguments.from.map(|seed| seed.to_string()));
    pass("plant", arguments.plant.clone());
    if arguments.seed.is_none() {
        pass("seeds", Some(arguments.seeds.to_string()));
    }
    words.extend(arguments.json.then(|| "--json".to_owned()));
    let line = ["run", "--quiet", "--release", "--package", "simulation", "--bin", "chaos", "--"];
    cargo::run(&line, &words)
}
