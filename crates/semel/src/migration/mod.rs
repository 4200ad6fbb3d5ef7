//! Creates and upgrades semel's tables: a store's, the outbox, the inbox.
//!
//! | file | what it decides |
//! |---|---|
//! | `versions` | with which versions of its tables a build works, and which steps lead from one to another |
//! | `postgres`, `mysql`, `sqlite` | which version is there, and how the steps are run: once, without a long lock |

use crate::store::{ErrorKind, Fate, Migrated, StoreError};
use crate::tx::driver::Dialect;

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod versions;

#[cfg(feature = "sqlite")]
pub(crate) use versions::Misfit;
pub use versions::{MigrationKind, MigrationPlan, MigrationStep};
pub(crate) use versions::{Upgrade, Versions};

const KNOWN: &str = "use sqlite:PATH, postgres://… or mysql://…";

/// Tables that are migrated together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// What they are, in one word.
    pub(crate) what: &'static str,
    /// The table with the version, created first.
    pub(crate) meta: &'static str,
    /// The table that is created last: its presence shows that all were created.
    pub(crate) last: fn(Dialect) -> &'static str,
    /// Whether creating them may be done again where it stopped half way.
    pub(crate) resumable: bool,
    /// The command that migrates them.
    pub(crate) migrate: &'static str,
    /// The versions of them in that dialect.
    pub(crate) versions: fn(Dialect) -> &'static Versions,
}

/// What is asked of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// What a process does that starts: create or expand, where that is possible without a person.
    Start,
    /// Create or expand.
    Expand,
    /// Also remove what only older builds use.
    Contract,
    /// Only say what would be done: to expand, or to contract.
    Plan { contract: bool },
}

impl Goal {
    pub(crate) fn contracts(self) -> bool {
        matches!(self, Self::Contract | Self::Plan { contract: true })
    }

    pub(crate) fn only_plans(self) -> bool {
        matches!(self, Self::Plan { .. })
    }
}

impl MigrationPlan {
    /// The versions before and after.
    pub(crate) fn migrated(&self) -> Migrated {
        Migrated { before: self.before, now: self.after }
    }
}

impl Tables {
    /// Creates, upgrades or only plans. Of several processes that do so at once, one does it. PostgreSQL runs `more` in
    /// the same transaction; elsewhere it is ignored.
    #[cfg_attr(not(feature = "postgres"), allow(unused_variables))]
    pub(crate) async fn migrate(
        &self,
        url: &str,
        goal: Goal,
        more: &str,
    ) -> Result<MigrationPlan, StoreError> {
        match self.dialect(url)? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => postgres::migrate(self, url, goal, more).await,
            #[cfg(feature = "mysql")]
            Dialect::Mysql => mysql::migrate(self, url, goal).await,
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => sqlite::migrate(self, url, goal).await,
            #[allow(unreachable_patterns)]
            _ => Err(wrong(format!("no {} is known here; {KNOWN}", self.what))),
        }
    }

    /// The kind of database a URL names, if these tables can be in it.
    pub(crate) fn dialect(&self, url: &str) -> Result<Dialect, StoreError> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(wrong(format!("{url:?} is not a database URL; {KNOWN}")));
        };
        let (dialect, feature, built) = match scheme {
            "postgres" | "postgresql" => (Dialect::Postgres, "postgres", cfg!(feature = "postgres")),
            "mysql" | "mariadb" => (Dialect::Mysql, "mysql", cfg!(feature = "mysql")),
            "sqlite" if rest.trim_start_matches("//").is_empty() => {
                return Err(wrong("sqlite: needs a path, such as sqlite:app.db".to_owned()));
            }
            "sqlite" => (Dialect::Sqlite, "sqlite", cfg!(feature = "sqlite")),
            _ => return Err(wrong(format!("no {} is known for {scheme:?}; {KNOWN}", self.what))),
        };
        if built {
            Ok(dialect)
        } else {
            let what = self.what;
            Err(wrong(format!("this build has no {what} for {scheme}:; build with the feature `{feature}`")))
        }
    }

    /// The version of the tables that were found, 0 if there are none; an error if some of them are missing.
    fn found_version(
        &self,
        dialect: Dialect,
        version: Option<i64>,
        whole: bool,
        location: &str,
    ) -> Result<u32, String> {
        // First: a newer semel may have other tables.
        if let Some(version) = version.filter(|version| (self.versions)(dialect).is_newer(*version)) {
            self.check(dialect, version, location)?;
        }
        let (what, meta, last) = (self.what, self.meta, (self.last)(dialect));
        let incomplete = |why: String| {
            Err(format!(
                "the {what} in {location} is incomplete: {why}; if it was never used, drop its tables and run `{}` \
                 again, otherwise restore it from a backup",
                self.migrate
            ))
        };
        match (version, whole) {
            (None, false) => Ok(0),
            (None, true) if self.resumable => Ok(0),
            (None, true) => incomplete(format!("there is a table {last} but no version in {meta}")),
            (Some(_), false) => incomplete(format!("there is a table {meta} but no {last}")),
            (Some(version), true) => match u32::try_from(version) {
                Ok(version @ 1..) => Ok(version),
                _ => incomplete(format!("{meta} has the version {version}")),
            },
        }
    }

    /// Whether this build works with tables of that version; if not, what to do.
    pub(crate) fn check(&self, dialect: Dialect, found: i64, location: &str) -> Result<(), String> {
        let versions = (self.versions)(dialect);
        let found = u32::try_from(found).unwrap_or(if found > 0 { u32::MAX } else { 0 });
        versions
            .check(found)
            .map_err(|misfit| versions.explain(misfit, found, self.what, location, self.migrate))
    }

    /// What is to be done with tables of that version.
    fn plan(
        &self,
        dialect: Dialect,
        found: u32,
        goal: Goal,
        location: &str,
    ) -> Result<MigrationPlan, String> {
        let versions = (self.versions)(dialect);
        let planned = match goal {
            Goal::Start => versions.plan_at_start(found),
            _ => versions.plan(found, goal.contracts()),
        };
        planned.map_err(|misfit| versions.explain(misfit, found, self.what, location, self.migrate))
    }
}

/// The file a `sqlite:` URL names.
#[cfg(feature = "sqlite")]
pub fn sqlite_path(url: &str) -> &std::path::Path {
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    std::path::Path::new(path.strip_prefix("//").unwrap_or(path))
}

pub(crate) fn wrong(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Tables = Tables {
        what: "inbox",
        meta: "semel_inbox_meta",
        last: |_| "semel_inbox",
        resumable: false,
        migrate: "semel migrate --inbox URL",
        versions: |_| &Versions { create: "ab", upgrades: &[Upgrade::Expand("b")], oldest: 2 },
    };

    #[test]
    fn only_what_is_whole_or_not_there_at_all_is_taken() {
        let found_version = |version, whole| TWO.found_version(Dialect::Sqlite, version, whole, "here");
        assert_eq!(found_version(None, false), Ok(0));
        assert_eq!(found_version(Some(1), true), Ok(1));
        assert_eq!(found_version(Some(2), true), Ok(2));
        for (version, whole, what) in [
            (None, true, "no version in semel_inbox_meta"),
            (Some(1), false, "no semel_inbox;"),
            (Some(0), true, "0"),
        ] {
            let message = found_version(version, whole).unwrap_err();
            assert!(message.contains("is incomplete") && message.contains(what), "{message}");
        }
        let newer = found_version(Some(9), false).unwrap_err();
        assert!(newer.contains("newer semel"), "{newer}");
        let resumable = Tables { resumable: true, ..TWO };
        assert_eq!(resumable.found_version(Dialect::Mysql, None, true, "here"), Ok(0));
    }

    #[test]
    fn a_version_that_is_too_old_or_too_new_is_refused_with_what_to_do() {
        let check = |found| TWO.check(Dialect::Sqlite, found, "here");
        assert_eq!((check(2), check(3)), (Ok(()), Ok(())));
        assert!(check(1).unwrap_err().contains("run `semel migrate --inbox URL`"));
        assert!(check(4).unwrap_err().contains("newer semel"));
        assert!(TWO.plan(Dialect::Sqlite, 4, Goal::Expand, "here").unwrap_err().contains("newer semel"));
        assert_eq!(TWO.plan(Dialect::Sqlite, 1, Goal::Expand, "here").unwrap().steps[0].sql, "b");
    }

    /// What 0.1.0 has. A release adds at most one expand, or the release before it would not work with its tables.
    #[test]
    fn the_release_before_works_with_what_this_one_creates() {
        for dialect in [Dialect::Postgres, Dialect::Mysql, Dialect::Sqlite] {
            for (tables, released) in [(crate::outbox::TABLES, 1), (crate::inbox::TABLES, 3)] {
                let current = (tables.versions)(dialect).current();
                assert!((released..=released + 1).contains(&current), "{} {current}", tables.what);
                assert_eq!((tables.versions)(dialect).check(released), Ok(()));
            }
        }
    }

    #[test]
    fn they_are_in_a_database() {
        for url in ["redis://h", "app.db", "sqlite:", "sqlite://", "memory:"] {
            assert_eq!(TWO.dialect(url).unwrap_err().kind(), ErrorKind::Misconfigured, "{url}");
        }
        #[cfg(feature = "sqlite")]
        assert_eq!(sqlite_path("sqlite:a.db"), sqlite_path("sqlite://a.db"));
    }
}
