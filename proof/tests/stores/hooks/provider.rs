//! The provider: signs anew each time it sends, and knows nothing but the answer.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sha2::Sha256;
use tokio::time::timeout;

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[derive(Clone)]
pub struct Provider {
    client: Client<HttpConnector, Full<Bytes>>,
    secret: &'static str,
}

impl Provider {
    pub fn stripe() -> Self {
        // A connection each: one that is killed is no other's.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { client, secret: SECRET }
    }

    /// Somebody who does not have the secret.
    pub fn forger() -> Self {
        Self { secret: "whsec_of_somebody_else", ..Self::stripe() }
    }

    /// Sends an event once. What it was answered, if it was.
    pub async fn send(&self, to: SocketAddr, event: &str) -> Option<u16> {
        let body = format!(r#"{{"id": "{event}",  "type": "charge.succeeded"}}"#);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()).unwrap();
        mac.update(format!("{at}.{body}").as_bytes());
        let signature: String =
            mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let request = Request::post(format!("http://{to}/stripe"))
            .header("stripe-signature", format!("t={at},v1={signature}"))
            .body(Full::from(body))
            .unwrap();
        let answer = timeout(Duration::from_secs(60), self.client.request(request)).await.unwrap();
        Some(answer.ok()?.status().as_u16())
    }
}

/// What a server counted: the number behind a result of Stripe's.
pub async fn counted(server: SocketAddr, result: &str) -> u64 {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.get(format!("http://{server}/metrics").parse().unwrap()).await.unwrap();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let line = format!(r#"semel_webhook_total{{provider="stripe",result="{result}"}} "#);
    let text = String::from_utf8(text.to_vec()).unwrap();
    text.lines().find_map(|have| have.strip_prefix(&line)).unwrap().parse().unwrap()
}
