//! TLS to Redis: checked, or refused.

use semel::store::redis::RedisStore;
use semel::store::{ErrorKind, Fate};
use testkit::certificates::certificates;
use testkit::services::{Service, require, spare_port};

use super::support::{Server, done, replayed};

#[tokio::test]
async fn tls_is_used_where_asked_and_a_certificate_by_a_stranger_is_refused() {
    let Some(_) = require(Service::Redis) else { return };
    let at = tempfile::tempdir().unwrap();
    certificates(at.path());
    let file = |name: &str| at.path().join(name).display().to_string();
    let port = spare_port().to_string();
    let (ca, other, cert, key) = (file("ca.pem"), file("other.pem"), file("server.pem"), file("server.key"));
    let settings = [
        ["--tls-port", &port],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &ca],
        ["--tls-auth-clients", "no"],
    ];
    let server = Server::start(&settings.concat()).await;
    let url = |host: &str, ca: &str| format!("rediss://{host}:{port}?timeout=30000&ca={ca}");

    let store = RedisStore::options(&url("localhost", &ca)).unwrap().create().await.unwrap();
    done(&store, "k").await;
    assert_eq!(replayed(&store, "k").await, "k");
    let clients: String = server.say(&["CLIENT", "LIST"]).await;
    assert!(clients.lines().any(|line| line.contains(&format!("laddr=127.0.0.1:{port} "))), "{clients}");

    // An authority that did not sign it, and the right one for another name.
    for url in [url("localhost", &other), url("127.0.0.1", &ca)] {
        let error = RedisStore::open(&url).await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied), "{error}");
        let mut causes = format!("{error:?}").to_lowercase();
        causes.retain(|c| c.is_ascii_alphabetic());
        assert!(causes.contains("certificate"), "{error:?}");
    }
    // The system's authorities do not know ours, and what is no certificate is not taken for one.
    assert!(RedisStore::open(&format!("rediss://localhost:{port}?timeout=30000")).await.is_err());
    let error = RedisStore::open(&url("localhost", &key)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    // Plain words to a port that wants TLS are an outage, not a hang.
    let error = RedisStore::open(&format!("redis://localhost:{port}?timeout=2000")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
