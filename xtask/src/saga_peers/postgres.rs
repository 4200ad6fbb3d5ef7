//! The PostgreSQL that some peers keep their state in: this checkout's own, a database for each.

use std::process::Command;

use testkit::services::{Service, find, status};

use crate::services;

/// The server.
#[derive(Debug, Clone)]
pub(super) struct Postgres {
    url: String,
    pid: u32,
    pub(super) version: String,
}

impl Postgres {
    /// The server that runs.
    pub(super) fn find() -> Result<Self, String> {
        let service = Service::Postgres;
        let url = find(service).ok_or_else(|| format!("{service} does not run"))?;
        let process = status(service).processes.first().map(|(_, pid)| *pid);
        let pid = process.ok_or_else(|| {
            format!(
                "{} names a server elsewhere, and its work cannot be counted: unset {} so that one is started here",
                url,
                service.env()
            )
        })?;
        let mut found = Self { url, pid, version: String::new() };
        let version = found.sql("SHOW server_version")?;
        found.version = format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default());
        Ok(found)
    }

    /// The server's first process, above all others.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts the server where it does not run.
    pub(super) fn up() -> Result<(), String> {
        let failed = services::up(&[Service::Postgres]).into_iter().find_map(|(_, up)| up.err());
        failed.map_or(Ok(()), |error| Err(error.to_string()))
    }

    /// An empty database. It goes with the value, or when the next run wants one of the same name.
    pub(super) fn database(&self, name: &'static str) -> Result<Database, String> {
        self.sql(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))?;
        self.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(Database { server: self.clone(), name })
    }

    fn sql(&self, statement: &str) -> Result<String, String> {
        psql(&self.url, &["-c", statement])
    }
}

/// A database of one peer.
#[derive(Debug)]
pub(super) struct Database {
    server: Postgres,
    pub(super) name: &'static str,
}

impl Database {
    pub(super) fn url(&self) -> String {
        let before = self.server.url.rsplit_once('/').map_or(self.server.url.as_str(), |(before, _)| before);
        format!("{before}/{}", self.name)
    }

    /// User, host and port of the server, for those that do not take an address.
    pub(super) fn address(&self) -> Result<(&str, &str, &str), String> {
        address(&self.server.url)
            .ok_or_else(|| format!("{} is not an address of PostgreSQL", self.server.url))
    }

    /// Runs a file of statements.
    pub(super) fn run(&self, file: &std::path::Path) -> Result<(), String> {
        psql(&self.url(), &["-f", &file.display().to_string()]).map(drop)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Err(error) = self.server.sql(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)) {
            eprintln!("the database {} stays: {error}", self.name);
        }
    }
}

fn psql(url: &str, what: &[&str]) -> Result<String, String> {
    let mut psql = Command::new("psql");
    psql.args([url, "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]).args(what);
    let output = psql.output().map_err(|error| format!("psql: {error}"))?;
    if !output.status.success() {
        return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn address(url: &str) -> Option<(&str, &str, &str)> {
    let (user, rest) = url.split_once("://")?.1.split_once('@')?;
    let (host, port) = rest.split_once('/')?.0.split_once(':')?;
    Some((user, host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_parts() {
        assert_eq!(address("postgres://postgres@127.0.0.1:5/postgres"), Some(("postgres", "127.0.0.1", "5")));
        assert_eq!(address("127.0.0.1:5"), None);
    }
}
