//! Stored journals against today's code: no call is made, nothing is written, and no clock runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ask_again::{ChangedStep, ask_again};
use crate::saga::definition::{AnyDefinition, Definition};
use crate::saga::history::History;
use crate::saga::journal::Loaded;

/// Most journals that one folder may have.
const FILES_MAX: usize = 100_000;

/// Runs the code of today's sagas on the journals in a folder: JSON files, each one saga, written by
/// `semel saga export` or [`Loaded::export`]. Finished steps answer from the journal, and nothing is called. Code that asks
/// for something else than a journal has would park such a saga as `changed`: in CI this is seen before the deploy.
///
/// `app` is what [`Saga::app`](crate::saga::Saga::app) gives the code: its settings.
///
#[cfg_attr(feature = "macros", doc = "```")]
#[cfg_attr(not(feature = "macros"), doc = "```ignore")]
/// use semel::saga::test::replay;
/// use semel::saga::{At, Saga, SagaResult, StepResult};
///
/// #[semel::step(keyed, leaves_nothing)]
/// async fn price(_: At<'_, ()>, sku: &String) -> StepResult<u32> { Ok(sku.len() as u32) }
///
/// #[semel::saga(version = 2)]
/// async fn quote(s: Saga<()>, sku: String) -> SagaResult<u32> {
///     if s.since(2) {
///         s.run(price, "shipping".to_owned()).await?; // sagas of version 1 go on without it
///     }
///     s.run(price, sku).await
/// }
/// # let journals = tempfile::tempdir()?;
/// # std::fs::write(journals.path().join("quote-7.json"), r#"{"semel_saga":1,"number":7,"name":"quote","version":1,
/// #   "scope":"acme","operation":"quote","key":"order-1001","status":"completed","reason":null,"cause":null,"epoch":1,
/// #   "created_at":1,"deadline":null,"input":{"json":"book"},"outcome":{"json":4},"entries":[
/// #   {"seq":0,"kind":"begin","step":"price","nth":0,"op":"forward","attempt":1,"epoch":1,"at":2,"safe_until":null,
/// #    "input":{"json":"book"},"body":null},
/// #   {"seq":1,"kind":"done","step":"price","nth":0,"op":"forward","attempt":1,"epoch":1,"at":3,"safe_until":null,
/// #    "input":null,"body":{"json":4}}]}"#)?;
///
/// let report = replay(journals.path(), ()).saga(quote).assert();
/// assert_eq!(report.files.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replay<App: Send + Sync + 'static>(journals: impl AsRef<Path>, app: App) -> Replay<App> {
    Replay {
        journals: journals.as_ref().to_owned(),
        app: Arc::new(app),
        definitions: BTreeMap::new(),
        wrong: Vec::new(),
    }
}

/// Today's sagas, before they run on stored journals; made by [`replay`].
#[must_use = "call `assert` or `run`"]
pub struct Replay<App> {
    journals: PathBuf,
    app: Arc<App>,
    definitions: BTreeMap<String, Arc<dyn AnyDefinition<App>>>,
    wrong: Vec<String>,
}

impl<App> fmt::Debug for Replay<App> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("journals", &self.journals).finish_non_exhaustive()
    }
}

/// What became of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReplayedFile {
    /// The file's name.
    pub file: String,
    /// What the code did.
    pub result: ReplayedAs,
}

/// What the code does on a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplayedAs {
    /// It asks for what the journal has.
    Same,
    /// It asks for something else: such a saga would be parked as `changed`.
    Changed(ChangedStep),
    /// No saga of this name was given, or only an older version: no worker would take it.
    NoDefinition {
        /// The saga's name.
        name: String,
        /// The version it began with.
        version: u32,
    },
    /// The file cannot be read.
    Unreadable(String),
}

/// What became of all files.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReplayReport {
    /// By file name.
    pub files: Vec<ReplayedFile>,
}

impl ReplayReport {
    /// Those that today's code does not go on with.
    pub fn failed(&self) -> impl Iterator<Item = &ReplayedFile> {
        self.files.iter().filter(|file| file.result != ReplayedAs::Same)
    }
}

impl fmt::Display for ReplayedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file)?;
        match &self.result {
            ReplayedAs::Same => f.write_str("same"),
            ReplayedAs::Changed(changed) => write!(f, "changed: {changed}"),
            ReplayedAs::NoDefinition { name, version } => {
                write!(f, "no definition of {name} version {version} was given, so nothing goes on with it")
            }
            ReplayedAs::Unreadable(why) => write!(f, "cannot be read: {why}"),
        }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed().count();
        write!(f, "{} journals, {failed} of them with another result", self.files.len())?;
        self.failed().try_for_each(|file| write!(f, "\n{file}"))
    }
}

impl<App: Send + Sync + 'static> Replay<App> {
    /// One of today's sagas.
    pub fn saga<In, Out>(mut self, saga: impl Into<Definition<App, In, Out>>) -> Self
    where
        In: Serialize + DeserializeOwned + Send + 'static,
        Out: Serialize + DeserializeOwned + Send + 'static,
    {
        let definition = saga.into();
        if let Err(error) = definition.check() {
            self.wrong.push(error.to_string());
        }
        self.definitions.insert(definition.name().to_owned(), Arc::new(definition));
        self
    }

    /// Runs the code on all of them.
    ///
    /// # Panics
    ///
    /// When one of them is not the same, or there is none.
    pub fn assert(self) -> ReplayReport {
        match self.run() {
            Ok(report) if report.failed().next().is_none() => report,
            Ok(report) => panic!("{report}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs the code on all of them. An error: the folder cannot be read, or has no journals.
    pub fn run(self) -> std::io::Result<ReplayReport> {
        if let Some(wrong) = self.wrong.first() {
            return Err(std::io::Error::other(wrong.clone()));
        }
        let journals = self.journals.display().to_string();
        let about = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{journals}: {error}"));
        let mut files = Vec::new();
        for file in std::fs::read_dir(&self.journals).map_err(about)? {
            let path = file.map_err(about)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                files.push(path);
            }
            if files.len() > FILES_MAX {
                let message = format!("{journals} has more than {FILES_MAX} journals; split the folder");
                return Err(std::io::Error::other(message));
            }
        }
        if files.is_empty() {
            let message = format!("{journals} has no .json file; `semel saga export` writes one");
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, message));
        }
        files.sort();
        // Code that sleeps by itself finds a clock, which never runs. The caller may be in a runtime already.
        let replayed = std::thread::scope(|scope| scope.spawn(|| self.all(&files)).join());
        match replayed {
            Ok(files) => files.map(|files| ReplayReport { files }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn all(&self, files: &[PathBuf]) -> std::io::Result<Vec<ReplayedFile>> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        let _entered = runtime.enter();
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let replayed = files.iter().map(|path| ReplayedFile { file: name(path), result: self.one(path) });
        Ok(replayed.collect())
    }

    fn one(&self, path: &Path) -> ReplayedAs {
        let loaded = match std::fs::read(path).map_err(|error| error.to_string()) {
            Ok(bytes) => Loaded::import(&bytes).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let Loaded { record, entries, .. } = match loaded {
            Ok(loaded) => loaded,
            Err(why) => return ReplayedAs::Unreadable(why),
        };
        let definition = self.definitions.get(&record.name);
        let Some(definition) = definition.filter(|definition| record.version <= definition.version()) else {
            return ReplayedAs::NoDefinition { name: record.name, version: record.version };
        };
        match ask_again(&**definition, Arc::clone(&self.app), &record, &History::new(entries)) {
            Ok(_) => ReplayedAs::Same,
            Err(changed) => ReplayedAs::Changed(changed),
        }
    }
}
