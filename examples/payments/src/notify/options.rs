//! The options of `payments notify`.

use crate::Failed;

/// The usage line.
pub const USAGE: &str = "payments notify --from kafka://HOST:PORT[,HOST:PORT] --store postgres://… [--group NAME] \
                         [--member NAME]";

/// The default group, which is also the inbox's name.
const GROUP: &str = "notifications";

/// Source, database and group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotifyOptions {
    /// `host:port`, separated by commas.
    pub brokers: String,
    /// The PostgreSQL database with the notifications.
    pub store: String,
    /// The consumer group. All processes of it share the messages, and what they have handled.
    pub group: String,
    /// A name that survives a restart (`group.instance.id`): the partitions are then back at once after a crash.
    pub member: Option<String>,
}

impl NotifyOptions {
    /// Reads the command line behind `notify`; missing options are taken from `PAYMENTS_FROM`, `PAYMENTS_STORE`,
    /// `PAYMENTS_GROUP` and `PAYMENTS_MEMBER`.
    pub fn read(
        words: impl Iterator<Item = String>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failed> {
        let [mut from, mut store, mut group, mut member] = [const { None }; 4];
        let mut words = words;
        while let Some(word) = words.next() {
            let of = match word.as_str() {
                "--from" => &mut from,
                "--store" => &mut store,
                "--group" => &mut group,
                "--member" => &mut member,
                other => return Err(format!("unknown argument {other:?}; {USAGE}").into()),
            };
            *of = Some(words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"))?);
        }
        let or = |given: Option<String>, name: &str| given.or_else(|| env(name));
        let from =
            or(from, "PAYMENTS_FROM").ok_or("--from is missing: where the events are, kafka://HOST:PORT")?;
        let brokers = from.strip_prefix("kafka://").filter(|brokers| !brokers.is_empty());
        let store =
            or(store, "PAYMENTS_STORE").ok_or("--store is missing: a PostgreSQL database, postgres://…")?;
        if !(store.starts_with("postgres://") || store.starts_with("postgresql://")) {
            return Err("--store must be a PostgreSQL database, postgres://…".into());
        }
        Ok(Self {
            brokers: brokers.ok_or("--from must be kafka://HOST:PORT")?.trim_end_matches('/').to_owned(),
            store,
            group: or(group, "PAYMENTS_GROUP").unwrap_or_else(|| GROUP.to_owned()),
            member: or(member, "PAYMENTS_MEMBER"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, env: &[(&str, &str)]) -> Result<NotifyOptions, String> {
        let env =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        NotifyOptions::read(line.split_whitespace().map(str::to_owned), env)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_goes_before_the_environment() {
        let env = [("PAYMENTS_FROM", "kafka://k:1,l:2/"), ("PAYMENTS_STORE", "postgres://db/a")];
        let read = |line| read(line, &env).unwrap();
        let plain = read("");
        assert_eq!((plain.brokers.as_str(), plain.group.as_str(), plain.member), ("k:1,l:2", GROUP, None));
        let given = read("--store postgres://db/b --group mail --member one");
        assert_eq!((given.store.as_str(), given.group.as_str()), ("postgres://db/b", "mail"));
        assert_eq!(given.member.as_deref(), Some("one"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (line, named) in [
            ("", "--from"),
            ("--from kafka://k:1", "--store"),
            ("--from kafka://k:1 --store sqlite:a", "postgres://"),
            ("--from http://k --store postgres://db", "kafka://"),
            ("--from", "--from needs"),
            ("--to x", "--to"),
        ] {
            assert!(read(line, &[]).unwrap_err().contains(named), "{line}");
        }
    }
}
