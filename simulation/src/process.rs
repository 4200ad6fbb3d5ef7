//! A process in the simulation: its tasks can be killed together, or stalled together.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use semel::guard::Spawn;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Status {
    dead: bool,
    stalled: bool,
    parked: Vec<Waker>,
}

/// Spawns tasks that stop being run when the process is stalled, and never run again once it is dead.
#[derive(Clone, Default)]
pub struct Process(Arc<Mutex<Status>>);

impl Process {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As SIGKILL: nothing of it runs any more, not even a destructor of what was in flight.
    pub fn kill(&self) {
        self.status().dead = true;
        self.wake();
    }

    /// As SIGSTOP.
    pub fn stall(&self) {
        self.status().stalled = true;
    }

    /// As SIGCONT.
    pub fn resume(&self) {
        self.status().stalled = false;
        self.wake();
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.status().dead
    }

    /// Whether both are the same process.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn wake(&self) {
        let parked = std::mem::take(&mut self.status().parked);
        parked.into_iter().for_each(Waker::wake);
    }
}

impl Spawn for Process {
    fn spawn(&self, task: Task) {
        tokio::spawn(Gated { process: self.clone(), task: Some(task) });
    }
}

struct Gated {
    process: Process,
    task: Option<Task>,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut status = self.process.status();
        if status.dead {
            drop(status);
            // A killed process runs no destructors; dropping the future here would (it gives claims back).
            std::mem::forget(self.task.take());
            return Poll::Ready(());
        }
        if status.stalled {
            status.parked.push(context.waker().clone());
            return Poll::Pending;
        }
        drop(status);
        match &mut self.task {
            Some(task) => task.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        // The runtime ends with tasks of dead processes still in it.
        if self.process.is_dead() {
            std::mem::forget(self.task.take());
        }
    }
}
