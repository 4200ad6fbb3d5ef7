//! The calls of stock and bank, and what their answers say about a step.
//!
//! | answer | the step |
//! |---|---|
//! | 2xx | happened |
//! | 402, 409 | is refused, without effect |
//! | no connection | did not happen, and is tried again |
//! | anything else, or nothing | unknown: a 5xx may come after the effect |

use reqwest::{Client, RequestBuilder, Response, StatusCode};
use semel::Key;
use semel::saga::{LookedUp, StepError, StepResult};
use serde_json::json;

/// The header that carries a key.
pub const KEY: &str = "idempotency-key";

/// The stock service: it honours keys.
#[derive(Clone, Debug)]
pub struct Stock {
    http: Client,
    url: String,
}

/// The bank: it does not, but it lists charges by the reference that came with them.
#[derive(Clone, Debug)]
pub struct Bank {
    http: Client,
    url: String,
}

impl Stock {
    /// The service at this URL.
    pub fn new(url: &str) -> Self {
        Self { http: Client::new(), url: url.to_owned() }
    }

    /// Reserves one piece. The same key reserves it once.
    pub async fn hold(&self, sku: &str, key: &Key) -> StepResult<String> {
        let request = self.http.post(format!("{}/holds", self.url)).header(KEY, key.as_str());
        Ok(answer(request.json(&json!({ "sku": sku }))).await?.text().await?)
    }

    /// Releases what was reserved under this key, and sees to it that the key reserves nothing later.
    pub async fn release(&self, key: &Key) -> StepResult<()> {
        answer(self.http.delete(format!("{}/holds/{}", self.url, key.as_str()))).await.map(drop)
    }
}

impl Bank {
    /// The bank at this URL.
    pub fn new(url: &str) -> Self {
        Self { http: Client::new(), url: url.to_owned() }
    }

    /// Charges. Each call is another charge.
    pub async fn charge(&self, cents: i64, reference: &Key) -> StepResult<String> {
        let request = self.http.post(format!("{}/charges", self.url));
        let request = request.json(&json!({ "cents": cents, "reference": reference.as_str() }));
        Ok(answer(request).await?.text().await?)
    }

    /// Whether there is a charge with this reference.
    pub async fn find(&self, reference: &Key) -> LookedUp<String> {
        let asked = self.http.get(format!("{}/charges/{}", self.url, reference.as_str())).send().await;
        match asked {
            Ok(found) if found.status() == StatusCode::OK => {
                found.text().await.map_or(LookedUp::Unknown, LookedUp::Applied)
            }
            Ok(none) if none.status() == StatusCode::NOT_FOUND => LookedUp::NotApplied,
            _ => LookedUp::Unknown,
        }
    }
}

async fn answer(request: RequestBuilder) -> StepResult<Response> {
    match request.send().await {
        Ok(response) if response.status().is_success() => Ok(response),
        Ok(response) => match response.status() {
            StatusCode::PAYMENT_REQUIRED | StatusCode::CONFLICT => {
                Err(StepError::refused(response.text().await?))
            }
            status => Err(StepError::unknown(format!("the answer was {status}"))),
        },
        Err(error) if error.is_connect() => Err(StepError::not_applied(error)),
        Err(error) => Err(StepError::unknown(error)),
    }
}
