//! Opens a replication connection. The SQL driver cannot request one, so the few startup messages are sent here.
//! Credentials, TLS and addresses are those of the URL.

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
use crate::relay::postgres::leased_session::{ANY_BYTES, LeasedSession};
use crate::store::postgres::connect::{Connections, Duplex};
use crate::store::postgres::statement::Sql;
use crate::timeout::bounded;

/// Text formats as we parse them, and no timeout of the role that would end the stream.
const SETTINGS: &str = "-c bytea_output=hex -c DateStyle=ISO -c statement_timeout=0 -c lock_timeout=0 \
    -c idle_in_transaction_session_timeout=0 -c extra_float_digits=1";

/// Opens a replication connection within the connect timeout.
pub(super) async fn connect(connections: &Connections) -> Result<ReplicationConnection, CdcError> {
    let timeout = connections.options.connect_timeout();
    bounded(timeout, first_primary(connections), || CdcError::TimedOut(timeout)).await
}

/// The first host that accepts writes, as for SQL: only the primary has our slot. After a promotion the URL may name
/// the standby first.
async fn first_primary(connections: &Connections) -> Result<ReplicationConnection, CdcError> {
    let config = connections.options.config();
    let mut last = CdcError::Refused("the URL has no host; add one".into());
    let ports = config.get_ports();
    for (at, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        match primary(connections, config, host, port).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
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
    let mut connection = one(connections, config, host, port).await?;
    let rows = connection.command("SELECT pg_is_in_recovery()").await?;
    match rows.first().and_then(|row| row.first()) {
        Some(Some(standby)) if standby == "f" => Ok(connection),
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
    let mut connection = ReplicationConnection::new(socket);
    start_up(&mut connection, config).await?;
    Ok(connection)
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
    // Exactly one byte: plaintext injected after it must not be read as the server's.
    if socket.read_u8().await? == b'S' {
        return connections.secure(name, socket).await.map_err(CdcError::Refused);
    }
    match config.get_ssl_mode() {
        SslMode::Require => Err(CdcError::Refused("the server has no TLS, but ?sslmode= requires it".into())),
        _ => Ok(Box::new(socket)),
    }
}

/// Sends the startup message and authenticates.
async fn start_up(connection: &mut ReplicationConnection, config: &Config) -> Result<(), CdcError> {
    let user = config.get_user().ok_or_else(|| CdcError::Refused("the URL has no user; add one".into()))?;
    let parameters = [
        ("client_encoding", "UTF8"),
        ("user", user),
        ("database", config.get_dbname().unwrap_or(user)),
        ("replication", "database"),
        ("options", SETTINGS),
        ("application_name", config.get_application_name().unwrap_or("semel")),
    ];
    connection.put(|output| frontend::startup_message(parameters, output))?;
    connection.flush().await?;
    let mut secret = Secret { user, password: config.get_password(), scram: None };
    loop {
        let Frame { tag, body } = connection.receive().await?;
        match tag {
            b'R' => secret.answer(connection, config, body).await?,
            b'Z' => return connection.command(ANY_BYTES).await.map(drop),
            // The key for cancelling queries.
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
        connection: &mut ReplicationConnection,
        config: &Config,
        body: Bytes,
    ) -> Result<(), CdcError> {
        let mut input = Input(body);
        let asked = input.u32()?;
        if asked == 0 {
            return Ok(());
        }
        if config.get_channel_binding() == ChannelBinding::Require {
            return Err(CdcError::Refused(
                "replication connections do not support channel binding; remove channel_binding=require"
                    .into(),
            ));
        }
        let password = self.password.ok_or_else(|| {
            CdcError::Refused("the server asks for a password, but the URL has none".into())
        })?;
        let unexpected = || CdcError::Malformed("unexpected authentication message".into());
        match asked {
            3 => connection.put(|output| frontend::password_message(password, output))?,
            5 => {
                let salt = input.take(4)?.as_ref().try_into().map_err(|_| unexpected())?;
                let hash = md5_hash(self.user.as_bytes(), password, salt);
                connection.put(|output| frontend::password_message(hash.as_bytes(), output))?;
            }
            10 => {
                let scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
                let scram = self.scram.insert(scram);
                connection.put(|output| {
                    frontend::sasl_initial_response(sasl::SCRAM_SHA_256, scram.message(), output)
                })?;
            }
            11 => {
                let scram = self.scram.as_mut().ok_or_else(unexpected)?;
                scram.update(&input.0)?;
                connection.put(|output| frontend::sasl_response(scram.message(), output))?;
            }
            12 => self.scram.as_mut().ok_or_else(unexpected)?.finish(&input.0)?,
            _ => {
                return Err(CdcError::Refused(
                    "the server requires an unsupported authentication method; use SCRAM, md5 or password in \
                     pg_hba.conf"
                        .into(),
                ));
            }
        }
        connection.flush().await
    }
}

/// The identity of the server: IDENTIFY_SYSTEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct System {
    pub(super) id: String,
    pub(super) timeline: String,
}

impl System {
    pub(super) async fn identify(
        connection: &mut ReplicationConnection,
        timeout: Duration,
    ) -> Result<Self, CdcError> {
        let asked = connection.command("IDENTIFY_SYSTEM");
        let rows = bounded(timeout, asked, || CdcError::TimedOut(timeout)).await?;
        let mut row = rows.into_iter().next().into_iter().flatten();
        match (row.next().flatten(), row.next().flatten()) {
            (Some(id), Some(timeline)) => Ok(Self { id, timeline }),
            _ => Err(CdcError::Malformed("IDENTIFY_SYSTEM returned no system id".into())),
        }
    }

    /// Checks that the SQL connection is to the same server: with several hosts another may have answered.
    pub(super) async fn is_of(&self, leased: &LeasedSession) -> Result<(), CdcError> {
        static WHO: Sql = Sql { text: "SELECT system_identifier::text FROM pg_control_system()", types: &[] };
        // A user who may not read the identifier cannot check it.
        match leased.query(&WHO, &[]).await.ok().and_then(|rows| rows.first()?.try_get::<_, String>(0).ok()) {
            Some(id) => self.must_be(&id),
            None => Ok(()),
        }
    }

    pub(super) fn must_be(&self, id: &str) -> Result<(), CdcError> {
        if self.id == id {
            return Ok(());
        }
        let message = format!("one connection is to the cluster {}, the other to {id}", self.id);
        Err(CdcError::Server { state: "25006".into(), message })
    }
}
