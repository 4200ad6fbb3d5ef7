//! Which versions of its tables a build works with, and which statements lead from one version to another. Pure.
//!
//! Tables change in two steps, so that two versions of semel can run side by side during an upgrade. *Expand* adds
//! tables, columns or indexes; builds of the previous version keep working. *Contract* removes parts that only those
//! builds used, once none of them is running. Each step makes a new version. The version after the newest one that a
//! build knows is always an expand, so the build works with that one, too.

use std::fmt;

/// What leads from a version of the tables to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upgrade {
    /// Adds tables, columns with defaults, or indexes: builds of the previous version keep working.
    Expand(&'static str),
    /// Removes what only builds before the last expand used.
    #[allow(dead_code, reason = "the first contract comes after the first expand of a release after 0.1")]
    Contract(&'static str),
    /// Changes existing tables: all processes have to be stopped first. Only from versions before 0.1.
    Stop(&'static str),
}

/// The versions of some tables that this build knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions {
    /// Creates the tables in [the current version](Self::current).
    pub(crate) create: &'static str,
    /// The first one leads from version 1 to version 2.
    pub(crate) upgrades: &'static [Upgrade],
    /// The oldest version that has all that this build's statements need.
    pub(crate) oldest: u32,
}

/// Why a build does not work with the tables it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misfit {
    /// They are to be migrated.
    Older,
    /// Only a newer build works with them.
    Newer,
    /// Before they can be migrated, this version has to remove something that older builds use.
    ContractFirst(u32),
}

impl Versions {
    /// The version that `migrate` leads to.
    pub(crate) fn current(&self) -> u32 {
        let trailing = self.upgrades.iter().rev().take_while(|step| matches!(step, Upgrade::Contract(_)));
        self.newest() - number(trailing.count())
    }

    /// The version that `migrate --contract` leads to.
    fn newest(&self) -> u32 {
        1 + number(self.upgrades.len())
    }

    /// Whether only a newer build works with them.
    pub(crate) fn is_newer(&self, found: i64) -> bool {
        found > i64::from(self.newest()) + 1
    }

    /// Whether this build works with tables of that version.
    pub(crate) fn check(&self, found: u32) -> Result<(), Misfit> {
        match found {
            _ if found < self.oldest => Err(Misfit::Older),
            _ if found > self.newest() + 1 => Err(Misfit::Newer),
            _ => Ok(()),
        }
    }

    /// The steps that migrate tables of version `found`; 0 means that there are no tables. Contracts are included only
    /// if `contract` is set: those on the way to the current version, or, for tables that have it already, the one
    /// after it. Never both in one plan: that would remove what processes of the previous release still use.
    pub(crate) fn plan(&self, found: u32, contract: bool) -> Result<MigrationPlan, Misfit> {
        if found > self.newest() {
            self.check(found)?;
            return Ok(MigrationPlan { before: found, after: found, steps: Vec::new() });
        }
        if found == 0 {
            return Ok(MigrationPlan::of_new(self));
        }
        let end = if contract && found >= self.current() { self.newest() } else { self.current().max(found) };
        let upgrades = (2..=self.newest()).zip(self.upgrades);
        let steps: Vec<MigrationStep> = upgrades
            .filter(|(version, _)| (found + 1..=end).contains(version))
            .map(|(version, upgrade)| match *upgrade {
                Upgrade::Expand(sql) => MigrationStep { version, kind: MigrationKind::Expand, sql },
                Upgrade::Contract(sql) => MigrationStep { version, kind: MigrationKind::Contract, sql },
                Upgrade::Stop(sql) => MigrationStep { version, kind: MigrationKind::Stop, sql },
            })
            .collect();
        match steps.iter().find(|step| step.kind == MigrationKind::Contract) {
            Some(step) if !contract => Err(Misfit::ContractFirst(step.version)),
            _ => Ok(MigrationPlan { before: found, after: end, steps }),
        }
    }

    /// What a process that starts does with them: tables that would have to be contracted first are left as they are,
    /// if it works with them.
    pub(crate) fn plan_at_start(&self, found: u32) -> Result<MigrationPlan, Misfit> {
        match self.plan(found, false) {
            Err(Misfit::ContractFirst(_)) if self.check(found).is_ok() => {
                Ok(MigrationPlan { before: found, after: found, steps: Vec::new() })
            }
            planned => planned,
        }
    }

    /// What is wrong with tables of that version, and what to do about it. `migrate` is the command that migrates them.
    pub(crate) fn explain(
        &self,
        misfit: Misfit,
        found: u32,
        what: &str,
        location: &str,
        migrate: &str,
    ) -> String {
        let (oldest, newest) = (self.oldest, self.newest() + 1);
        match misfit {
            Misfit::Older => format!(
                "the {what} in {location} has version {found}, this build needs {oldest} or later; run `{migrate}`"
            ),
            Misfit::Newer => format!(
                "the {what} in {location} was migrated by a newer semel (it has version {found}, this build works with \
                 {oldest} to {newest}); upgrade semel"
            ),
            Misfit::ContractFirst(version) => format!(
                "the {what} in {location} has version {found}; on the way to {}, version {version} removes what builds \
                 of version {} and before use; when none of them is running, run `{migrate} --contract`",
                self.current(),
                version - 2
            ),
        }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// What a migration does, or would do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrationPlan {
    /// The version of the tables before; 0 if there are none.
    pub before: u32,
    /// The version after.
    pub after: u32,
    /// The steps, in order. None: there is nothing to do.
    pub steps: Vec<MigrationStep>,
}

impl MigrationPlan {
    /// The plan for tables that do not exist yet.
    pub(crate) fn of_new(versions: &Versions) -> Self {
        let version = versions.current();
        let step = MigrationStep { version, kind: MigrationKind::Create, sql: versions.create };
        Self { before: 0, after: version, steps: vec![step] }
    }
}

/// One step of a [`MigrationPlan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MigrationStep {
    /// The version it leads to.
    pub version: u32,
    /// What it does to builds of another version.
    pub kind: MigrationKind,
    /// The SQL statements.
    pub sql: &'static str,
}

/// What a [`MigrationStep`] does to builds of another version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MigrationKind {
    /// Creates the tables.
    Create,
    /// Adds tables, columns or indexes. Builds of the previous version keep working.
    Expand,
    /// Removes something that only older builds use. They fail from then on.
    Contract,
    /// Changes existing tables. All processes have to be stopped first.
    Stop,
}

impl fmt::Display for MigrationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Expand => "expand",
            Self::Contract => "contract",
            Self::Stop => "stop",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Upgrade::{Contract, Expand};

    /// Three releases: 0.1 has version 1, 0.2 expands to 2 and contracts to 3, 0.3 expands to 4.
    const RELEASES: [Versions; 3] = [
        Versions { create: "1", upgrades: &[], oldest: 1 },
        Versions { create: "2", upgrades: &[Expand("to 2"), Contract("to 3")], oldest: 1 },
        Versions { create: "4", upgrades: &[Expand("to 2"), Contract("to 3"), Expand("to 4")], oldest: 2 },
    ];

    fn steps(plan: &MigrationPlan) -> Vec<&str> {
        plan.steps.iter().map(|step| step.sql).collect()
    }

    #[test]
    fn a_release_works_with_the_tables_of_the_one_before_and_the_one_after() {
        let works = |release: usize| -> Vec<u32> {
            (0..=6).filter(|found| RELEASES[release].check(*found).is_ok()).collect()
        };
        assert_eq!(works(0), [1, 2]);
        assert_eq!(works(1), [1, 2, 3, 4]);
        assert_eq!(works(2), [2, 3, 4, 5]);
        for pair in RELEASES.windows(2) {
            // The newer one has migrated, the older one is still running; and the other way round.
            assert_eq!(pair[0].check(pair[1].current()), Ok(()));
            assert_eq!(pair[1].check(pair[0].current()), Ok(()));
        }
        // The release before does not work with contracted tables.
        assert_eq!(RELEASES[0].check(3), Err(Misfit::Newer));
    }

    #[test]
    fn migrating_never_contracts_by_itself() {
        let plan = |release: usize, found, contract| RELEASES[release].plan(found, contract);
        assert_eq!(steps(&plan(1, 1, false).unwrap()), ["to 2"]);
        // Not both at once: processes of 0.1 are still there.
        assert_eq!(steps(&plan(1, 1, true).unwrap()), ["to 2"]);
        assert_eq!(steps(&plan(1, 2, true).unwrap()), ["to 3"]);
        assert_eq!(plan(2, 2, false), Err(Misfit::ContractFirst(3)));
        assert_eq!(steps(&plan(2, 2, true).unwrap()), ["to 3", "to 4"]);
        assert_eq!(steps(&plan(2, 3, false).unwrap()), ["to 4"]);
    }

    #[test]
    fn a_process_that_starts_does_not_need_the_contract() {
        let plan = RELEASES[2].plan_at_start(2).unwrap();
        assert_eq!((plan.before, plan.after, plan.steps.len()), (2, 2, 0));
        assert_eq!(RELEASES[2].plan_at_start(1), Err(Misfit::ContractFirst(3)));
        assert_eq!(steps(&RELEASES[1].plan_at_start(1).unwrap()), ["to 2"]);
    }

    #[test]
    fn there_is_nothing_to_do_with_tables_that_are_current_contracted_or_newer() {
        for (release, found, contract) in
            [(0, 1, false), (0, 1, true), (0, 2, false), (1, 2, false), (1, 3, false), (1, 4, true)]
        {
            let plan = RELEASES[release].plan(found, contract).unwrap();
            assert_eq!((plan.before, plan.after, plan.steps.len()), (found, found, 0), "{release} {found}");
        }
        assert_eq!(RELEASES[0].plan(3, false), Err(Misfit::Newer));
    }

    #[test]
    fn new_tables_are_created_so_that_the_release_before_works_with_them() {
        let plan = RELEASES[1].plan(0, true).unwrap();
        assert_eq!((plan.before, plan.after, steps(&plan)), (0, 2, vec!["2"]));
        assert_eq!(plan.steps[0].kind, MigrationKind::Create);
        assert_eq!(RELEASES[0].check(plan.after), Ok(()));
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_do() {
        let explain =
            |misfit, found| RELEASES[2].explain(misfit, found, "inbox", "db1", "semel migrate --inbox URL");
        assert!(explain(Misfit::Older, 1).contains("run `semel migrate --inbox URL`"));
        assert!(explain(Misfit::Newer, 9).contains("upgrade semel"));
        let text = explain(Misfit::ContractFirst(3), 2);
        assert!(text.contains("version 3 removes") && text.contains("URL --contract`"), "{text}");
    }
}
