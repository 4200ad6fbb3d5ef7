//! `semel migrate`

use std::fmt::Write as _;

use semel::migration::{MigrationKind, MigrationPlan};
use semel::saga::sql as saga;
use semel::store::Migrated;
use semel::{inbox, outbox, store};
use serde_json::json;

use crate::args::{Migrate, Switch};
use crate::failure::Failed;
use crate::stdout;

pub(crate) async fn run(args: &Migrate, url: &str, as_json: bool) -> Result<(), Failed> {
    if args.print {
        return print(args, url, as_json);
    }
    if args.new_lineage {
        let lineage = store::new_lineage(url).await?.to_string();
        return match as_json {
            true => stdout::json(&json!({ "lineage": lineage })),
            false => stdout::text(&format!("new lineage {lineage}; everything cached before is invalid\n")),
        };
    }
    if args.dry_run {
        let plan = match Tables::of(args, url) {
            Tables::Outbox(url) => outbox::plan_migration(url, args.contract).await?,
            Tables::Inbox(url) => inbox::plan_migration(url, args.contract).await?,
            Tables::Saga(url) => saga::plan_migration(url, args.contract).await?,
            Tables::Store(url) => store::plan_migration(url, args.contract).await?,
        };
        return match as_json {
            true => stdout::json(&plan_json(&plan)),
            false => stdout::text(&plan_text(&plan, Tables::of(args, url).prefix())),
        };
    }
    migrate(args, url, as_json).await
}

fn strict_order(args: &Migrate) -> Option<bool> {
    args.strict_order.map(|switch| switch == Switch::On)
}

/// Which tables the command is about, and where they are.
enum Tables<'a> {
    Outbox(&'a str),
    Inbox(&'a str),
    Saga(&'a str),
    Store(&'a str),
}

impl<'a> Tables<'a> {
    fn of(args: &'a Migrate, store: &'a str) -> Self {
        match (&args.outbox, &args.inbox, &args.saga) {
            (Some(url), _, _) => Self::Outbox(url),
            (None, Some(url), _) => Self::Inbox(url),
            (None, None, Some(url)) => Self::Saga(url),
            (None, None, None) => Self::Store(store),
        }
    }

    /// What the output begins with.
    fn prefix(&self) -> &'static str {
        match self {
            Self::Outbox(_) => "outbox: ",
            Self::Inbox(_) => "inbox: ",
            Self::Saga(_) => "saga: ",
            Self::Store(_) => "",
        }
    }
}

fn print(args: &Migrate, url: &str, as_json: bool) -> Result<(), Failed> {
    let sql = match (Tables::of(args, url), strict_order(args)) {
        // Without the tables, which may exist already.
        (Tables::Outbox(url), Some(on)) => outbox::strict_order_schema(outbox::dialect(url)?, on)?,
        (Tables::Outbox(url), None) => outbox::schema(outbox::dialect(url)?),
        (Tables::Inbox(url), _) => inbox::schema(inbox::dialect(url)?),
        (Tables::Saga(url), _) => saga::schema(saga::dialect(url)?),
        (Tables::Store(url), _) => store::schema(url)?,
    };
    match as_json {
        true => stdout::json(&json!({ "sql": sql })),
        false => stdout::text(sql),
    }
}

async fn migrate(args: &Migrate, url: &str, as_json: bool) -> Result<(), Failed> {
    let strict = strict_order(args);
    let tables = Tables::of(args, url);
    let Migrated { before, now } = match (&tables, strict) {
        (Tables::Outbox(url), Some(on)) => outbox::strict_order(url, on).await?,
        (Tables::Outbox(url), None) if args.contract => outbox::contract(url).await?,
        (Tables::Outbox(url), None) => outbox::migrate(url).await?,
        (Tables::Inbox(url), _) if args.contract => inbox::contract(url).await?,
        (Tables::Inbox(url), _) => inbox::migrate(url).await?,
        (Tables::Saga(url), _) if args.contract => saga::contract(url).await?,
        (Tables::Saga(url), _) => saga::migrate(url).await?,
        (Tables::Store(url), _) if args.contract => store::contract(url).await?,
        (Tables::Store(url), _) => store::migrate(url).await?,
    };
    if as_json {
        let mut report = json!({ "before": before, "now": now });
        if let Some(on) = strict {
            report["strict_order"] = on.into();
        }
        return stdout::json(&report);
    }
    let order = match strict {
        None => "",
        Some(true) => ", strict order on",
        Some(false) => ", strict order off",
    };
    let what = tables.prefix();
    stdout::text(&match before {
        0 => format!("{what}created, version {now}{order}\n"),
        _ if before == now && strict.is_some() => format!("{what}version {now}{order}\n"),
        _ if before == now => format!("{what}nothing to do, version {now}\n"),
        _ => format!("{what}upgraded from version {before} to {now}{order}\n"),
    })
}

fn plan_json(plan: &MigrationPlan) -> serde_json::Value {
    let step = |step: &semel::migration::MigrationStep| json!({ "version": step.version, "kind": step.kind.to_string(), "sql": step.sql });
    let steps: Vec<_> = plan.steps.iter().map(step).collect();
    json!({ "before": plan.before, "after": plan.after, "steps": steps })
}

fn plan_text(plan: &MigrationPlan, what: &str) -> String {
    let MigrationPlan { before, after, steps } = plan;
    let mut text = match (before, steps.is_empty()) {
        (_, true) => return format!("{what}nothing to do, version {before}\n"),
        (0, _) => format!("-- {what}would create version {after}\n"),
        _ => format!("-- {what}would upgrade from version {before} to {after}\n"),
    };
    for step in steps {
        let effect = match step.kind {
            MigrationKind::Create => "creates the tables".to_owned(),
            MigrationKind::Expand => {
                let before = step.version - 1;
                format!("adds columns, tables or indexes; processes built for version {before} keep working")
            }
            MigrationKind::Stop => {
                "changes existing tables; stop all processes that use them first".to_owned()
            }
            MigrationKind::Contract => {
                let older = step.version - 2;
                format!(
                    "removes what older versions use; processes built for version {older} or older will fail"
                )
            }
        };
        let _ = write!(text, "\n-- version {}: {effect}\n{}\n", step.version, step.sql.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use semel::migration::MigrationStep;

    use super::*;

    #[test]
    fn a_plan_says_what_each_step_does_to_running_processes() {
        let step = |version, kind, sql| MigrationStep { version, kind, sql };
        let steps = vec![
            step(2, MigrationKind::Expand, "ALTER TABLE t ADD c int;\n"),
            step(3, MigrationKind::Contract, "ALTER TABLE t DROP b;\n"),
        ];
        let plan = MigrationPlan { before: 1, after: 3, steps };
        let text = plan_text(&plan, "inbox: ");
        assert_eq!(
            text,
            "-- inbox: would upgrade from version 1 to 3\n\n\
             -- version 2: adds columns, tables or indexes; processes built for version 1 keep working\n\
             ALTER TABLE t ADD c int;\n\n\
             -- version 3: removes what older versions use; processes built for version 1 or older will fail\n\
             ALTER TABLE t DROP b;\n"
        );
        assert_eq!(plan_json(&plan)["steps"][1]["kind"], "contract");
        let nothing = MigrationPlan { before: 3, after: 3, steps: Vec::new() };
        assert_eq!(plan_text(&nothing, ""), "nothing to do, version 3\n");
    }
}
