//! The seam: what goes in comes back, in the caller's transaction and nowhere else, and errors are classified.

use semel::tx::driver::{DriverErrorKind, Rows, Statement, Tx, Value};

use crate::tx::world::World;

async fn run<X: Tx>(tx: &mut X, text: &'static str, values: Vec<Value>) -> Rows {
    tx.run(Statement { text, values }).await.unwrap()
}

async fn everything_comes_back<X: Tx>(tx: &mut X) {
    let values = vec![
        Value::from(i64::MIN),
        Value::from(&[0u8, 255][..]),
        Value::from("d'\u{e4}\0".replace('\0', "")),
        Value::Int(None),
        Value::Bytes(None),
        Value::Text(None),
    ];
    let back =
        run(tx, "SELECT $1::bigint, $2::bytea, $3::text, $4::bigint, $5::bytea, $6::text", values.clone());
    assert_eq!(back.await.rows[0].0, values);
    let small = run(tx, "SELECT 1::smallint, 2::integer, true, NULL::integer", vec![]).await;
    assert_eq!(small.rows[0].0, [1.into(), 2.into(), 1.into(), Value::Int(None)]);
    assert_eq!(run(tx, "INSERT INTO seen VALUES ($1), ($2)", vec![1.into(), 2.into()]).await.changed, 2);
    assert_eq!(run(tx, "SELECT n FROM seen ORDER BY n", vec![]).await.rows.len(), 2);
}

async fn kind_of<X: Tx>(tx: &mut X, text: &'static str) -> DriverErrorKind {
    tx.run(Statement { text, values: vec![] }).await.unwrap_err().kind()
}

#[tokio::test]
async fn statements_run_in_the_callers_transaction_whatever_the_driver() {
    let Some(world) = World::new().await else { return };
    world.connect().await.batch_execute("CREATE TABLE seen (n bigint PRIMARY KEY)").await.unwrap();
    let pool = world.pool(2).await;
    // Spawned: the futures have to be `Send`, or no web framework takes a handler that awaits them.
    let sqlx = pool.clone();
    tokio::spawn(async move {
        let mut tx = sqlx.begin().await.unwrap();
        everything_comes_back(&mut tx).await;
        tx.rollback().await.unwrap();
        let mut connection = sqlx.acquire().await.unwrap();
        assert!(!Tx::is_open(&*connection));
        let mut tx = sqlx::Connection::begin(&mut *connection).await.unwrap();
        everything_comes_back(&mut *tx).await;
        assert!(Tx::is_open(&*tx));
        tx.rollback().await.unwrap();
    })
    .await
    .unwrap();
    let mut client = world.connect().await;
    tokio::spawn(async move {
        let mut tx = client.transaction().await.unwrap();
        everything_comes_back(&mut tx).await;
        tx.rollback().await.unwrap();
    })
    .await
    .unwrap();
    assert_eq!(world.count("SELECT count(*) FROM seen").await, 0);
    pool.close().await;
    world.end().await;
}

async fn errors_are_classified<X: Tx>(tx: &mut X) {
    assert_eq!(kind_of(tx, "SELECT * FROM no_such_table").await, DriverErrorKind::NoTables);
    assert_eq!(kind_of(tx, "SELECT 1").await, DriverErrorKind::Aborted);
}

#[tokio::test]
async fn errors_say_what_can_be_done() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let mut client = world.connect().await;
    errors_are_classified(&mut pool.begin().await.unwrap()).await;
    errors_are_classified(&mut client.transaction().await.unwrap()).await;
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(
        kind_of(&mut tx, "SELECT pg_terminate_backend(pg_backend_pid())").await,
        DriverErrorKind::Lost
    );
    drop(tx);
    let mut tx = client.transaction().await.unwrap();
    assert_eq!(
        kind_of(&mut tx, "SELECT pg_terminate_backend(pg_backend_pid())").await,
        DriverErrorKind::Lost
    );
    assert_eq!(kind_of(&mut tx, "SELECT 1").await, DriverErrorKind::Lost);
    drop(tx);
    pool.close().await;
    world.end().await;
}
