//! A worker that can be killed.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::guard::Spawn;

/// The tasks of one worker.
#[derive(Clone, Default)]
pub(super) struct Process(Arc<Mutex<Tasks>>);

#[derive(Default)]
struct Tasks {
    dead: bool,
    tasks: Vec<AbortHandle>,
}

impl Process {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of it runs any more. The task that says so goes on until it waits: let it wait for ever.
    pub(super) fn kill(&self) {
        let mut tasks = self.tasks();
        tasks.dead = true;
        tasks.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Spawn for Process {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let mut tasks = self.tasks();
        if !tasks.dead {
            tasks.tasks.retain(|task| !task.is_finished());
            tasks.tasks.push(tokio::spawn(task).abort_handle());
        }
    }
}
