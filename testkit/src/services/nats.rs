//! NATS with JetStream.

use super::error::Result;
use super::probe;
use super::recipe::{Need, Place, Recipe, Task, command};

pub(super) struct Nats;

impl Recipe for Nats {
    fn needs(&self) -> &'static [Need] {
        &[Need { program: "nats-server", package: "nats-server" }]
    }

    fn ports(&self) -> usize {
        2
    }

    fn prepare(&self, _at: &Place) -> Result<()> {
        Ok(())
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let mut command = command("nats-server")?;
        command.args(["-a", "127.0.0.1", "-js"]);
        command.arg("-p").arg(at.port(0).to_string());
        command.arg("-m").arg(at.port(1).to_string());
        command.arg("-sd").arg(&at.data);
        Ok(vec![Task { role: "server".to_owned(), command, port: at.port(0) }])
    }

    fn is_ready(&self, at: &Place) -> bool {
        // Only healthy once JetStream has recovered its streams.
        probe::http_ok(at.port(1), "/healthz")
    }

    fn url(&self, at: &Place) -> String {
        format!("nats://127.0.0.1:{}", at.port(0))
    }
}
