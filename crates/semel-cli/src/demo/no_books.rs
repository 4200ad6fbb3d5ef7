//! A build without PostgreSQL has no reference service.

use super::ledger::Counted;
use crate::args::DemoService;
use crate::failure::Failed;

/// Never constructed.
pub(super) enum Books {}

impl Books {
    pub(super) async fn make(_: &str) -> Result<Self, Failed> {
        Err(not_built())
    }

    pub(super) fn gateway_url(&self) -> String {
        match *self {}
    }

    pub(super) fn service_url(&self) -> String {
        match *self {}
    }

    pub(super) async fn audit(&self) -> Result<(Counted, Vec<String>), Failed> {
        match *self {}
    }

    pub(super) async fn end(self, _: bool) {
        match self {}
    }
}

pub(crate) async fn serve(_: &DemoService, _: Option<&str>, _: Option<&str>) -> Result<(), Failed> {
    Err(not_built())
}

fn not_built() -> Failed {
    crate::absent::absent("the reference service on PostgreSQL (--store)", "postgres")
}
