//! Making the outbox's tables in a database that a URL names.

use crate::store::{ErrorKind, Fate, Migrated, StoreError};
use crate::tx::driver::Dialect;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// The version of the tables that this build reads and writes.
pub const VERSION: u32 = 1;

const KNOWN: &str = "use sqlite:PATH, postgres://… or mysql://…";

/// The outbox's tables in the database a URL names: made if they are not there, otherwise left as they are. Of several
/// that do so at once, one does it.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// let url = format!("sqlite:{}", dir.path().join("app.db").display());
/// assert_eq!(semel::outbox::migrate(&url).await?.before, 0);
/// assert_eq!(semel::outbox::migrate(&url).await?.before, 1);
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    let before = match dialect(url)? {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => postgres::bring_up(url).await?,
        #[cfg(feature = "mysql")]
        Dialect::Mysql => mysql::bring_up(url).await?,
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => sqlite::bring_up(url).await?,
        #[allow(unreachable_patterns)]
        _ => 0,
    };
    Ok(Migrated { before, now: VERSION })
}

/// Which kind of database a URL names, if an outbox can be in it.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
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
        _ => return Err(wrong(format!("no outbox is known for {scheme:?}; {KNOWN}"))),
    };
    if built {
        Ok(dialect)
    } else {
        Err(wrong(format!("this build has no outbox for {scheme}:; build with the feature `{feature}`")))
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

/// What was found where the tables should be.
#[cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
fn standing(version: Option<i64>, whole: bool, place: &str) -> Result<u32, StoreError> {
    match (version, whole) {
        (None, false) => Ok(0),
        (Some(version), true) if version == i64::from(VERSION) => Ok(VERSION),
        (Some(version), _) if version > i64::from(VERSION) => Err(wrong(format!(
            "the outbox in {place} was made by a newer semel (it has version {version}, this build knows {VERSION}); \
             upgrade semel"
        ))),
        _ => Err(wrong(format!(
            "the outbox in {place} is not whole: some of its tables are missing; if it was never used, drop what is \
             there of semel_outbox… and run this again, else restore it from a backup"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_whole_or_not_there_at_all_is_taken() {
        assert_eq!(standing(None, false, "here").unwrap(), 0);
        assert_eq!(standing(Some(1), true, "here").unwrap(), 1);
        assert!(standing(Some(2), true, "here").unwrap_err().to_string().contains("newer semel"));
        for (version, whole) in [(None, true), (Some(1), false), (Some(0), true)] {
            let told = standing(version, whole, "here").unwrap_err().to_string();
            assert!(told.contains("is not whole"), "{told}");
        }
    }

    #[test]
    fn an_outbox_is_in_a_database() {
        for url in ["redis://h", "app.db", "sqlite:", "sqlite://", "memory:"] {
            assert_eq!(dialect(url).unwrap_err().kind(), ErrorKind::Misconfigured, "{url}");
        }
        #[cfg(feature = "sqlite")]
        assert_eq!(sqlite_path("sqlite:a.db"), sqlite_path("sqlite://a.db"));
    }
}
