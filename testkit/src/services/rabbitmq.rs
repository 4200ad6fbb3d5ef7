//! RabbitMQ, with a name server of its own.

use super::error::Result;
use super::probe;
use super::recipe::{Need, Place, Recipe, Task, command};

/// The script below `sbin` drops to the package's user and shares the package's paths.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

const AMQP: usize = 0;
const DISTRIBUTION: usize = 1;
const EPMD: usize = 2;

pub(super) struct Rabbitmq;

impl Recipe for Rabbitmq {
    fn needs(&self) -> &'static [Need] {
        &[
            Need { program: SERVER, package: "rabbitmq-server" },
            Need { program: "epmd", package: "rabbitmq-server" },
        ]
    }

    fn ports(&self) -> usize {
        3
    }

    fn prepare(&self, at: &Place) -> Result<()> {
        for dir in ["home", "mnesia", "log"] {
            std::fs::create_dir_all(at.data.join(dir))?;
        }
        std::fs::write(at.data.join("enabled_plugins"), "[].\n")?;
        Ok(())
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let path = |name: &str| at.data.join(name);
        // Erlang would start a name server by itself, on all addresses, that outlives the broker
        // and is shared with the machine. Ours is there first, on loopback, and we stop it.
        let mut epmd = command("epmd")?;
        epmd.args(["-address", "127.0.0.1", "-port"]).arg(at.port(EPMD).to_string());
        std::fs::write(
            path("rabbitmq.conf"),
            format!("listeners.tcp.1 = 127.0.0.1:{}\nlog.console = true\n", at.port(AMQP)),
        )?;
        let mut server = command(SERVER)?;
        server
            // Lets the script replace itself by the Erlang machine, so that the pid we record is the broker's: a
            // script killed hard would leave its broker behind as an orphan.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("HOME", path("home"))
            .env("ERL_EPMD_PORT", at.port(EPMD).to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // A host that cannot be resolved hangs without a word; this one always can.
            .env("RABBITMQ_NODENAME", "semel@localhost")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", at.port(AMQP).to_string())
            .env("RABBITMQ_DIST_PORT", at.port(DISTRIBUTION).to_string())
            .env("RABBITMQ_MNESIA_BASE", path("mnesia"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins"))
            .env("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", path("none"))
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .current_dir(path("home"));
        let task = |role: &str, command, port| Task { role: role.to_owned(), command, port };
        Ok(vec![task("epmd", epmd, at.port(EPMD)), task("server", server, at.port(AMQP))])
    }

    fn is_ready(&self, at: &Place) -> bool {
        // Listeners open last, after users and virtual hosts exist. The answer to the protocol's
        // header is a method frame, Connection.Start.
        probe::ask(at.port(AMQP), b"AMQP\x00\x00\x09\x01", |answer| answer.len() >= 11)
            .is_some_and(|answer| answer[0] == 1 && answer[7..11] == [0, 10, 0, 10])
    }

    fn url(&self, at: &Place) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", at.port(AMQP))
    }
}
