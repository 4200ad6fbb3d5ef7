//! Jars from Maven Central, listed by a small pom that builds nothing.

use std::path::PathBuf;
use std::time::Duration;

use super::error::{Error, Result};
use super::instance::root;
use super::lock::{Lock, Mode};
use super::ports::hash;
use super::recipe::{Need, command, run};

/// What every server of jars needs.
pub(super) const JAVA: &[Need] =
    &[Need { program: "java", package: "default-jre-headless" }, Need { program: "mvn", package: "maven" }];

/// Cold caches on a slow line: a hundred megabytes.
const FETCH_MINUTES_MAX: u64 = 15;

/// A set of jars.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jars {
    pub(super) name: &'static str,
    pub(super) pom: &'static str,
}

impl Jars {
    /// Where the jars of exactly this pom are.
    pub(super) fn dir(&self) -> PathBuf {
        root().join("jars").join(format!("{}-{:016x}", self.name, hash(self.pom.as_bytes())))
    }

    /// For `java -cp`.
    pub(super) fn class_path(&self) -> String {
        format!("{}/*", self.dir().display())
    }

    /// Resolves the jars unless they are there.
    pub(super) fn fetch(&self) -> Result<PathBuf> {
        let dir = self.dir();
        if dir.is_dir() {
            return Ok(dir);
        }
        // One Maven at a time: its local repository does not like two writers.
        let patience = Duration::from_secs(FETCH_MINUTES_MAX * 60);
        let _lock = Lock::take(&root().join("jars.lock"), Mode::Exclusive, patience)?;
        if dir.is_dir() {
            return Ok(dir);
        }
        let partial = dir.with_extension("partial");
        if partial.exists() {
            std::fs::remove_dir_all(&partial)?;
        }
        std::fs::create_dir_all(&partial)?;
        let pom = partial.join("pom.xml");
        std::fs::write(&pom, self.pom)?;
        let mut failure = Error::new("not tried");
        // Twice: a download that breaks off is the ordinary failure here.
        for _ in 0..2 {
            let mut maven = command("mvn")?;
            maven
                .args(["-B", "-q", "-Dstyle.color=never", "-f"])
                .arg(&pom)
                .args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
            maven.arg(format!("-DoutputDirectory={}", partial.display()));
            match run(maven) {
                Ok(_) => {
                    // Complete or not there at all: a half-filled directory has another name.
                    std::fs::rename(&partial, &dir)?;
                    return Ok(dir);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure.of("Maven could not resolve the jars"))
    }
}
