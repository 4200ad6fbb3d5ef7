//! What others run instead, on a Java machine: a harness of ours, one source file, over jars of Maven Central.
//!
//! It is compiled before it runs: a machine that compiles it by itself has the compiler in its memory too.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::services;

use crate::{Directory, Failed};

/// A harness that can be run.
pub(crate) struct Harness {
    class: &'static str,
    class_path: String,
    directory: Directory,
}

impl Harness {
    /// Needs a JDK and the jars. Where they cannot be had it is left out, and that is said.
    pub(crate) fn make(
        class: &'static str,
        source: &str,
        jars: fn() -> services::Result<String>,
    ) -> Result<Option<Self>, Failed> {
        let jars = match found(jars) {
            Ok(jars) => jars,
            Err(why) => {
                eprintln!("LEFT OUT: {class}: {why}");
                return Ok(None);
            }
        };
        let directory = Directory::new()?;
        let file = directory.0.join(format!("{class}.java"));
        std::fs::write(&file, source)?;
        let classes = directory.0.display().to_string();
        let compiled = Command::new("javac").args(["-cp", &jars, "-d", &classes]).arg(file).output()?;
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr);
            return Err(format!("{class}.java cannot be compiled: {why}").into());
        }
        Ok(Some(Self { class, class_path: format!("{jars}:{classes}"), directory }))
    }

    /// The Java machine with these options; arguments of the harness are yet to come.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut java = Command::new("java");
        java.args(options).args(["-cp", &self.class_path, self.class]);
        java
    }

    /// A file of settings.
    pub(crate) fn write(&self, name: &str, settings: &[(&str, &str)]) -> Result<PathBuf, Failed> {
        let text = settings.iter().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name}={value}");
            text
        });
        let path = self.directory.0.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Where it may leave what it likes; gone with the harness.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory.0
    }
}

fn found(jars: fn() -> services::Result<String>) -> Result<String, String> {
    let javac = Command::new("javac").arg("-version").output();
    if !javac.is_ok_and(|output| output.status.success()) {
        return Err("there is no JDK (javac); install default-jdk-headless".to_owned());
    }
    jars().map_err(|error| error.to_string())
}
