//! The laws of journals on each database. SQLite is in the library's own tests.

use std::sync::Arc;

use semel::conformance::journal::LAWS;
use semel::intent::fingerprint::Recipe;
use semel::saga::sql::{SqlJournal, schema};
use semel::saga::{DefinitionId, Journal, NewSaga, ProtectedJournal, SagaFigures, SagaStarted, Status};
use semel::store::ErrorKind;
use semel::store::protect::{Keys, Protection, SealKey};
use semel::tx::driver::Dialect;
use semel::{Intent, Key, Operation, Scope};
use testkit::services::Service;

use crate::outbox::world::{Mysql, Postgres};

async fn every_law_holds(journal: SqlJournal) {
    let journal: Arc<dyn Journal> = Arc::new(journal);
    for (name, law) in LAWS {
        println!("{name}");
        law(&journal).await;
    }
}

/// The same laws where everything is sealed; and without the key nothing is taken, also of what could be read.
async fn sealed(url: &str) {
    let with = |id: &str| {
        let keys = Keys::new(SealKey::new(id, [7; 32]).unwrap());
        let protection = Protection::none().compress_above(200).seal(keys);
        async move { ProtectedJournal::new(SqlJournal::open(url).await.unwrap(), protection) }
    };
    let journal: Arc<dyn Journal> = Arc::new(with("2026-11").await);
    for (name, law) in LAWS {
        println!("sealed: {name}");
        law(&journal).await;
    }
    let plain = SqlJournal::open(url).await.unwrap();
    let (definition, name) = (DefinitionId { name: "sealed".to_owned(), version: 1 }, "sealed".to_owned());
    let saga = |key: &str| {
        let intent =
            Intent::new(Scope::single_tenant(), Operation::new("sealed").unwrap(), Key::new(key).unwrap());
        NewSaga {
            intent,
            fingerprint: Recipe::default().value(&1).unwrap(),
            name: name.clone(),
            version: 1,
            input: "\"Jane\"".into(),
            deadline_ms: None,
            worker: None,
        }
    };
    let before = plain.figures(0).await.unwrap().unwrap();
    let SagaStarted::New { number, .. } = journal.start(saga("one")).await.unwrap() else { panic!("new") };
    plain.start(saga("two")).await.unwrap();
    let row = plain.look(number).await.unwrap().unwrap().row;
    let other: Arc<dyn Journal> = Arc::new(with("other").await);
    for journal in [Arc::new(plain.clone()) as Arc<dyn Journal>, other] {
        let worker = journal.join(60_000).await.unwrap();
        let refused = journal.take(worker, std::slice::from_ref(&definition), 10).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Misconfigured);
        assert!(refused.to_string().contains(&format!("saga {}", number.0)), "{refused}");
        assert!(journal.owned(worker).await.unwrap().is_empty(), "neither of them");
        journal.leave(worker).await.unwrap();
    }
    assert_eq!(plain.look(number).await.unwrap().unwrap().row, row);
    // They are counted: open, and due without anybody who takes them.
    let figures = plain.figures(0).await.unwrap().unwrap();
    let running = |of: &SagaFigures| of.open.iter().find(|(status, _)| *status == Status::Running).unwrap().1;
    assert_eq!(running(&figures), running(&before) + 2);
    let due = |of: &SagaFigures| of.overdue.iter().find(|(of, _)| *of == definition).map(|(_, sagas)| *sagas);
    assert_eq!((due(&figures), due(&before)), (Some(2), None));
    assert_eq!(due(&plain.figures(3_600_000).await.unwrap().unwrap()), None, "not for an hour");
    let worker = journal.join(60_000).await.unwrap();
    assert_eq!(journal.take(worker, &[definition], 10).await.unwrap().len(), 2);
    assert_eq!(&journal.load(number).await.unwrap().unwrap().record.input[..], b"\"Jane\"");
    // Its worker is gone: left alone at once, and taken over by the next.
    journal.leave(worker).await.unwrap();
    let next = journal.join(60_000).await.unwrap();
    let of = DefinitionId { name: "sealed".to_owned(), version: 1 };
    let taken = journal.take_readable(next, &[of], 10, Arc::new(|_, _| Ok(()))).await.unwrap();
    assert!(taken.len() == 2 && taken.iter().all(|taken| taken.taken_over), "{taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_law_holds() {
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    every_law_holds(SqlJournal::open(&world.url()).await.unwrap()).await;
    world.end().await;
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    sealed(&world.url()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_law_holds_over_sqlx() {
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    let journal = SqlJournal::open(&world.url()).await.unwrap();
    every_law_holds(journal.steps_over(world.pool(4).await).await.unwrap()).await;
    world.end().await;
}

async fn on(server: Service) {
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    every_law_holds(SqlJournal::open(&world.url()).await.unwrap()).await;
    world.end().await;
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    sealed(&world.url()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_every_law_holds() {
    on(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_every_law_holds() {
    on(Service::Mysql).await;
}
