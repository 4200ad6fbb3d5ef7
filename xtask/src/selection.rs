//! Which services a command is about.

use clap::Args;
use testkit::services::Service;

/// The choice of services on a command line. Without any, all of them.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct Selection {
    /// Only these services, separated by commas: postgres, mariadb, mysql, redis,
    /// redis-cluster, rabbitmq, nats, kafka, elasticmq.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = parse)]
    only: Vec<Service>,
    /// All but these services, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = parse)]
    without: Vec<Service>,
}

impl Selection {
    /// The services chosen, in the usual order.
    pub(crate) fn chosen(&self) -> Vec<Service> {
        Service::ALL
            .into_iter()
            .filter(|service| self.only.is_empty() || self.only.contains(service))
            .filter(|service| !self.without.contains(service))
            .collect()
    }
}

fn parse(name: &str) -> Result<Service, String> {
    name.parse::<Service>().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use Service::{Kafka, Postgres, Redis};

    use super::*;

    #[test]
    fn only_and_without() {
        let chosen = |only: &[Service], without: &[Service]| {
            Selection { only: only.to_vec(), without: without.to_vec() }.chosen()
        };
        assert_eq!(chosen(&[], &[]), Service::ALL);
        assert_eq!(chosen(&[Kafka, Postgres], &[]), [Postgres, Kafka]);
        assert_eq!(chosen(&[Kafka, Postgres], &[Kafka]), [Postgres]);
        assert_eq!(chosen(&[], &[Redis]).len(), Service::ALL.len() - 1);
        assert!(!chosen(&[], &[Redis]).contains(&Redis));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        assert_eq!(parse("sqs"), Ok(Service::Elasticmq));
        assert!(parse("oracle").unwrap_err().contains("postgres"));
    }
}
