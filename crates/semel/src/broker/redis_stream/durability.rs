//! Checks by its settings whether Redis durably stores what it confirms.

use std::collections::HashMap;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

const ASKED: [&str; 4] = ["appendonly", "appendfsync", "maxmemory", "maxmemory-policy"];

/// Violations of durability. None if this user may not read the settings (some hosted servers forbid it). An error: no
/// answer.
pub(super) async fn violations(connection: &mut MultiplexedConnection) -> Result<Vec<String>, String> {
    let mut settings = HashMap::new();
    for name in ASKED {
        let asked: Result<HashMap<String, String>, RedisError> =
            redis::cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
        match asked {
            Ok(found) => settings.extend(found),
            Err(error) if error.code().is_some() && !error.is_io_error() => {}
            Err(error) => return Err(format!("Redis did not answer: {error}")),
        }
    }
    Ok(inspect(&settings))
}

fn inspect(settings: &HashMap<String, String>) -> Vec<String> {
    let setting = |name: &str| settings.get(name).map_or("", String::as_str);
    let mut violations = Vec::new();
    if setting("appendonly") == "no" {
        violations.push(
            "Redis has appendonly no: what it confirmed is gone when it ends; set appendonly yes".into(),
        );
    } else if matches!(setting("appendfsync"), "everysec" | "no") {
        violations.push(format!(
            "Redis has appendfsync {}: the last confirmed events are lost if the machine fails; set appendfsync always",
            setting("appendfsync")
        ));
    }
    let policy = setting("maxmemory-policy");
    if !matches!(setting("maxmemory"), "" | "0") && policy.starts_with("allkeys") {
        violations.push(format!(
            "Redis has maxmemory-policy {policy}: when it is full it drops whole streams, read or not; set noeviction"
        ));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspected(settings: &[(&str, &str)]) -> Vec<String> {
        inspect(&settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn only_what_is_on_disk_when_it_is_confirmed_is_kept() {
        assert!(inspected(&[("appendonly", "no"), ("appendfsync", "always")])[0].contains("appendonly no"));
        assert!(inspected(&[("appendonly", "yes"), ("appendfsync", "everysec")])[0].contains("everysec"));
        let safe = [("appendonly", "yes"), ("appendfsync", "always")];
        assert_eq!(inspected(&safe), Vec::<String>::new());
        let full = [safe[0], safe[1], ("maxmemory", "1000"), ("maxmemory-policy", "allkeys-lru")];
        assert!(inspected(&full)[0].contains("noeviction"));
        assert_eq!(
            inspected(&[safe[0], safe[1], ("maxmemory", "0"), ("maxmemory-policy", "allkeys-lru")]).len(),
            0
        );
    }

    #[test]
    fn who_may_not_ask_learns_nothing() {
        assert_eq!(inspected(&[]), Vec::<String>::new());
    }
}
