//! How a replication connection is made. The driver for SQL has no way to ask for one, so the few messages at the
//! beginning are sent here; secrets, TLS and addresses are those of the URL.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslMode};

use super::error::CdcError;
use super::pgoutput::Input;
use super::replication_connection::{Frame, ReplicationConnection};
use crate::relay::poll::postgres::leased_session::{ANY_BYTES, LeasedSession};
use crate::store::postgres::connect::{Connections, Duplex};
use crate::store::postgres::statement::Sql;

/// Texts as we read them, and a stream that no time limit of the role's ends.
const SETTINGS: &str = "-c bytea_output=hex -c DateStyle=ISO -c statement_timeout=0 -c lock_timeout=0 \
    -c idle_in_transaction_session_timeout=0 -c extra_float_digits=1";

/// Connects, for replication, within a bound.
pub(super) async fn connect(connections: &Connections) -> Result<ReplicationConnection, CdcError> {
    let patience = connections.options.connect_timeout();
    match tokio::time::timeout(patience, any(connections)).await {
        Ok(wire) => wire,
        Err(_) => Err(CdcError::Late(patience)),
    }
}

/// The first host that takes writes, as it is for SQL: only there is a slot of ours. After a promotion the standby may be
/// named before the primary.
async fn any(connections: &Connections) -> Result<ReplicationConnection, CdcError> {
    let config = connections.options.config();
    let mut last = CdcError::Refused("the URL names no host".into());
    let ports = config.get_ports();
    for (at, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        match primary(connections, config, host, port).await {
            Ok(wire) => return Ok(wire),
            Err(broken) => last = broken,
        }
    }
    Err(last)
}

async fn primary(
    connections: &Connections,
    config: &Config,
    host: &Host,
    port: u16,
) -> Result<ReplicationConnection, CdcError> {
    let mut wire = one(connections, config, host, port).await?;
    let rows = wire.command("SELECT pg_is_in_recovery()").await?;
    match rows.first().and_then(|row| row.first()) {
        Some(Some(standby)) if standby == "f" => Ok(wire),
        _ => {
            let message = "the server is a standby".to_owned();
            Err(CdcError::Server { state: "25006".into(), message })
        }
    }
}

async fn one(
    connections: &Connections,
    config: &Config,
    host: &Host,
    port: u16,
) -> Result<ReplicationConnection, CdcError> {
    let socket: Box<dyn Duplex> = match host {
        Host::Tcp(name) => {
            let socket = TcpStream::connect((name.as_str(), port)).await?;
            socket.set_nodelay(true)?;
            secure(connections, config, name, socket).await?
        }
        #[cfg(unix)]
        Host::Unix(path) => {
            Box::new(tokio::net::UnixStream::connect(path.join(format!(".s.PGSQL.{port}"))).await?)
        }
    };
    let mut wire = ReplicationConnection::new(socket);
    greet(&mut wire, config).await?;
    Ok(wire)
}

/// Asks for TLS as the URL says.
async fn secure(
    connections: &Connections,
    config: &Config,
    name: &str,
    mut socket: TcpStream,
) -> Result<Box<dyn Duplex>, CdcError> {
    if config.get_ssl_mode() == SslMode::Disable || !connections.can_secure() {
        return Ok(Box::new(socket));
    }
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    socket.write_all(&request).await?;
    // One byte and no more: whatever came behind it in the clear would be taken for the server's word.
    if socket.read_u8().await? == b'S' {
        return connections.secure(name, socket).await.map_err(CdcError::Refused);
    }
    match config.get_ssl_mode() {
        SslMode::Require => Err(CdcError::Refused("the server has no TLS, and ?sslmode= asks for it".into())),
        _ => Ok(Box::new(socket)),
    }
}

async fn greet(wire: &mut ReplicationConnection, config: &Config) -> Result<(), CdcError> {
    let user = config.get_user().ok_or_else(|| CdcError::Refused("the URL names no user".into()))?;
    let said = [
        ("client_encoding", "UTF8"),
        ("user", user),
        ("database", config.get_dbname().unwrap_or(user)),
        ("replication", "database"),
        ("options", SETTINGS),
        ("application_name", config.get_application_name().unwrap_or("semel")),
    ];
    wire.put(|output| frontend::startup_message(said, output))?;
    wire.flush().await?;
    let mut secret = Secret { user, password: config.get_password(), scram: None };
    loop {
        let Frame { tag, body } = wire.receive().await?;
        match tag {
            b'R' => secret.answer(wire, config, body).await?,
            b'Z' => return wire.command(ANY_BYTES).await.map(drop),
            // The key by which it could be cancelled.
            _ => {}
        }
    }
}

struct Secret<'a> {
    user: &'a str,
    password: Option<&'a [u8]>,
    scram: Option<sasl::ScramSha256>,
}

impl Secret<'_> {
    async fn answer(
        &mut self,
        wire: &mut ReplicationConnection,
        config: &Config,
        body: Bytes,
    ) -> Result<(), CdcError> {
        let mut input = Input(body);
        let asked = input.u32()?;
        if asked == 0 {
            return Ok(());
        }
        if config.get_channel_binding() == ChannelBinding::Require {
            return Err(CdcError::Refused("replication connections have no channel binding".into()));
        }
        let password = self.password.ok_or_else(|| CdcError::Refused("the URL has no password".into()))?;
        let lost = || CdcError::Nonsense("an answer to nothing that was asked".into());
        match asked {
            3 => wire.put(|output| frontend::password_message(password, output))?,
            5 => {
                let salt = input.take(4)?.as_ref().try_into().map_err(|_| lost())?;
                let hash = md5_hash(self.user.as_bytes(), password, salt);
                wire.put(|output| frontend::password_message(hash.as_bytes(), output))?;
            }
            10 => {
                let scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
                let scram = self.scram.insert(scram);
                wire.put(|output| {
                    frontend::sasl_initial_response(sasl::SCRAM_SHA_256, scram.message(), output)
                })?;
            }
            11 => {
                let scram = self.scram.as_mut().ok_or_else(lost)?;
                scram.update(&input.0)?;
                wire.put(|output| frontend::sasl_response(scram.message(), output))?;
            }
            12 => self.scram.as_mut().ok_or_else(lost)?.finish(&input.0)?,
            _ => {
                return Err(CdcError::Refused(
                    "the server asks for a proof of identity we do not have".into(),
                ));
            }
        }
        wire.flush().await
    }
}

/// What the server says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct System {
    pub(super) id: String,
    pub(super) timeline: String,
}

impl System {
    pub(super) async fn ask(wire: &mut ReplicationConnection, patience: Duration) -> Result<Self, CdcError> {
        let rows = tokio::time::timeout(patience, wire.command("IDENTIFY_SYSTEM")).await;
        let rows = rows.map_err(|_| CdcError::Late(patience))??;
        let mut row = rows.into_iter().next().into_iter().flatten();
        match (row.next().flatten(), row.next().flatten()) {
            (Some(id), Some(timeline)) => Ok(Self { id, timeline }),
            _ => Err(CdcError::Nonsense("the server does not say who it is".into())),
        }
    }

    /// Whether the connection for SQL is to the same: of several hosts another may have answered.
    pub(super) async fn is_of(&self, link: &LeasedSession) -> Result<(), CdcError> {
        static WHO: Sql = Sql { text: "SELECT system_identifier::text FROM pg_control_system()", types: &[] };
        // Where that may not be asked it is not known.
        match link.query(&WHO, &[]).await.ok().and_then(|rows| rows.first()?.try_get::<_, String>(0).ok()) {
            Some(id) => self.must_be(&id),
            None => Ok(()),
        }
    }

    pub(super) fn must_be(&self, id: &str) -> Result<(), CdcError> {
        if self.id == id {
            return Ok(());
        }
        let message = format!("one connection is to the cluster {}, another to {id}", self.id);
        Err(CdcError::Server { state: "25006".into(), message })
    }
}
