//! `semel saga approve` and `reject`.

use semel::saga::{Approval, DecidedBy};

use super::Sagas;
use super::args;
use super::decide::{seen, signalled};
use crate::failure::Failed;

pub(super) async fn decide(
    sagas: &Sagas,
    args: &args::Approval,
    approved: bool,
    json: bool,
) -> Result<(), Failed> {
    let number = seen(sagas, args.number, None).await?.record.number;
    let by = DecidedBy::new(&args.decider.by, &args.decider.why);
    let decided = if approved { Approval::approved(&by) } else { Approval::rejected(&by) };
    let id = args.id.clone().unwrap_or_else(|| format!("approval-{}", args.name));
    let result = sagas.admin.decide_as(number, &id, &args.name, &decided).await?;
    let what = if approved { "approved" } else { "rejected" };
    let said = format!("saga {}: {} is {what}", number.0, args.name);
    signalled(sagas, number, result, &said, json).await
}
