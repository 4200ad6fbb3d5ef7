//! A Redis Cluster: three masters without replicas, enough for a redirect.

use std::time::Duration;

use super::error::{Error, Result};
use super::probe;
use super::process::wait_until;
use super::recipe::{Need, Place, Recipe, Task, command, run};
use super::redis::{NEEDS, server};

const NODES: usize = 3;

pub(super) struct RedisCluster;

impl Recipe for RedisCluster {
    fn needs(&self) -> &'static [Need] {
        NEEDS
    }

    fn ports(&self) -> usize {
        // Each node has a port for its clients and one for the cluster's bus.
        NODES * 2
    }

    fn data_knows_ports(&self) -> bool {
        true
    }

    fn prepare(&self, at: &Place) -> Result<()> {
        for node in 0..NODES {
            std::fs::create_dir_all(at.data.join(node.to_string()))?;
        }
        Ok(())
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let task = |node: usize| {
            let port = at.port(node);
            let mut command = server(port)?;
            command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
            command.arg("--cluster-port").arg(at.port(NODES + node).to_string());
            command.current_dir(at.data.join(node.to_string()));
            Ok(Task { role: format!("node-{node}"), command, port })
        };
        (0..NODES).map(task).collect()
    }

    fn assemble(&self, at: &Place) -> Result<()> {
        let info = probe::redis(at.port(0), "CLUSTER INFO")
            .ok_or_else(|| Error::new("the first node does not answer CLUSTER INFO"))?;
        if !info.contains("cluster_slots_assigned:0\r") {
            return Ok(());
        }
        let mut create = command("redis-cli")?;
        create.args(["--cluster", "create"]);
        create.args((0..NODES).map(|node| format!("127.0.0.1:{}", at.port(node))));
        create.args(["--cluster-replicas", "0", "--cluster-yes"]);
        run(create)?;
        let agreed = wait_until(Duration::from_secs(30), || self.is_ready(at));
        agreed.then_some(()).ok_or_else(|| Error::new("the nodes do not agree on the cluster's slots"))
    }

    fn is_ready(&self, at: &Place) -> bool {
        // Every node has to know: one that does not yet answers CLUSTERDOWN.
        (0..NODES).all(|node| {
            probe::redis(at.port(node), "CLUSTER INFO").is_some_and(|info| {
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
        })
    }

    fn url(&self, at: &Place) -> String {
        let urls: Vec<_> = (0..NODES).map(|node| format!("redis://127.0.0.1:{}", at.port(node))).collect();
        urls.join(",")
    }
}
