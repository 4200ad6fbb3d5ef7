//! TLS by rustls: `rediss://` and `rediss+cluster://`. Certificates are always verified, against the system's
//! authorities or those in the file that `?ca=` names.

use redis::cluster::ClusterClientBuilder;
use redis::{Client, RedisResult, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::options::{RedisOptions, wrong};
use crate::store::StoreError;

/// Reads the certificate authorities of a file and checks them: a file without any would otherwise be noticed only in
/// the first handshake.
pub(super) fn check(_scheme: &str, ca: Option<&str>) -> Result<Option<Vec<u8>>, StoreError> {
    // The driver uses the process' default crypto provider, and panics if there are two and none is the default.
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster; its choice stands.
        let _ = ring::default_provider().install_default();
    }
    let Some(path) = ca else { return Ok(None) };
    let pem = std::fs::read(path)
        .map_err(|error| wrong(format!("ca={path} in the Redis URL cannot be read: {error}")))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(Some(pem)),
        _ => Err(wrong(format!("ca={path} in the Redis URL has no PEM certificate"))),
    }
}

fn certificates(options: &RedisOptions) -> Option<TlsCertificates> {
    let root_cert = options.ca.clone()?;
    Some(TlsCertificates { client_tls: None, root_cert: Some(root_cert) })
}

pub(super) fn client(options: &RedisOptions) -> RedisResult<Client> {
    let node = options.nodes.first().map_or("", String::as_str);
    match certificates(options) {
        Some(certificates) => Client::build_with_tls(node, certificates),
        None => Client::open(node),
    }
}

pub(super) fn cluster(builder: ClusterClientBuilder, options: &RedisOptions) -> ClusterClientBuilder {
    match certificates(options) {
        Some(certificates) => builder.certs(certificates),
        None => builder,
    }
}
