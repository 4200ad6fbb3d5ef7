//! What the brokers' own settings do to the promise.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use semel::sink::kafka::KafkaSink;
use semel::sink::{Guarantee, Sink};
use testkit::services::{Service, alone};

const UNCLEAN: &str = "unclean.leader.election.enable";
const SOON: Duration = Duration::from_secs(30);

/// Sets what the brokers have for it, or with `None` what they had before.
async fn set(bootstrap: &str, value: Option<&str>) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    for broker in admin.inner().fetch_metadata(None, SOON).unwrap().brokers() {
        let mut altered = AlterConfig::new(ResourceSpecifier::Broker(broker.id()));
        if let Some(value) = value {
            altered = altered.set(UNCLEAN, value);
        }
        let answers = admin.alter_configs(&[altered], &AdminOptions::new()).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}

/// What a sink says once the brokers have taken it in: `broken` or not.
async fn said(sink: &mut impl Sink, broken: bool) -> Guarantee {
    let until = Instant::now() + SOON;
    loop {
        sink.probe().await.unwrap();
        let said = sink.guarantee();
        if said.violations.is_empty() != broken || Instant::now() > until {
            return said;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_let_anybody_lead_do_not_keep_what_they_confirmed() {
    let Some(broker) = alone(Service::Kafka) else { return };
    let mut sink = KafkaSink::options(broker.url()).open().unwrap();
    let mut once = KafkaSink::options(broker.url()).exactly_once(&crate::sinks::unique("promise")).unwrap();
    set(broker.url(), Some("true")).await;
    let broken = [said(&mut sink, true).await, said(&mut once, true).await];
    set(broker.url(), None).await;
    let kept = [said(&mut sink, false).await, said(&mut once, false).await];
    for said in broken {
        assert_eq!(said.violations.len(), 1, "{said}");
        assert!(
            said.violations[0].contains(UNCLEAN) && said.violations[0].ends_with("set it to false"),
            "{said}"
        );
    }
    for said in kept {
        assert_eq!(said.violations, Vec::<String>::new());
    }
}
