use std::time::Duration;

use ::redis::cluster::ClusterClient;
use ::redis::cluster_async::ClusterConnection;
use ::redis::{AsyncCommands, ErrorKind, ServerErrorKind};
use testkit::services::{Service, require};

use crate::servers::redis::connect;
use crate::servers::{soon, unique};

const PATIENCE: Duration = Duration::from_secs(30);

/// With patience: asked for nothing else, a client gives up after a second.
async fn cluster(nodes: Vec<&str>) -> ClusterConnection {
    let client = ClusterClient::builder(nodes).connection_timeout(PATIENCE).response_timeout(PATIENCE);
    soon(client.build().expect("a client").get_async_connection()).await.expect("a connection")
}

#[tokio::test]
async fn the_wrong_node_redirects_and_the_cluster_client_follows() {
    let Some(cluster) = require(Service::RedisCluster) else { return };
    let nodes: Vec<&str> = cluster.url().split(',').collect();
    assert_eq!(nodes.len(), 3);
    let key = unique("moved");

    // Asked one by one with a plain connection, exactly one node owns the key's slot.
    let mut owners = Vec::new();
    let mut redirects = Vec::new();
    for node in &nodes {
        let mut connection = connect(node).await;
        match soon(connection.set::<_, _, ()>(&key, *node)).await {
            Ok(()) => owners.push(*node),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved), "{error}");
                let (address, _slot) = error.redirect_node().expect("where to");
                redirects.push(format!("redis://{address}"));
            }
        }
    }
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(redirects, [owners[0], owners[0]], "a redirect to a node that does not own the slot");

    // A client that knows only a wrong node gets there all the same.
    let wrong = nodes.iter().find(|node| **node != owners[0]).copied().unwrap();
    let mut connection = self::cluster(vec![wrong]).await;
    let value: String = soon(connection.get(&key)).await.unwrap();
    assert_eq!(value, owners[0]);
}

#[tokio::test]
async fn keys_with_one_tag_share_a_slot_and_others_may_not() {
    let Some(cluster) = require(Service::RedisCluster) else { return };
    let nodes: Vec<&str> = cluster.url().split(',').collect();
    let mut connection = self::cluster(nodes).await;
    let tag = unique("tag");
    let mut slots = Vec::new();
    for key in [format!("{{{tag}}}a"), format!("{{{tag}}}b"), format!("{tag}a")] {
        let mut ask = ::redis::cmd("CLUSTER");
        ask.arg("KEYSLOT").arg(key);
        let route = ::redis::cluster_routing::RoutingInfo::SingleNode(
            ::redis::cluster_routing::SingleNodeRoutingInfo::Random,
        );
        let slot = soon(connection.route_command(ask, route)).await.unwrap();
        slots.push(::redis::from_redis_value::<u16>(slot).unwrap());
    }
    assert_eq!(slots[0], slots[1]);
    assert!(slots.iter().all(|slot| *slot < 16_384));
}
