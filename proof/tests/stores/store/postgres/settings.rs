//! What a server is set to is asked, not assumed.

use semel::store::postgres::PostgresStore;
use semel::store::{ErrorKind, Fate, Store};

use super::place::{PATIENT, Place, apart, clear_away};
use super::work::*;

/// A role with settings of its own; goes away with this.
struct Role<'a>(&'a Place);

impl<'a> Role<'a> {
    fn with(place: &'a Place, settings: &[&str]) -> Self {
        let name = &place.schema;
        let mut sql = format!("CREATE ROLE {name} LOGIN; GRANT ALL ON SCHEMA {name} TO {name}");
        for setting in settings {
            sql = format!("{sql}; ALTER ROLE {name} SET {setting}");
        }
        apart(&place.server, sql);
        Self(place)
    }

    fn url(&self) -> String {
        format!("{}&schema={}", self.url_of_its_own(), self.0.schema)
    }

    /// With the schemas the role itself is set to.
    fn url_of_its_own(&self) -> String {
        let (_, rest) = self.0.server.rsplit_once('@').unwrap();
        format!("postgres://{}@{rest}?{PATIENT}", self.0.schema)
    }
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        let name = &self.0.schema;
        clear_away(&self.0.server, format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_server_has_no_warnings() {
    let Some(place) = Place::take() else { return };
    let store = place.store().await;
    let settings = store.settings();
    assert_eq!(settings.warnings, [] as [&str; 0]);
    assert!(settings.durable && !settings.pooled && !settings.version.is_empty(), "{settings:?}");
    assert!(store.capabilities().durable && store.capabilities().shared);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_role_that_would_break_promises_are_overruled() {
    let Some(place) = Place::take() else { return };
    let role = Role::with(
        &place,
        &[
            "synchronous_commit = off",
            "default_transaction_isolation = 'serializable'",
            "default_transaction_read_only = on",
        ],
    );
    let store = PostgresStore::open(&role.url()).await.unwrap();
    let settings = store.settings();
    assert!(settings.warnings[0].contains("synchronous_commit") && settings.durable, "{settings:?}");
    let ticket = run(&store, "overruled").await;
    soon(store.finish(ticket, finish())).await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_user_can_do_everything_and_knows_the_lineage() {
    let Some(place) = Place::take() else { return };
    let role = Role::with(&place, &[]);
    let store = PostgresStore::open(&role.url()).await.unwrap();
    let ticket = run(&store, "plain").await;
    soon(store.finish(ticket, finish())).await.unwrap();
    assert_eq!(soon(store.sweep(10)).await.unwrap(), 0);
    assert_eq!(store.lineage().store.len(), 36);
    store.close().await;
}

/// Functions of these names in the role's own schema answer in the place of the server's.
#[tokio::test(flavor = "multi_thread")]
async fn a_lineage_that_cannot_be_read_is_an_error_and_not_another_one() {
    let Some(place) = Place::take() else { return };
    let name = &place.schema;
    let role = Role::with(&place, &[&format!("search_path = {name}, pg_catalog")]);
    let failing = async |sqlstate: &str| {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION {name}.pg_control_system() RETURNS TABLE (system_identifier bigint)
             LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$"
        );
        place.client().await.batch_execute(&sql).await.unwrap();
    };
    let url = role.url_of_its_own();
    // A user without that privilege goes without that part of it.
    failing("42501").await;
    let store = PostgresStore::open(&url).await.unwrap();
    assert_eq!(store.lineage().system, None);
    let before = soon(Store::lineage(&store)).await.unwrap();
    assert!(before.is_some());
    for sqlstate in ["53200", "57014", "42883"] {
        failing(sqlstate).await;
        let error = soon(Store::lineage(&store)).await.expect_err("nothing was answered");
        assert_eq!(error.fate(), Fate::NotApplied, "{error}");
    }
    failing("42501").await;
    assert_eq!(soon(Store::lineage(&store)).await.unwrap(), before);
    store.close().await;
}

/// A standby says `pg_is_in_recovery()`; here a function of that name says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_unavailable_and_says_so() {
    let Some(place) = Place::take() else { return };
    let name = &place.schema;
    let role = Role::with(&place, &[&format!("search_path = {name}, pg_catalog")]);
    let sql = "CREATE FUNCTION pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'";
    place.client().await.batch_execute(sql).await.unwrap();
    let url = role.url_of_its_own();
    let error = PostgresStore::open(&url).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
    assert!(error.to_string().contains("standby"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_privileges_gets_an_error_that_says_so() {
    let Some(place) = Place::take() else { return };
    let owner = place.store().await;
    run(&owner, "owners").await;
    let role = Role::with(&place, &[]);
    // It sees the schema, but the tables are the owner's.
    let opened = PostgresStore::open(&role.url()).await;
    let error = match opened {
        Err(error) => error,
        Ok(store) => soon(store.claim(claim("mine"))).await.unwrap_err(),
    };
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Misconfigured, Fate::NotApplied), "{error}");
    assert!(error.to_string().contains("may not"), "{error}");
}
