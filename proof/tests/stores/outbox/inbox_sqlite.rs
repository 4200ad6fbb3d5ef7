//! Messages handled in a transaction of rusqlite.

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use semel::blocking;
use semel::inbox::{Handled, Inbox, schema};
use semel::tx::driver::Dialect;

use crate::outbox::inbox::message;

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(schema(Dialect::Sqlite)).unwrap();
    db.execute_batch("CREATE TABLE effect (n INTEGER NOT NULL)").unwrap();
    db
}

fn count(db: &Connection, table: &str) -> i64 {
    db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn a_message_is_handled_once_and_a_rollback_leaves_nothing() {
    let (mut db, inbox) = (database(), Inbox::new("mail").unwrap().keep_results());
    for (n, commits) in [(1, false), (2, true), (3, true)] {
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let work = |tx: &Connection| tx.execute("INSERT INTO effect VALUES (7)", []).map(|_| n);
        let handled = blocking::handle_tx(&inbox, &tx, &message(7), work).unwrap();
        assert_eq!(handled, if n == 3 { Handled::Already(Some(2)) } else { Handled::Now(n) });
        if commits { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    assert_eq!((count(&db, "effect"), count(&db, "semel_inbox")), (1, 1));
    // Another consumer's mark is another one.
    let tx = db.transaction().unwrap();
    let handled =
        blocking::handle_tx(&Inbox::new("audit").unwrap(), &tx, &message(7), |_| Ok::<_, ()>(())).unwrap();
    assert_eq!(handled, Handled::Now(()));
}

#[test]
fn a_batch_says_which_are_fresh_and_old_marks_are_forgotten() {
    let (mut db, inbox) = (database(), Inbox::new("mail").unwrap());
    for (numbers, fresh) in [(vec![5, 3, 5, 9], vec![0, 1, 3]), (vec![9, 4, 3], vec![1])] {
        let messages: Vec<_> = numbers.into_iter().map(message).collect();
        let tx = db.transaction().unwrap();
        let marked = blocking::mark_all_tx(&inbox, &tx, &messages).unwrap();
        assert_eq!(marked.fresh().collect::<Vec<_>>(), fresh);
        blocking::end_tx(marked, &tx).unwrap();
        tx.commit().unwrap();
    }
    assert_eq!((count(&db, "semel_inbox"), count(&db, "semel_inbox_batch")), (4, 2));
    std::thread::sleep(Duration::from_millis(5));
    for (window, gone) in [(Duration::from_secs(60), 0), (Duration::from_millis(1), 4)] {
        let tx = db.transaction().unwrap();
        assert_eq!(blocking::prune_tx(&inbox.clone().window(window), &tx).unwrap(), gone);
        tx.commit().unwrap();
    }
    assert_eq!((count(&db, "semel_inbox"), count(&db, "semel_inbox_batch")), (0, 0));
}
