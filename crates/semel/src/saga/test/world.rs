//! What a history left: your application, rows, events.

use std::fmt;
use std::ops::Deref;

use crate::outbox::Event;
use crate::saga::memory::MemoryJournal;

/// What one history left, for your judge. It is your application, too: `world.ledger()` calls your own method.
pub struct World<'a, App: ?Sized> {
    pub(super) app: &'a App,
    pub(super) journal: &'a MemoryJournal,
    #[cfg(feature = "sqlite")]
    pub(super) rows: Option<&'a super::atomic_rows::AtomicRows>,
}

impl<App: ?Sized> World<'_, App> {
    /// Your application.
    pub fn app(&self) -> &App {
        self.app
    }

    /// What completed sagas published.
    pub fn events(&self) -> Vec<Event> {
        self.journal.events()
    }

    /// What atomic steps wrote by [`StepTx::memory`](crate::saga::StepTx::memory), in the order of their commits.
    pub fn rows(&self) -> Vec<String> {
        self.journal.rows()
    }
}

impl<App: ?Sized> Deref for World<'_, App> {
    type Target = App;

    fn deref(&self) -> &App {
        self.app
    }
}

impl<App: ?Sized> fmt::Debug for World<'_, App> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}
