//! The tables: made once by the process that comes first, known again, refused when they are somebody else's.

use semel::store::postgres::{PostgresStore, schema};
use semel::store::{ErrorKind, Migrated, Store, migrate, open_existing};

use super::place::Place;
use super::work::*;

#[tokio::test(flavor = "multi_thread")]
async fn eight_that_start_at_once_make_the_tables_once() {
    let Some(place) = Place::take() else { return };
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let url = place.url();
            tokio::spawn(async move { migrate(&url).await.unwrap() })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        let migrated = soon(task).await.unwrap();
        assert_eq!(migrated.now, schema::VERSION);
        made += usize::from(migrated.before == 0);
    }
    assert_eq!(made, 1);
    let again = migrate(&place.url()).await.unwrap();
    assert_eq!(again, Migrated { before: schema::VERSION, now: schema::VERSION });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_schema_makes_the_same_tables() {
    let Some(place) = Place::take() else { return };
    let person = place.client().await;
    person.batch_execute(semel::store::schema(&place.url()).unwrap()).await.unwrap();
    assert_eq!(migrate(&place.url()).await.unwrap().before, schema::VERSION);
    run(&open_existing(&place.url()).await.unwrap(), "printed").await;
    let seen = person.query_one("SELECT state, operation, key FROM semel_intents", &[]).await.unwrap();
    let seen: (&str, &str, &str) = (seen.get(0), seen.get(1), seen.get(2));
    assert_eq!(seen, ("in_progress", "pay", "printed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_or_not_ours_is_refused_with_a_reason() {
    let Some(place) = Place::take() else { return };
    let refusal = |url: String| async move {
        let error = open_existing(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        error.to_string()
    };
    assert!(refusal(place.url()).await.contains("semel migrate"));
    assert!(
        refusal(place.server.replace("/postgres", "/nowhere").replace("//nowhere", "//postgres"))
            .await
            .contains("no such database")
    );

    let store = place.store().await;
    let lineage = store.lineage().clone();
    assert!(
        lineage.store.len() == 36 && lineage.system.is_some() && lineage.timeline.is_some(),
        "{lineage:?}"
    );
    store.close().await;
    assert_eq!(place.store().await.lineage(), &lineage);

    let person = place.client().await;
    person.batch_execute("UPDATE semel_meta SET version = 99").await.unwrap();
    let text = PostgresStore::open(&place.url()).await.unwrap_err().to_string();
    assert!(text.contains("newer semel") && text.contains("99"), "{text}");
    assert!(refusal(place.url()).await.contains("newer semel"));

    person.batch_execute("DROP TABLE semel_meta").await.unwrap();
    assert!(refusal(place.url()).await.contains("no version in semel_meta"));
    let error = migrate(&place.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_lost_under_a_running_store_are_an_error_that_says_so() {
    let Some(place) = Place::take() else { return };
    let store = place.store().await;
    run(&store, "kept").await;
    place.client().await.batch_execute("DROP TABLE semel_intent CASCADE").await.unwrap();
    let error = soon(store.claim(claim("lost-table"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("semel migrate"), "{error}");
}
