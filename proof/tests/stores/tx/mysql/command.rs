//! Commands on MySQL and MariaDB: a retry, a late command and a reused id are three different things.

use semel::tx::{Advanced, Applied, Command, CommandError, Transition};
use sqlx::mysql::MySqlPool;
use sqlx::{Executor, MySqlConnection};

use super::SERVER;
use crate::tx::mysql_world::{World, soon};

type Decided = Result<Applied<i64, i64>, CommandError<i64, sqlx::Error>>;

fn command(id: &str, case: &str, version: u64) -> Command<String> {
    Command {
        id: id.to_owned(),
        kind: "ApproveCase".to_owned(),
        tenant: "tenant-a".to_owned(),
        aggregate: case.to_owned(),
        expected_version: version,
        payload: "approve".to_owned(),
    }
}

async fn approve(
    tx: &mut MySqlConnection,
    command: &Command<String>,
) -> Result<Transition<i64, i64>, sqlx::Error> {
    let update = "UPDATE escalation SET version = version + 1 WHERE id = ? AND version = ?";
    let expected = i64::try_from(command.expected_version).unwrap();
    let moved = sqlx::query(update).bind(&command.aggregate).bind(expected).execute(&mut *tx).await?;
    if moved.rows_affected() == 1 {
        return Ok(Transition::Done(expected + 1));
    }
    // A locking read: under REPEATABLE READ another one may show an older version.
    let current = "SELECT version FROM escalation WHERE id = ? FOR UPDATE";
    Ok(Transition::Advanced(sqlx::query_scalar(current).bind(&command.aggregate).fetch_one(tx).await?))
}

async fn send(pool: &MySqlPool, command: &Command<String>, advanced: Advanced) -> Decided {
    let mut tx = pool.begin().await.unwrap();
    let once = command.once().advanced(advanced);
    let applied = once.apply_tx(&mut tx, async |tx| approve(tx, command).await).await;
    // Not dropped: sqlx rolls back some time after that, and rows are locked until then.
    match applied {
        Ok(Applied::Current(_)) | Err(_) => tx.rollback().await.unwrap(),
        Ok(_) => tx.commit().await.unwrap(),
    }
    applied
}

async fn world() -> Option<World> {
    let world = World::new(SERVER).await?;
    let table = "CREATE TABLE escalation (id VARCHAR(99) PRIMARY KEY, version BIGINT NOT NULL)";
    world.pool.execute(table).await.unwrap();
    for n in 0..10 {
        let insert = sqlx::query("INSERT INTO escalation VALUES (?, 18)").bind(format!("case-{n}"));
        insert.execute(&world.pool).await.unwrap();
    }
    Some(world)
}

#[tokio::test]
async fn retry_conflict_and_mismatch_are_distinct_errors() {
    let Some(world) = world().await else { return };
    let pool = world.pool.clone();
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
    world.end().await;
}

#[tokio::test]
async fn of_many_commands_for_one_version_one_is_done_and_its_retries_agree() {
    let Some(world) = world().await else { return };
    let pool = world.pool.clone();
    let tasks: Vec<_> = (0..64)
        .map(|task: usize| {
            let pool = pool.clone();
            // Ten cases; for each two commands, each sent several times.
            let command = command(&format!("cmd-{}", task % 20), &format!("case-{}", task % 10), 18);
            tokio::spawn(async move {
                loop {
                    match send(&pool, &command, Advanced::Conflict).await {
                        // A deadlock, or a crowd: run the whole transaction again.
                        Err(CommandError::Tx(error)) if error.may_retry() => {}
                        answer => return (task % 20, answer),
                    }
                }
            })
        })
        .collect();
    let mut done = std::collections::BTreeMap::<usize, [usize; 3]>::new();
    for task in tasks {
        let (command, answer) = soon(task).await.unwrap();
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
    world.end().await;
}

/// Nothing is remembered of a command that came too late, and its transaction may be committed.
#[tokio::test]
async fn a_command_that_came_too_late_leaves_no_row_behind() {
    let Some(world) = world().await else { return };
    let late = command("cmd-1", "case-7", 17);
    let mut tx = world.begin().await;
    let once = late.once().advanced(Advanced::Current);
    let applied = once.apply_tx(&mut tx, async |tx| approve(tx, &late).await).await;
    assert!(matches!(applied, Ok(Applied::Current(18))), "{applied:?}");
    tx.commit().await.unwrap();
    assert_eq!(world.count("SELECT COUNT(*) FROM semel_intent").await, 0);
    // So the id is as good as new.
    let applied = send(&world.pool, &command("cmd-1", "case-7", 18), Advanced::Current).await;
    assert!(matches!(applied, Ok(Applied::Done(19))), "{applied:?}");
    world.end().await;
}

/// As versions before this one have left it behind.
#[tokio::test]
async fn a_row_left_behind_by_a_command_that_came_too_late_blocks_nothing() {
    let Some(world) = world().await else { return };
    let late = command("cmd-1", "case-7", 17);
    assert!(send(&world.pool, &command("cmd-0", "case-8", 18), Advanced::Current).await.is_ok());
    let id: String =
        late.intent().unwrap().id().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let left = format!(
        "INSERT INTO semel_intent (id, state, effect, epoch, attempts, lease_until, created_at, changed_at, owner, \
         recipe, fingerprint, operation, scope, `key`) SELECT X'{id}', 0, effect, 0, 0, 0, 0, 0, owner, recipe, \
         fingerprint, 0, scope, 'cmd-1' FROM semel_intent"
    );
    world.pool.execute(sqlx::AssertSqlSafe(left)).await.unwrap();
    let applied = send(&world.pool, &command("cmd-1", "case-7", 18), Advanced::Current).await;
    assert!(matches!(applied, Ok(Applied::Done(19))), "{applied:?}");
    world.end().await;
}
