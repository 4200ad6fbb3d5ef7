//! Without the feature `stores` there is no database to measure.

use tokio::runtime::Runtime;

use crate::Failed;
use crate::table::Table;

pub(crate) fn measure(_: &Runtime, _: usize, _: &mut Table) -> Result<(), Failed> {
    Err("built without the feature `stores`: cargo xtask bench tx".into())
}
