//! semel's tables in the caller's database: the outbox, the inbox. Creates them, or upgrades them to the version that
//! this build knows.

use crate::store::{ErrorKind, Fate, Migrated, StoreError};
use crate::tx::driver::Dialect;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

const KNOWN: &str = "use sqlite:PATH, postgres://… or mysql://…";

/// Tables that are migrated together.
#[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    /// What they are, in one word.
    pub(crate) what: &'static str,
    /// The table with the version, created first.
    pub(crate) meta: &'static str,
    /// The table that the first step creates last: its presence shows that the step completed.
    pub(crate) last: fn(Dialect) -> &'static str,
    /// The steps, one from each version to the next.
    pub(crate) steps: fn(Dialect) -> &'static [&'static str],
}

impl Tables {
    /// Creates or upgrades them. Of several processes that do so at once, one does it.
    pub(crate) async fn migrate(&self, url: &str) -> Result<Migrated, StoreError> {
        self.migrate_and(url, "").await
    }

    /// The same, and runs `more` in the same transaction. PostgreSQL only: it is ignored elsewhere.
    #[cfg_attr(not(feature = "postgres"), allow(unused_variables))]
    pub(crate) async fn migrate_and(&self, url: &str, more: &str) -> Result<Migrated, StoreError> {
        let dialect = self.dialect(url)?;
        let before = match dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => postgres::bring_up(self, url, more).await?,
            #[cfg(feature = "mysql")]
            Dialect::Mysql => mysql::bring_up(self, url).await?,
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => sqlite::bring_up(self, url).await?,
            #[allow(unreachable_patterns)]
            _ => 0,
        };
        Ok(Migrated { before, now: self.version(dialect) })
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

    /// The version that this build knows.
    fn version(&self, dialect: Dialect) -> u32 {
        u32::try_from((self.steps)(dialect).len()).unwrap_or(u32::MAX)
    }

    /// The version of the tables that were found, 0 if there are none; an error if they are unusable.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
    fn found_version(
        &self,
        dialect: Dialect,
        version: Option<i64>,
        whole: bool,
        location: &str,
    ) -> Result<u32, StoreError> {
        let (what, meta, known) = (self.what, self.meta, self.version(dialect));
        match (version, whole) {
            (None, false) => Ok(0),
            (Some(version), _) if version > i64::from(known) => Err(wrong(format!(
                "the {what} in {location} was created by a newer semel (it has version {version}, this build knows \
                 {known}); upgrade semel"
            ))),
            (Some(version @ 1..), true) => Ok(u32::try_from(version).unwrap_or(known)),
            _ => Err(wrong(format!(
                "the {what} in {location} is incomplete: some of its tables are missing; if it was never used, drop \
                 the tables {}… and run this again, otherwise restore it from a backup",
                meta.trim_end_matches("_meta")
            ))),
        }
    }

    /// The steps to run on tables of that version.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
    fn missing(&self, dialect: Dialect, version: u32) -> &'static [&'static str] {
        (self.steps)(dialect).get(version as usize..).unwrap_or_default()
    }
}

/// The file a `sqlite:` URL names.
#[cfg(feature = "sqlite")]
pub fn sqlite_path(url: &str) -> &std::path::Path {
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    std::path::Path::new(path.strip_prefix("//").unwrap_or(path))
}

fn wrong(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Tables =
        Tables { what: "inbox", meta: "semel_inbox_meta", last: |_| "semel_inbox", steps: |_| &["a", "b"] };

    #[test]
    fn only_what_is_whole_or_not_there_at_all_is_taken() {
        let found_version = |version, whole| TWO.found_version(Dialect::Sqlite, version, whole, "here");
        assert_eq!(found_version(None, false).unwrap(), 0);
        assert_eq!(found_version(Some(1), true).unwrap(), 1);
        assert_eq!(found_version(Some(2), true).unwrap(), 2);
        assert!(found_version(Some(3), true).unwrap_err().to_string().contains("newer semel"));
        for (version, whole) in [(None, true), (Some(1), false), (Some(0), true)] {
            let message = found_version(version, whole).unwrap_err().to_string();
            assert!(message.contains("is incomplete") && message.contains("semel_inbox…"), "{message}");
        }
    }

    #[test]
    fn an_older_version_is_brought_up_step_by_step() {
        let missing = |version| TWO.missing(Dialect::Sqlite, version);
        assert_eq!(missing(0), ["a", "b"]);
        assert_eq!(missing(1), ["b"]);
        assert!(missing(2).is_empty());
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
