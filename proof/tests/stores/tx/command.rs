//! Commands on PostgreSQL: a retry, a late command and a reused id are three different things.

use std::time::Duration;

use semel::tx::{Advanced, Applied, Command, CommandError, Transition};
use sqlx::{PgConnection, PgPool};

use crate::tx::world::World;

type Decided = Result<Applied<i64, i64>, CommandError<i64, sqlx::Error>>;

/// Each test's own: the locks of intents belong to the whole database.
fn tenant() -> String {
    let test = std::thread::current();
    test.name().unwrap_or("command").rsplit("::").next().unwrap_or_default().to_owned()
}

fn command(id: &str, case: &str, version: u64) -> Command<String> {
    Command {
        id: id.to_owned(),
        kind: "ApproveCase".to_owned(),
        tenant: tenant(),
        aggregate: case.to_owned(),
        expected_version: version,
        payload: "approve".to_owned(),
    }
}

async fn approve(
    tx: &mut PgConnection,
    command: &Command<String>,
) -> Result<Transition<i64, i64>, sqlx::Error> {
    let update =
        "UPDATE escalation SET version = version + 1 WHERE id = $1 AND version = $2 RETURNING version";
    let expected = i64::try_from(command.expected_version).unwrap();
    let moved =
        sqlx::query_scalar(update).bind(&command.aggregate).bind(expected).fetch_optional(&mut *tx).await?;
    if let Some(version) = moved {
        return Ok(Transition::Done(version));
    }
    let current = "SELECT version FROM escalation WHERE id = $1";
    Ok(Transition::Advanced(sqlx::query_scalar(current).bind(&command.aggregate).fetch_one(tx).await?))
}

async fn send(pool: &PgPool, command: &Command<String>, advanced: Advanced) -> Decided {
    let mut tx = pool.begin().await.unwrap();
    let once = command.once().advanced(advanced).wait(Duration::from_secs(60));
    let applied = once.apply_tx(&mut tx, async |tx| approve(tx, command).await).await?;
    tx.commit().await.unwrap();
    Ok(applied)
}

async fn world() -> Option<World> {
    let world = World::new().await?;
    let tables = "CREATE TABLE escalation (id text PRIMARY KEY, version bigint NOT NULL);
                  INSERT INTO escalation SELECT 'case-' || n, 18 FROM generate_series(0, 9) n";
    world.connect().await.batch_execute(tables).await.unwrap();
    Some(world)
}

#[tokio::test]
async fn retry_conflict_and_mismatch_are_distinct_errors() {
    let Some(world) = world().await else { return };
    let pool = world.pool(4).await;
    let first = command("cmd-1", "case-7", 18);
    assert!(matches!(send(&pool, &first, Advanced::Conflict).await, Ok(Applied::Done(19))));
    assert!(matches!(send(&pool, &first, Advanced::Conflict).await, Ok(Applied::Replayed(19))));
    let late = command("cmd-2", "case-7", 18);
    match send(&pool, &late, Advanced::Conflict).await {
        Err(CommandError::Conflict { aggregate, expected: 18, current: 19 }) => {
            assert_eq!(aggregate, "case-7")
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(send(&pool, &late, Advanced::Current).await, Ok(Applied::Current(19))));
    // Still a replay after others have moved it on: the answer to this command does not change.
    assert!(matches!(
        send(&pool, &command("cmd-3", "case-7", 19), Advanced::Conflict).await,
        Ok(Applied::Done(20))
    ));
    assert!(matches!(send(&pool, &first, Advanced::Current).await, Ok(Applied::Replayed(19))));
    // The same id for another payload, version or aggregate.
    let payload = Command { payload: "reject".to_owned(), ..first.clone() };
    for other in [payload, command("cmd-1", "case-7", 20), command("cmd-1", "case-8", 18)] {
        assert!(
            matches!(send(&pool, &other, Advanced::Current).await, Err(CommandError::Mismatch)),
            "{other:?}"
        );
    }
    assert!(matches!(
        send(&pool, &command("", "case-7", 20), Advanced::Conflict).await,
        Err(CommandError::Invalid { .. })
    ));
    assert_eq!(world.count("SELECT version FROM escalation WHERE id = 'case-7'").await, 20);
    assert_eq!(world.count("SELECT version FROM escalation WHERE id = 'case-8'").await, 18);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn of_many_commands_for_one_version_one_is_done_and_its_retries_agree() {
    let Some(world) = world().await else { return };
    let pool = world.pool(16).await;
    let tasks: Vec<_> = (0..64)
        .map(|task: usize| {
            let pool = pool.clone();
            // Ten cases; for each two commands, each sent several times.
            let command = command(&format!("cmd-{}", task % 20), &format!("case-{}", task % 10), 18);
            tokio::spawn(async move { (task % 20, send(&pool, &command, Advanced::Conflict).await) })
        })
        .collect();
    let mut done = std::collections::BTreeMap::<usize, [usize; 3]>::new();
    for task in tasks {
        let (command, answer) = task.await.unwrap();
        let count = done.entry(command).or_default();
        match answer {
            Ok(Applied::Done(19)) => count[0] += 1,
            Ok(Applied::Replayed(19)) => count[1] += 1,
            Err(CommandError::Conflict { .. }) => count[2] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done.values().map(|count| count[0]).sum::<usize>(), 10);
    // A command is done and replayed, or in conflict; never both.
    assert!(done.values().all(|count| (count[0] == 1) != (count[2] > 0)), "{done:?}");
    assert_eq!(world.count("SELECT count(*) FROM escalation WHERE version = 19").await, 10);
    pool.close().await;
    world.end().await;
}
