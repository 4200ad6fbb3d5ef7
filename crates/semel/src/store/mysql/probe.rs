//! Checks the server's version and settings, and whether an acknowledged commit is on its disk.

use std::collections::HashMap;

use sqlx::Row;

use super::error::{MysqlError, misconfigured};
use super::session::Session;
use crate::intent::outcome::OUTCOME_BYTES_MAX;
use crate::store::{Fate, StoreError};

/// Bytes for an outcome in hexadecimal, two digits per byte, and the statement around it.
const PACKET_BYTES: usize = OUTCOME_BYTES_MAX * 2 + (64 << 10);

const ASKED: &str = "'version', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', \
     'sync_binlog', 'binlog_format', 'max_allowed_packet', 'read_only', 'super_read_only', 'wsrep_on'";

#[derive(Clone, Debug)]
pub(super) struct ServerStatus {
    /// Acknowledged commits survive a crash of the machine.
    pub(super) durable: bool,
    /// For operators, each with what to do.
    pub(super) warnings: Vec<String>,
    /// Bytes a statement may have.
    pub(super) packet_bytes: usize,
}

/// Reads the server's settings. A setting that cannot work is an error, one that weakens a promise is a warning.
pub(super) async fn check(session: &mut Session, server: &str) -> Result<ServerStatus, StoreError> {
    let explain = |error: MysqlError| error.explain(server, Fate::NotApplied);
    let asked = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({ASKED})");
    let brought = session.run(asked).await.map_err(|failed| explain(failed.error))?;
    let mut found = HashMap::new();
    for row in brought.into_iter().flat_map(|brought| brought.rows) {
        let (name, value): (String, String) = (
            row.try_get(0).map_err(|error| explain(error.into()))?,
            row.try_get(1).map_err(|error| explain(error.into()))?,
        );
        found.insert(name.to_ascii_lowercase(), value);
    }
    classify(server, &found)
}

fn classify(server: &str, found: &HashMap<String, String>) -> Result<ServerStatus, StoreError> {
    let value = |name: &str| found.get(name).map_or("", String::as_str);
    let is_on = |name: &str| matches!(value(name).to_ascii_uppercase().as_str(), "ON" | "1");
    let version = value("version");
    if !is_recent(version) {
        return Err(misconfigured(format!(
            "{server} is version {version:?}; semel needs MySQL 8.0.1 or MariaDB 10.6, which keep \
             AUTO_INCREMENT over a restart and know SKIP LOCKED"
        )));
    }
    let logs = is_on("log_bin");
    if logs && value("binlog_format").eq_ignore_ascii_case("STATEMENT") {
        return Err(misconfigured(format!(
            "{server} uses statement-based binary logs (binlog_format = STATEMENT), which InnoDB refuses at READ \
             COMMITTED; set binlog_format to ROW or MIXED"
        )));
    }
    let packet_bytes = value("max_allowed_packet").parse().unwrap_or(PACKET_BYTES);
    let flush = value("innodb_flush_log_at_trx_commit");
    let mut durable = true;
    let mut warnings = Vec::new();
    // 3 is MariaDB's other spelling of 1.
    if !matches!(flush, "1" | "3") {
        durable = false;
        warnings.push(format!(
            "innodb_flush_log_at_trx_commit = {flush}: a crash loses acknowledged claims and outcomes, \
             and what already ran may run again; set it to 1"
        ));
    }
    if logs && value("sync_binlog") != "1" {
        // With a binary log the commit itself is not flushed: recovery reads it from that log.
        durable = false;
        warnings.push(format!(
            "sync_binlog = {} with the binary log on: a crash of the machine loses acknowledged commits; \
             set it to 1",
            value("sync_binlog")
        ));
    }
    if matches!(value("innodb_doublewrite").to_ascii_uppercase().as_str(), "OFF" | "0" | "DETECT_ONLY") {
        warnings.push(format!(
            "innodb_doublewrite = {}: a page torn by a crash cannot be repaired, unless the file system \
             writes pages whole",
            value("innodb_doublewrite")
        ));
    }
    if packet_bytes < PACKET_BYTES {
        warnings.push(format!(
            "max_allowed_packet = {packet_bytes}: outcomes of more than {} bytes are refused; set it to \
             {PACKET_BYTES} or more",
            outcome_bytes_max(packet_bytes)
        ));
    }
    if is_on("read_only") || is_on("super_read_only") {
        warnings.push("read_only is on: claims are refused until this server is the primary".to_owned());
    }
    if is_on("wsrep_on") {
        warnings.push(
            "Galera is on: write to one node only, because epochs of several nodes do not rise together, and a \
             certification failure is reported as a deadlock"
                .to_owned(),
        );
    }
    Ok(ServerStatus { durable, warnings, packet_bytes })
}

/// The largest stored outcome that fits into a statement.
pub(super) fn outcome_bytes_max(packet_bytes: usize) -> usize {
    (packet_bytes.saturating_sub(64 << 10) / 2).min(OUTCOME_BYTES_MAX)
}

/// `8.0.36`, `10.11.6-MariaDB-0+deb12u1`, or the latter with `5.5.5-` in front, which is there for old clients.
fn is_recent(version: &str) -> bool {
    let maria = version.to_ascii_lowercase().contains("mariadb");
    let version = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let found: [u32; 3] = std::array::from_fn(|_| parts.next().unwrap_or(0));
    found >= if maria { [10, 6, 0] } else { [8, 0, 1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(changed: &[(&str, &str)]) -> Result<ServerStatus, StoreError> {
        let sound = [
            ("version", "10.11.6-MariaDB"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_doublewrite", "ON"),
            ("log_bin", "OFF"),
            ("sync_binlog", "0"),
            ("binlog_format", "MIXED"),
            ("max_allowed_packet", "16777216"),
        ];
        let all = sound.iter().chain(changed).map(|(name, value)| ((*name).into(), (*value).into()));
        classify("db", &all.collect())
    }

    #[test]
    fn settings_and_what_is_said_of_them() {
        let said = |changed: &[(&str, &str)]| {
            let status = judged(changed).unwrap();
            (status.durable, status.warnings.iter().map(|text| text[..8].to_owned()).collect::<Vec<_>>())
        };
        let none: [String; 0] = [];
        assert_eq!(said(&[]), (true, none.to_vec()));
        assert_eq!(said(&[("innodb_flush_log_at_trx_commit", "2")]), (false, vec!["innodb_f".into()]));
        assert_eq!(said(&[("log_bin", "ON")]), (false, vec!["sync_bin".into()]));
        assert_eq!(said(&[("log_bin", "ON"), ("sync_binlog", "1")]), (true, none.to_vec()));
        assert_eq!(said(&[("innodb_doublewrite", "OFF")]), (true, vec!["innodb_d".into()]));
        assert_eq!(said(&[("read_only", "ON")]), (true, vec!["read_onl".into()]));
        assert_eq!(said(&[("max_allowed_packet", "1048576")]), (true, vec!["max_allo".into()]));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for changed in
            [("version", "5.7.44"), ("version", "10.5.9-MariaDB"), ("version", "5.5.5-10.3.1-MariaDB")]
        {
            assert!(judged(&[changed]).is_err(), "{changed:?}");
        }
        for version in ["8.0.36", "8.4.0", "9.1.0", "5.5.5-10.11.6-MariaDB-1", "11.4.2-MariaDB"] {
            assert!(judged(&[("version", version)]).is_ok(), "{version}");
        }
        assert!(judged(&[("log_bin", "ON"), ("binlog_format", "STATEMENT")]).is_err());
    }
}
