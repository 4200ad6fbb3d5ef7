//! A process is killed at each named point of a transaction, another one retries; the business table judges.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use semel::tx::driver::Dialect;
use semel::{crash, inbox};
use testkit::child::Child;
use testkit::services::Service;

use crate::tx::mysql_world;
use crate::tx::world::World;

const PATIENCE: Duration = Duration::from_secs(60);

const TABLES: &str = "
    CREATE TABLE payment (name TEXT NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE charge (key TEXT PRIMARY KEY, asked INTEGER NOT NULL DEFAULT 1);
";

/// Where the work is done.
enum Place {
    Postgres(World),
    Mysql(mysql_world::World),
    Sqlite(tempfile::TempDir),
}

impl Place {
    async fn postgres() -> Option<Self> {
        let world = World::new().await?;
        let table = "CREATE TABLE charge (key text PRIMARY KEY, asked integer NOT NULL DEFAULT 1)";
        let tables = format!("{table};{}", inbox::schema(Dialect::Postgres));
        world.connect().await.batch_execute(&tables).await.unwrap();
        Some(Self::Postgres(world))
    }

    async fn mysql(server: Service) -> Option<Self> {
        let world = mysql_world::World::new(server).await?;
        let table = "CREATE TABLE charge (`key` VARCHAR(255) PRIMARY KEY, asked INT NOT NULL DEFAULT 1)";
        sqlx::query(table).execute(&world.pool).await.unwrap();
        sqlx::raw_sql(inbox::schema(Dialect::Mysql)).execute(&world.pool).await.unwrap();
        Some(Self::Mysql(world))
    }

    fn sqlite() -> Self {
        let place = Self::Sqlite(tempfile::tempdir().unwrap());
        let db = rusqlite::Connection::open(place.path()).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.execute_batch(TABLES).unwrap();
        db.execute_batch(inbox::schema(Dialect::Sqlite)).unwrap();
        semel::tx::sqlite::migrate(&db).unwrap();
        place
    }

    fn path(&self) -> PathBuf {
        let Self::Sqlite(directory) = self else { panic!("no file") };
        directory.path().join("app.db")
    }

    fn start(&self, what: &str, key: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("tx");
        command.arg(what);
        match self {
            Self::Postgres(world) => command.arg("postgres").args(world.place()),
            Self::Mysql(world) => command.arg("mysql").arg(&world.url),
            Self::Sqlite(_) => command.arg("sqlite").arg(self.path()),
        };
        command.arg(key);
        Child::spawn(command, crash_at).unwrap()
    }

    /// What a whole process gets that is not killed.
    fn call(&self, what: &str, key: &str) -> String {
        let mut child = self.start(what, key, None);
        let ended = child.wait(PATIENCE).unwrap();
        assert!(ended.status.success(), "{ended:?}");
        ended.stdout[0].clone()
    }

    fn kill_at(&self, what: &str, key: &str, at: &str) {
        let mut child = self.start(what, key, Some(at));
        assert_eq!(child.wait_for_point(PATIENCE).unwrap(), at.split(':').next().unwrap());
        child.kill().unwrap();
    }

    /// Rows by a connection of the judge's own.
    async fn count(&self, query: &str) -> i64 {
        match self {
            Self::Postgres(world) => world.count(query).await,
            Self::Mysql(world) => world.count(query).await,
            Self::Sqlite(_) => {
                let db = rusqlite::Connection::open(self.path()).unwrap();
                db.query_row(query, [], |row| row.get(0)).unwrap()
            }
        }
    }

    async fn rows(&self, key: &str) -> i64 {
        self.count(&format!("SELECT count(*) FROM payment WHERE name LIKE '{key}%'")).await
    }

    async fn end(self) {
        match self {
            Self::Postgres(world) => world.end().await,
            Self::Mysql(world) => world.end().await,
            Self::Sqlite(_) => {}
        }
    }
}

async fn once_killed_at_every_point(place: Place) {
    killed_at_every_point(place, "once", &crash::IN_TX).await;
}

async fn handle_killed_at_every_point(place: Place) {
    killed_at_every_point(place, "handle", &crash::IN_INBOX).await;
}

async fn killed_at_every_point(place: Place, what: &str, points: &[&str]) {
    for &point in points {
        place.kill_at(what, point, point);
        let committed = point == crash::AFTER_COMMIT;
        assert_eq!(place.rows(point).await, i64::from(committed), "killed at {point}");
        // No lease to wait for: the retry runs at once, or replays what was committed.
        let expected = if committed { "replayed" } else { "ran" };
        assert_eq!(place.call(what, point), expected, "killed at {point}");
        assert_eq!(place.call(what, point), "replayed", "killed at {point}");
        assert_eq!(place.rows(point).await, 1, "killed at {point}");
    }
    place.end().await;
}

async fn phases_killed_at_every_point(place: Place) {
    let points = crash::IN_TX.into_iter().flat_map(|point| {
        // There is one claim, and two phases with a commit each.
        let times = if [crash::BEFORE_CLAIM, crash::AFTER_CLAIM].contains(&point) { 1 } else { 2 };
        (1..=times).map(move |nth| (point, nth))
    });
    for (point, nth) in points {
        let (key, at) = (format!("{point}.{nth}"), format!("{point}:{nth}"));
        place.kill_at("phases", &key, &at);
        let mut answer = place.call("phases", &key);
        for _ in 0..200 {
            if answer != "in flight" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer = place.call("phases", &key);
        }
        let ended = point == crash::AFTER_COMMIT && nth == 2;
        assert_eq!(answer, if ended { "replayed" } else { "ran" }, "killed at {at}");
        assert_eq!(place.call("phases", &key), "replayed", "killed at {at}");
        assert_eq!(place.rows(&format!("{key}-reserve")).await, 1, "killed at {at}");
        assert_eq!(place.rows(&format!("{key}-charge")).await, 1, "killed at {at}");
    }
    // Every operation asked the provider under one key, however often.
    assert_eq!(place.count("SELECT count(*) FROM charge").await, 14);
    assert_eq!(place.count("SELECT count(*) FROM semel_phase").await, 0);
    place.end().await;
}

#[tokio::test]
async fn once_on_postgres_killed_at_every_point_happens_once() {
    let Some(place) = Place::postgres().await else { return };
    once_killed_at_every_point(place).await;
}

#[tokio::test]
async fn once_on_sqlite_killed_at_every_point_happens_once() {
    once_killed_at_every_point(Place::sqlite()).await;
}

#[tokio::test]
async fn once_on_mariadb_killed_at_every_point_happens_once() {
    let Some(place) = Place::mysql(Service::Mariadb).await else { return };
    once_killed_at_every_point(place).await;
}

#[tokio::test]
async fn once_on_mysql_killed_at_every_point_happens_once() {
    let Some(place) = Place::mysql(Service::Mysql).await else { return };
    once_killed_at_every_point(place).await;
}

#[tokio::test]
async fn a_message_on_postgres_killed_at_every_point_is_handled_once() {
    let Some(place) = Place::postgres().await else { return };
    handle_killed_at_every_point(place).await;
}

#[tokio::test]
async fn a_message_on_mariadb_killed_at_every_point_is_handled_once() {
    let Some(place) = Place::mysql(Service::Mariadb).await else { return };
    handle_killed_at_every_point(place).await;
}

#[tokio::test]
async fn a_message_on_mysql_killed_at_every_point_is_handled_once() {
    let Some(place) = Place::mysql(Service::Mysql).await else { return };
    handle_killed_at_every_point(place).await;
}

#[tokio::test]
async fn a_message_on_sqlite_killed_at_every_point_is_handled_once() {
    handle_killed_at_every_point(Place::sqlite()).await;
}

#[tokio::test]
async fn the_table_catches_a_mark_that_is_committed_before_the_effect() {
    let Some(place) = Place::postgres().await else { return };
    place.kill_at("torn-mark", "torn", crash::BEFORE_COMMIT);
    assert_eq!(place.call("torn-mark", "torn"), "replayed");
    assert_eq!(place.rows("torn").await, 0, "the mark is there, and the effect is lost");
    place.end().await;
}

#[tokio::test]
async fn phases_on_mariadb_killed_at_every_point_happen_once() {
    let Some(place) = Place::mysql(Service::Mariadb).await else { return };
    phases_killed_at_every_point(place).await;
}

#[tokio::test]
async fn phases_on_mysql_killed_at_every_point_happen_once() {
    let Some(place) = Place::mysql(Service::Mysql).await else { return };
    phases_killed_at_every_point(place).await;
}

#[tokio::test]
async fn phases_on_postgres_killed_at_every_point_happen_once() {
    let Some(place) = Place::postgres().await else { return };
    phases_killed_at_every_point(place).await;
}

#[tokio::test]
async fn phases_on_sqlite_killed_at_every_point_happen_once() {
    phases_killed_at_every_point(Place::sqlite()).await;
}

#[tokio::test]
async fn the_table_catches_an_outcome_that_is_written_in_another_transaction() {
    let Some(place) = Place::postgres().await else { return };
    place.kill_at("torn", "torn", crash::BEFORE_COMMIT);
    assert_eq!(place.call("torn", "torn"), "ran");
    assert_eq!(place.rows("torn").await, 2, "the row of the first is there, its outcome is not");
    place.end().await;
}
