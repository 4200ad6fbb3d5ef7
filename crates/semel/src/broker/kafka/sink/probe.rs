//! Checks the cluster's configuration before anything is published.

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::options::KafkaOptions;
use crate::sink::SinkError;

/// The setting that lets a broker lose confirmed records.
const UNCLEAN: &str = "unclean.leader.election.enable";

/// Asks the cluster for its brokers and one of them for its settings. Returns the violations of the guarantee.
pub(super) async fn reach(options: &KafkaOptions) -> Result<Vec<String>, SinkError> {
    let failed = |error: &dyn std::fmt::Display| {
        SinkError::not_published(format!("Kafka could not be reached at {}: {error}", options.first_broker()))
    };
    let config = options.client();
    let timeout = options.timeout;
    // Fetching metadata blocks.
    let asked = tokio::task::spawn_blocking(move || {
        let admin: AdminClient<DefaultClientContext> = AdminClient::from_config(&config)?;
        let metadata = admin.inner().fetch_metadata(None, timeout)?;
        let broker = metadata.brokers().first().map(|broker| broker.id());
        Ok::<_, rdkafka::error::KafkaError>((admin, broker))
    });
    let (admin, broker) = asked.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    let Some(broker) = broker else { return Err(failed(&"it has no brokers")) };
    let bounded = AdminOptions::new().request_timeout(Some(timeout));
    let described = admin.describe_configs([&ResourceSpecifier::Broker(broker)], &bounded).await;
    let entry = match described.map_err(|error| failed(&error))?.into_iter().next() {
        Some(Ok(config)) => config.get(UNCLEAN).and_then(|entry| entry.value.clone()),
        // Not permitted to ask. The broker's default is safe.
        None | Some(Err(Code::ClusterAuthorizationFailed)) => None,
        Some(Err(code)) => return Err(failed(&code)),
    };
    Ok(match entry.as_deref() {
        Some("true") => vec![format!(
            "the brokers have {UNCLEAN}=true: a replica that lacks records may become the leader, and confirmed events \
             are lost; set it to false"
        )],
        _ => Vec::new(),
    })
}
