//! The parts that are processes of ours, and how each is started.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::stack::Stack;

/// How long others wait after a crash of the gateway or the relay.
const LEASE: &str = "3s";

/// A process of the stack's own, in the order in which they are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Payments,
    Gateway,
    Relay,
    Consumer,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [Self::Payments, Self::Gateway, Self::Relay, Self::Consumer];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Payments => "payments",
            Self::Gateway => "gateway",
            Self::Relay => "relay",
            Self::Consumer => "consumer",
        }
    }

    /// The beginning of the line it writes when it serves.
    pub(super) fn up(self) -> &'static str {
        match self {
            Self::Payments | Self::Gateway => "listening on ",
            Self::Relay => "relaying",
            Self::Consumer => "notifying",
        }
    }

    pub(super) fn command(self, stack: &Stack) -> Result<Command, String> {
        let kafka = format!("kafka://{}", stack.kafka());
        // A part that is started again keeps its address.
        let at = |known: Option<SocketAddr>| known.map_or("127.0.0.1:0".to_owned(), |at| at.to_string());
        match self {
            Self::Payments => {
                let mut payments = program("payments")?;
                payments.args(["--store", &stack.store(), "--cache", &stack.cache()]);
                payments.args(["--serve", &at(stack.payments)]);
                Ok(payments)
            }
            Self::Gateway => {
                let upstream = stack.payments.ok_or("start the service before the gateway")?;
                let config = stack.directory.join("gateway.toml");
                let text = gateway(&at(stack.gateway), upstream, &stack.directory.join("gateway.db"));
                fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
                let mut gateway = program("semel")?;
                gateway.arg("gateway").arg("--config").arg(&config);
                Ok(gateway)
            }
            Self::Relay => {
                let mut relay = program("semel")?;
                relay.args(["relay", "--from", &stack.store(), "--to", &kafka]);
                relay.args(["--mode", stack.mode.name(), "--lease", LEASE]);
                if stack.mode == super::Mode::Cdc {
                    relay.args(["--slot", &stack.schema, "--publication", &stack.schema]);
                }
                Ok(relay)
            }
            Self::Consumer => {
                let mut consumer = program("payments")?;
                consumer.args(["notify", "--from", &kafka, "--store", &stack.store()]);
                // A group for this run, and a static member that has its partitions back at once after a crash.
                consumer.args(["--group", stack.merchant(), "--member", "notifier"]);
                if let Some(bug) = &stack.planted {
                    consumer.env("PAYMENTS_PLANTED", bug);
                }
                Ok(consumer)
            }
        }
    }
}

/// A program that was built with this one.
fn program(name: &str) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Command::new(own.with_file_name(name)))
}

/// The service claims in its own transactions, so what the gateway passes on again is safe.
fn gateway(listen: &str, upstream: SocketAddr, store: &Path) -> String {
    let operation = |name: &str, route: &str| {
        format!(
            "[[operation]]\nname = \"{name}\"\nmatch = \"POST {route}\"\neffect = \"keyed\"\n\
             in_flight = \"wait:2s\"\nlease = \"{LEASE}\"\n\n"
        )
    };
    format!(
        "upstream = \"http://{upstream}\"\nlisten = \"{listen}\"\nadmin = \"127.0.0.1:0\"\n\
         store = \"sqlite:{}\"\n\n[scope]\ntenant = \"header:X-Merchant-Id\"\n\n{}{}",
        store.display(),
        operation("payment.create", "/api/v1/payments"),
        operation("payment.refund", "/api/v1/payments/{id}/refunds")
    )
}
