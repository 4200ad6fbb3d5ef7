//! How a test gets at a server, and how it goes without one visibly.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use super::catalogue::Service;
use super::instance::{Instance, dir_of};
use super::lock::{Lock, Mode};

/// Services that a run goes without, separated by commas. Their tests skip and say so.
pub const WITHOUT_ENV: &str = "SEMEL_TEST_WITHOUT";

/// The file to which a test that skips appends a line: `<service> <test>`.
pub const SKIP_LOG_ENV: &str = "SEMEL_TEST_SKIP_LOG";

/// A test that takes a server alone may restart it several times before others get it.
const USE_SECONDS_MAX: u64 = 600;

/// A server in use. While this lives no test kills or pauses it on purpose.
#[derive(Debug)]
pub struct Lease {
    url: String,
    _lock: Lock,
}

impl Lease {
    /// The server's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The address of a server that can be used now: the environment's, else this checkout's own.
#[must_use]
pub fn find(service: Service) -> Option<String> {
    service.given().or_else(|| Instance::shared(service).url())
}

/// The server for a test that uses it like any other; `None` when the run goes without it, and then the test returns
/// at once.
///
/// # Panics
/// When the server is neither there nor left out on purpose: a test that silently passes without
/// its server is worse than one that fails.
#[must_use]
pub fn require(service: Service) -> Option<Lease> {
    let lock = enter(Instance::shared(service), Mode::Shared)?;
    // Asked only now: it may have moved while another test had it alone.
    Some(Lease { url: find(service).unwrap_or_else(|| absent(service)), _lock: lock })
}

/// Takes the lock on the use of a service, unless the run goes without it.
pub(super) fn enter(instance: Instance, mode: Mode) -> Option<Lock> {
    let service = instance.service;
    if find(service).is_none() && is_left_out(service, &std::env::var(WITHOUT_ENV).unwrap_or_default()) {
        skip(service);
        return None;
    }
    let path = dir_of(instance).join("use.lock");
    match Lock::take(&path, mode, Duration::from_secs(USE_SECONDS_MAX)) {
        Ok(lock) => Some(lock),
        Err(error) => panic!("another test does not release {service}: {error}"),
    }
}

pub(super) fn absent(service: Service) -> ! {
    panic!(
        "{service} is not running.\n  start it:     cargo xtask services up --only {service}\n  \
         or use yours: {}=…\n  or go without: {WITHOUT_ENV}={service}",
        service.env()
    )
}

fn is_left_out(service: Service, without: &str) -> bool {
    without.split(',').filter(|name| !name.trim().is_empty()).any(|name| match name.parse::<Service>() {
        Ok(left_out) => left_out == service,
        Err(error) => panic!("{WITHOUT_ENV}: {error}"),
    })
}

fn skip(service: Service) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed").to_owned();
    eprintln!("SKIPPED {test}: this run goes without {service} ({WITHOUT_ENV})");
    let Ok(path) = std::env::var(SKIP_LOG_ENV) else { return };
    let line = format!("{service} {test}\n");
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    // A skip that is not counted would make a summary lie.
    if let Err(error) = written {
        panic!("{SKIP_LOG_ENV}={path}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_left_out() {
        assert!(is_left_out(Service::Kafka, "kafka"));
        assert!(is_left_out(Service::Kafka, "redis, kafka,"));
        assert!(is_left_out(Service::Elasticmq, "sqs"));
        assert!(!is_left_out(Service::Redis, "redis-cluster"));
        assert!(!is_left_out(Service::Kafka, ""));
    }

    #[test]
    #[should_panic(expected = "no service is called \"kafak\"")]
    fn a_misspelt_name_is_not_ignored() {
        let _ = is_left_out(Service::Kafka, "kafak");
    }

    #[test]
    #[should_panic(expected = "cargo xtask services up --only nats")]
    fn an_absent_service_says_how_to_get_it() {
        absent(Service::Nats);
    }
}
