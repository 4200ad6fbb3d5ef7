//! Retention of topics.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig;

use super::options::KafkaSourceOptions;

/// The longest retention of all topics; `None` if one of them is unknown.
pub(super) async fn longest(options: &KafkaSourceOptions) -> Option<Duration> {
    let admin: AdminClient<DefaultClientContext> = AdminClient::from_config(&options.client()).ok()?;
    let bounded = AdminOptions::new().request_timeout(Some(options.timeout));
    let topics: Vec<_> = options.topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let configs = admin.describe_configs(&topics, &bounded).await.ok()?;
    let kept: Option<Vec<Duration>> = configs.iter().map(|topic| of(topic.as_ref().ok()?)).collect();
    kept.filter(|kept| kept.len() == topics.len())?.into_iter().max()
}

fn of(topic: &ConfigResource) -> Option<Duration> {
    let value = |name: &str| topic.get(name)?.value.clone();
    kept(&value("cleanup.policy")?, &value("retention.ms")?)
}

/// A topic that is only compacted, or has no limit, keeps messages forever.
fn kept(policy: &str, retention: &str) -> Option<Duration> {
    if !policy.split(',').any(|policy| policy.trim() == "delete") {
        return Some(Duration::MAX);
    }
    let millis: i64 = retention.parse().ok()?;
    Some(u64::try_from(millis).map_or(Duration::MAX, Duration::from_millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_deleted_is_kept_for_ever() {
        assert_eq!(kept("delete", "604800000"), Some(Duration::from_secs(604_800)));
        assert_eq!(kept("compact,delete", "1000"), Some(Duration::from_secs(1)));
        assert_eq!(kept("compact", "1000"), Some(Duration::MAX));
        assert_eq!(kept("delete", "-1"), Some(Duration::MAX));
        assert_eq!(kept("delete", "?"), None);
    }
}
