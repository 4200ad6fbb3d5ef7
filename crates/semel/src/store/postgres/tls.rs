//! TLS by rustls, with *ring*.
//!
//! `sslmode` has libpq's meaning, except that there is no `verify-ca`: a certificate for another host's name proves
//! little.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect::Duplex;
use super::error::{PostgresError, refused};
use super::options::{PostgresOptions, Tls};
use crate::tls_roots;

pub(super) struct Connector(Option<MakeRustlsConnect>);

impl Connector {
    pub(super) fn new(options: &PostgresOptions) -> Result<Self, PostgresError> {
        let provider = Arc::new(ring::default_provider());
        let roots = match (&options.tls, &options.root_cert) {
            (Tls::Disable, _) => return Ok(Self(None)),
            (_, Some(path)) if path != Path::new("system") => Some(from_file(path)?),
            (Tls::VerifyFull, _) | (_, Some(_)) => Some(of_the_system()?),
            (Tls::Prefer | Tls::Require, None) => None,
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(format!("TLS cannot be set up: {error}")))?;
        let config = match roots {
            Some(roots) => builder.with_root_certificates(roots).with_no_client_auth(),
            // As with libpq: these modes encrypt without verifying the certificate.
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
                .with_no_client_auth(),
        };
        Ok(Self(Some(MakeRustlsConnect::new(config))))
    }

    pub(super) fn can_secure(&self) -> bool {
        self.0.is_some()
    }

    /// The handshake, on a connection that the driver has not opened.
    pub(super) async fn secure(&self, host: &str, socket: TcpStream) -> Result<Box<dyn Duplex>, String> {
        let mut make = self.0.clone().ok_or("TLS is not set up")?;
        let tls = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut make, host);
        let socket = tls.map_err(|error| error.to_string())?.connect(socket).await;
        Ok(Box::new(socket.map_err(|error| error.to_string())?))
    }

    pub(super) async fn connect(
        &self,
        config: &Config,
    ) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        // The next statement on it notices when the connection has ended.
        match &self.0 {
            Some(connector) => {
                let (client, connection) = config.connect(connector.clone()).await?;
                Ok((client, tokio::spawn(async move { drop(connection.await) })))
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                Ok((client, tokio::spawn(async move { drop(connection.await) })))
            }
        }
    }
}

fn from_file(path: &Path) -> Result<RootCertStore, PostgresError> {
    let read = std::fs::read(path).map_err(|error| error.to_string());
    read.and_then(|pem| tls_roots::of_pem(&pem)).map_err(|what| {
        refused(format!("?sslrootcert={}: {what}; name a file of PEM certificates", path.display()))
    })
}

fn of_the_system() -> Result<RootCertStore, PostgresError> {
    tls_roots::of_the_system().map_err(|what| refused(format!("{what}; name one with ?sslrootcert=FILE")))
}

/// Accepts any certificate. The signatures of the handshake are verified all the same.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
