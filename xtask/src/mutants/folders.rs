//! The code that decides, and the tests that have to notice when it changes.

/// A part of the code that decides.
pub(super) struct Folder {
    pub(super) name: &'static str,
    pub(super) globs: &'static [&'static str],
    /// In the order in which they run: what one stage misses, the next one tries. The quick and the keen ones come
    /// first.
    pub(super) stages: &'static [Stage],
}

/// Tests that are built and run together.
pub(super) struct Stage {
    /// Where they are: `lib` is the library, `worlds` the simulation.
    pub(super) binaries: &'static [&'static str],
    /// The tests that have to notice: those with one of these in their names.
    tests: &'static [&'static str],
}

/// The code that decides, and what it is called here. What is left out is in .cargo/mutants.toml.
pub(super) const FOLDERS: &[Folder] = &[
    Folder {
        name: "fingerprint",
        globs: &["crates/semel/src/intent/fingerprint/**/*.rs"],
        stages: &[Stage { binaries: &["lib"], tests: &["fingerprint"] }],
    },
    Folder {
        name: "intent",
        globs: &["crates/semel/src/intent/*.rs"],
        stages: &[
            Stage { binaries: &["lib"], tests: &["intent"] },
            Stage { binaries: &["worlds"], tests: &["guard"] },
            Stage { binaries: &["lib"], tests: &["guard", "store", "key"] },
        ],
    },
    Folder {
        name: "guard",
        globs: &["crates/semel/src/guard/**/*.rs"],
        stages: &[
            Stage { binaries: &["lib", "it"], tests: &["guard"] },
            Stage { binaries: &["worlds"], tests: &["guard"] },
        ],
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
        stages: &[
            Stage { binaries: &["lib"], tests: &["relay"] },
            Stage { binaries: &["worlds"], tests: &["relay"] },
            Stage { binaries: &["it"], tests: &["relay"] },
        ],
    },
    Folder {
        name: "consumer",
        globs: &[
            "crates/semel/src/inbox/consumer/scheduler.rs",
            "crates/semel/src/inbox/consumer/bisect.rs",
            "crates/semel/src/inbox/consumer/metrics.rs",
        ],
        stages: &[
            Stage { binaries: &["lib"], tests: &["consumer"] },
            Stage { binaries: &["worlds"], tests: &["consumer"] },
            Stage { binaries: &["it"], tests: &["consumer"] },
        ],
    },
    Folder {
        name: "client",
        globs: &[
            "crates/semel/src/http/client/decide.rs",
            "crates/semel/src/http/client/response_class.rs",
            "crates/semel/src/http/client/policy.rs",
        ],
        stages: &[
            Stage { binaries: &["lib"], tests: &["client"] },
            Stage {
                binaries: &["client", "worlds"],
                tests: &["client", "answers", "budget", "durable", "own_layer"],
            },
        ],
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
}

impl Stage {
    /// Which tests run.
    pub(super) fn filters(&self) -> Vec<&'static str> {
        let skipped = NOT_FOR_MUTANTS.iter().flat_map(|name| ["--skip", name]);
        self.tests.iter().copied().chain(skipped).collect()
    }

    /// What cargo builds.
    pub(super) fn built(&self) -> Vec<&'static str> {
        let mut words = vec!["--no-default-features", "--features", FEATURES];
        for name in self.binaries {
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

    pub(super) fn packages(&self) -> &'static [&'static str] {
        match (self.binaries.contains(&"worlds"), self.binaries.len()) {
            (true, 1) => &["simulation"],
            (true, _) => &["semel", "simulation"],
            (false, _) => &["semel"],
        }
    }
}
