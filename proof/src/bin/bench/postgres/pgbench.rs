//! pgbench with the store's own statements, one claim and one outcome at a time.

use std::process::Command;

use super::{CLAIM, FINISH, Place};
use crate::Failed;

/// What pgbench runs.
#[derive(Clone, Copy)]
pub(crate) enum Script {
    /// The store's statements, over arrays of one.
    Same,
    /// The least that could do: an insert and an update of one row, without the rules.
    ByHand,
}

/// The settings of the store's connections.
pub(crate) fn settings(schema: &str) -> String {
    format!(
        "-c search_path={schema} -c jit=off -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
         -c synchronous_commit=on"
    )
}

/// A fresh key in every transaction. pgbench's variables are parameters of prepared statements.
const DRAW: &str = "\\set r random(1, 9223372036854775806)\n\\set q random(1, 9223372036854775806)\n";
const ID: &str = "sha256(int8send(:r::bigint))";
const OWNER: &str = "substr(sha256(int8send(:q::bigint)), 1, 16)";
const BODY: &str = "decode(repeat('78', 210), 'hex')";

pub(crate) fn script(which: Script) -> String {
    match which {
        Script::Same => {
            let claim = filled(
                CLAIM,
                &[
                    &format!("ARRAY[{ID}]"),
                    "ARRAY[:q::bigint]",
                    &format!("ARRAY[{OWNER}]"),
                    "ARRAY[sha256('request')]",
                    "ARRAY[1]",
                    "ARRAY[0]",
                    "ARRAY[30000]",
                    "ARRAY['acme']",
                    "ARRAY['payment.create']",
                    "ARRAY['k' || :r::bigint]",
                    "ARRAY[true]",
                    "65536",
                ],
            );
            let finish = filled(
                FINISH,
                &[
                    &format!("ARRAY[{ID}]"),
                    &format!("ARRAY[{OWNER}]"),
                    "ARRAY[:c_epoch::bigint]",
                    "ARRAY[2]",
                    "ARRAY[86400000]",
                    &format!("ARRAY[{BODY}]"),
                ],
            );
            format!("{DRAW}{claim}\n\\gset c_\n{finish};\n")
        }
        Script::ByHand => format!(
            "{DRAW}INSERT INTO semel_intent (seq, epoch, lease_until, created_at, changed_at, recipe, operation,
                attempts, state, effect, id, owner, fingerprint, scope, key)
            SELECT e, e, t + 30000, t, t, 1, 1, 1, 0, 0, {ID}, {OWNER}, sha256('request'), 'acme', 'k' || :r::bigint
            FROM (SELECT nextval('semel_epoch') AS e,
                floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS t OFFSET 0) new
            ON CONFLICT (id) DO NOTHING RETURNING epoch\n\\gset c_\n\
            UPDATE semel_intent SET state = 2, outcome = {BODY},
                changed_at = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
                expires_at = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 86400000
            WHERE id = {ID} AND owner = {OWNER} AND epoch = :c_epoch::bigint AND state < 2;\n"
        ),
    }
}

/// The statement without its comments, with values in place of its parameters, the highest first: $1 is also
/// the beginning of $12.
fn filled(sql: &str, values: &[&str]) -> String {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or(""));
    let mut sql = lines.filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n");
    for (at, value) in values.iter().enumerate().rev() {
        sql = sql.replace(&format!("${}", at + 1), value);
    }
    assert!(!sql.contains('$'), "a parameter of the statement has no value here: {sql}");
    sql
}

pub(crate) fn pairs_per_s(
    place: &Place<'_>,
    clients: usize,
    size: usize,
    which: Script,
) -> Result<f64, Failed> {
    place.execute("INSERT INTO semel_operation (name) VALUES ('payment.create')")?;
    let file = std::env::temp_dir().join(format!("semel-pgbench-{}.sql", std::process::id()));
    std::fs::write(&file, script(which))?;
    let seconds = (2 * size).to_string();
    let output = Command::new(program()?)
        .args(["-n", "-M", "prepared", "-T", &seconds, "-j", "2", "-c", &clients.to_string(), "-f"])
        .arg(&file)
        .arg(&place.server)
        .env("PGOPTIONS", settings(&place.schema))
        .output()?;
    std::fs::remove_file(&file)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    match rate {
        Some(rate) if output.status.success() => Ok(rate),
        _ => Err(format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// On the path, or where Debian keeps it.
fn program() -> Result<std::path::PathBuf, Failed> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let places = debian.map(|version| version.path().join("bin/pgbench"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("pgbench"));
    let found = on_path.chain(places).find(|path| path.exists());
    found.ok_or_else(|| "pgbench is not installed; it comes with PostgreSQL".into())
}
