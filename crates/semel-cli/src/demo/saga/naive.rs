//! The same order without sagas, as it is often written: each step is retried, and a refusal undoes the steps before.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use rusqlite::Connection;
use semel::Key;

use super::http::call;
use super::participant::Ask;

/// Attempts of one step, the pause between them, and how long one may take.
const ATTEMPTS_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_millis(250);
const BUSY: Duration = Duration::from_secs(10);

pub(super) struct Naive {
    pub(super) stock: SocketAddr,
    pub(super) provider: SocketAddr,
    pub(super) mail: SocketAddr,
    db: Arc<Mutex<Connection>>,
}

/// How an order ended.
pub(super) enum End {
    Completed,
    Undone(String),
    Failed(String),
}

enum StepFailed {
    Refused(String),
    /// All attempts failed.
    Failed(String),
}

impl Naive {
    pub(super) fn open(
        path: &Path,
        [stock, provider, mail]: [SocketAddr; 3],
    ) -> Result<Self, rusqlite::Error> {
        let db = Connection::open(path)?;
        db.busy_timeout(BUSY)?;
        Ok(Self { stock, provider, mail, db: Arc::new(Mutex::new(db)) })
    }

    pub(super) async fn order(&self, order: &str) -> End {
        match self.steps(order).await {
            Ok(end) => end,
            Err(error) => End::Failed(error.to_string()),
        }
    }

    async fn steps(&self, order: &str) -> Result<End, rusqlite::Error> {
        let name = order.to_owned();
        let id = self
            .on_database(move |db| {
                db.execute("INSERT INTO orders (name, cancelled) VALUES (?1, 0)", [name])?;
                Ok(db.last_insert_rowid())
            })
            .await?;
        let held = match self.retried(self.stock, "/hold", order).await {
            Ok(key) => key,
            Err(failed) => return self.undo(order, id, None, failed).await,
        };
        if let Err(failed) = self.retried(self.provider, "/charge", order).await {
            return self.undo(order, id, Some(held), failed).await;
        }
        match self.retried(self.mail, "/notify", order).await {
            Ok(_) => Ok(End::Completed),
            Err(StepFailed::Refused(why) | StepFailed::Failed(why)) => Ok(End::Failed(why)),
        }
    }

    async fn undo(
        &self,
        order: &str,
        id: i64,
        held: Option<Key>,
        failed: StepFailed,
    ) -> Result<End, rusqlite::Error> {
        if let Some(held) = held {
            let mut attempts = 1..=ATTEMPTS_MAX;
            while self.attempt(self.stock, "/release", order, &held).await.is_err()
                && attempts.next().is_some()
            {
                tokio::time::sleep(PAUSE).await;
            }
        }
        self.on_database(move |db| db.execute("UPDATE orders SET cancelled = 1 WHERE id = ?1", [id])).await?;
        Ok(match failed {
            StepFailed::Refused(why) => End::Undone(why),
            StepFailed::Failed(why) => End::Failed(why),
        })
    }

    /// Each attempt is a new request to the participant: there is no key that says that it is the same one.
    async fn retried(&self, to: SocketAddr, path: &str, order: &str) -> Result<Key, StepFailed> {
        let mut attempts = 1..=ATTEMPTS_MAX;
        loop {
            let key = Key::random();
            match self.attempt(to, path, order, &key).await {
                Ok(()) => return Ok(key),
                Err(StepFailed::Failed(_)) if attempts.next().is_some() => tokio::time::sleep(PAUSE).await,
                Err(failed) => return Err(failed),
            }
        }
    }

    async fn attempt(&self, to: SocketAddr, path: &str, order: &str, key: &Key) -> Result<(), StepFailed> {
        let ask = Ask { order: order.to_owned(), key: key.as_str().to_owned() };
        match tokio::time::timeout(TIMEOUT, call(to, path, &ask)).await {
            Ok(Ok((StatusCode::OK | StatusCode::CREATED, _))) => Ok(()),
            Ok(Ok((StatusCode::CONFLICT | StatusCode::PAYMENT_REQUIRED, why))) => {
                Err(StepFailed::Refused(String::from_utf8_lossy(&why).into_owned()))
            }
            Ok(Ok((status, _))) => Err(StepFailed::Failed(format!("{path}: {status}"))),
            Ok(Err(error)) => Err(StepFailed::Failed(format!("{path}: {error}"))),
            Err(_) => Err(StepFailed::Failed(format!("{path}: no answer in time"))),
        }
    }

    async fn on_database<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, rusqlite::Error> {
        let db = Arc::clone(&self.db);
        let done =
            tokio::task::spawn_blocking(move || work(&db.lock().unwrap_or_else(PoisonError::into_inner)));
        done.await.unwrap_or(Err(rusqlite::Error::InvalidQuery))
    }
}
