//! The list of servers: their names, and the variables that hold their addresses.

use std::fmt;
use std::str::FromStr;

use super::error::{Error, Result};
use super::recipe::Recipe;
use super::{elasticmq, kafka, mariadb, mysql, nats, postgres, rabbitmq, redis, redis_cluster};

/// A server that tests may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// PostgreSQL with logical replication.
    Postgres,
    /// MariaDB, which speaks the protocol of MySQL.
    Mariadb,
    /// MySQL itself.
    Mysql,
    /// One Redis with append-only persistence.
    Redis,
    /// A Redis Cluster of three nodes.
    RedisCluster,
    /// RabbitMQ.
    Rabbitmq,
    /// NATS with JetStream.
    Nats,
    /// Apache Kafka, one broker in KRaft mode.
    Kafka,
    /// ElasticMQ, which speaks the protocol of SQS.
    Elasticmq,
}

impl Service {
    /// Every service, in the order in which they are listed to people.
    pub const ALL: [Self; 9] = [
        Self::Postgres,
        Self::Mariadb,
        Self::Mysql,
        Self::Redis,
        Self::RedisCluster,
        Self::Rabbitmq,
        Self::Nats,
        Self::Kafka,
        Self::Elasticmq,
    ];

    /// The name used on the command line and under `target/services/`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Rabbitmq => "rabbitmq",
            Self::Nats => "nats",
            Self::Kafka => "kafka",
            Self::Elasticmq => "elasticmq",
        }
    }

    /// The environment variable that holds its address. Set by a person, it names a server they
    /// already have, and ours is not used.
    #[must_use]
    pub fn env(self) -> &'static str {
        match self {
            Self::Postgres => "SEMEL_TEST_POSTGRES_URL",
            Self::Mariadb => "SEMEL_TEST_MARIADB_URL",
            Self::Mysql => "SEMEL_TEST_MYSQL_URL",
            Self::Redis => "SEMEL_TEST_REDIS_URL",
            Self::RedisCluster => "SEMEL_TEST_REDIS_CLUSTER_URL",
            Self::Rabbitmq => "SEMEL_TEST_AMQP_URL",
            Self::Nats => "SEMEL_TEST_NATS_URL",
            Self::Kafka => "SEMEL_TEST_KAFKA",
            Self::Elasticmq => "SEMEL_TEST_SQS_URL",
        }
    }

    /// The address a person gave in the environment, if any.
    #[must_use]
    pub fn given(self) -> Option<String> {
        std::env::var(self.env()).ok().filter(|url| !url.trim().is_empty())
    }

    pub(super) fn recipe(self) -> &'static dyn Recipe {
        match self {
            Self::Postgres => &postgres::Postgres,
            Self::Mariadb => &mariadb::Mariadb,
            Self::Mysql => &mysql::Mysql,
            Self::Redis => &redis::Redis,
            Self::RedisCluster => &redis_cluster::RedisCluster,
            Self::Rabbitmq => &rabbitmq::Rabbitmq,
            Self::Nats => &nats::Nats,
            Self::Kafka => &kafka::Kafka,
            Self::Elasticmq => &elasticmq::Elasticmq,
        }
    }

    /// Keeps the port searches of the services of one checkout apart.
    pub(super) fn slot(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Service {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wanted = text.trim().to_ascii_lowercase().replace('_', "-");
        // The protocol's name is what people remember of some of them.
        let wanted = match wanted.as_str() {
            "postgresql" | "pg" => "postgres",
            "amqp" => "rabbitmq",
            "sqs" => "elasticmq",
            other => other,
        };
        Self::ALL.into_iter().find(|service| service.name() == wanted).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|service| service.name()).collect();
            Error::new(format!("no service is called {text:?}; there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_variables_are_distinct_and_names_parse_back() {
        let names: BTreeSet<_> = Service::ALL.iter().map(|service| service.name()).collect();
        let envs: BTreeSet<_> = Service::ALL.iter().map(|service| service.env()).collect();
        assert_eq!((names.len(), envs.len()), (9, 9));
        for service in Service::ALL {
            assert_eq!(service.name().parse::<Service>().unwrap(), service);
        }
        assert_eq!("redis_cluster".parse::<Service>().unwrap(), Service::RedisCluster);
        assert_eq!("sqs".parse::<Service>().unwrap(), Service::Elasticmq);
        let error = "oracle".parse::<Service>().unwrap_err().to_string();
        assert!(error.contains("oracle") && error.contains("postgres"), "{error}");
    }
}
