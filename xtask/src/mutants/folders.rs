//! The code that decides, and the tests that have to notice when it changes.

/// A part of the code that decides.
pub(super) struct Folder {
    pub(super) name: &'static str,
    pub(super) globs: &'static [&'static str],
    /// The tests that have to notice: those with one of these in their names.
    tests: &'static [&'static str],
    /// Where they are, in the order in which they run: what one stage misses, the next one tries. `lib` is the library,
    /// `worlds` the simulation. The quick and the keen ones come first: building tests takes longer than running them.
    pub(super) stages: &'static [Stage],
}

/// Test binaries that are built and run together.
pub(super) type Stage = &'static [&'static str];

/// The code that decides, and what it is called here. What is left out is in .cargo/mutants.toml.
pub(super) const FOLDERS: &[Folder] = &[
    Folder {
        name: "fingerprint",
        globs: &["crates/semel/src/intent/fingerprint/**/*.rs"],
        tests: &["fingerprint"],
        stages: &[&["lib"]],
    },
    Folder {
        name: "intent",
        globs: &["crates/semel/src/intent/*.rs"],
        tests: &["intent", "guard", "store", "key"],
        stages: &[&["lib"], &["worlds"]],
    },
    Folder {
        name: "guard",
        globs: &["crates/semel/src/guard/**/*.rs"],
        tests: &["guard"],
        stages: &[&["lib", "it"], &["worlds"]],
    },
    Folder {
        name: "relay",
        globs: &[
            "crates/semel/src/relay/batch_progress.rs",
            "crates/semel/src/relay/blame.rs",
            "crates/semel/src/relay/transaction_split.rs",
            "crates/semel/src/relay/transactions.rs",
            "crates/semel/src/relay/sink_state.rs",
            "crates/semel/src/relay/parking.rs",
        ],
        tests: &["relay"],
        stages: &[&["lib"], &["worlds"], &["it"]],
    },
    Folder {
        name: "consumer",
        globs: &[
            "crates/semel/src/inbox/consumer/scheduler.rs",
            "crates/semel/src/inbox/consumer/bisect.rs",
            "crates/semel/src/inbox/consumer/metrics.rs",
        ],
        tests: &["consumer"],
        stages: &[&["lib"], &["worlds"], &["it"]],
    },
    Folder {
        name: "client",
        globs: &[
            "crates/semel/src/http/client/decide.rs",
            "crates/semel/src/http/client/response_class.rs",
            "crates/semel/src/http/client/policy.rs",
        ],
        // The modules of the binary `client`, too.
        tests: &["client", "answers", "budget", "durable", "own_layer"],
        stages: &[&["lib"], &["client", "worlds"]],
    },
];

/// Tests that say something about the simulation, and nothing about the code.
const NOT_FOR_MUTANTS: &[&str] = &["planted", "the_same_seed"];

/// What the quick tests need of the library.
const FEATURES: &str = "semel/client,semel/conformance,semel/fault-injection,semel/sqlite";

impl Folder {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        FOLDERS.iter().find(|folder| folder.name == name)
    }

    /// Which tests run.
    pub(super) fn filters(&self) -> Vec<&'static str> {
        let skipped = NOT_FOR_MUTANTS.iter().flat_map(|name| ["--skip", name]);
        self.tests.iter().copied().chain(skipped).collect()
    }
}

/// What cargo builds for the tests of a stage.
pub(super) fn built(stage: Stage) -> Vec<&'static str> {
    let mut words = vec!["--no-default-features", "--features", FEATURES];
    for name in stage {
        match *name {
            "lib" => words.push("--lib"),
            name => words.extend(["--test", name]),
        }
    }
    // Compiled once and run once: not worth to be optimised.
    words.extend(["--config", "profile.dev.package.simulation.opt-level=0"]);
    words.extend(["--config", "profile.dev.debug=0"]);
    words
}

/// The packages of a stage.
pub(super) fn packages(stage: Stage) -> &'static [&'static str] {
    match (stage.contains(&"worlds"), stage.len()) {
        (true, 1) => &["simulation"],
        (true, _) => &["semel", "simulation"],
        (false, _) => &["semel"],
    }
}
