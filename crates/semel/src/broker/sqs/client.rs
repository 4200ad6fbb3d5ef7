//! The client of Amazon's SDK: endpoint, credentials, error classification. For sink and source.

use std::error::Error;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{
    BehaviorVersion, Config, Credentials, Region, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

/// Longest connect timeout.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Shortest and longest timeout of one call.
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(120));

/// Access to SQS: queue, credentials, region and timeout. Shared by the options of the sink and the source.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) url: String,
    pub(super) timeout: Duration,
    pub(super) client: Option<Client>,
    credentials: Option<Credentials>,
    pub(super) region: Option<String>,
}

impl Access {
    pub(super) fn new(url: &str, timeout: Duration) -> Self {
        Self { url: url.to_owned(), timeout, client: None, credentials: None, region: None }
    }

    /// Credentials given by the caller, for tests and for callers that store them elsewhere.
    pub(super) fn credentials(&mut self, id: &str, secret: &str, token: Option<&str>) {
        self.credentials = Some(keys(id, secret, token));
    }

    pub(super) fn timeout(&mut self, timeout: Duration) {
        self.timeout = timeout.clamp(TIMEOUTS.0, TIMEOUTS.1);
    }

    /// Creates a client without retries: only the caller knows when the first attempt was. `wait`: how long SQS itself
    /// may wait before it answers (long polling).
    pub(super) fn open(&self, wait: Duration) -> Result<Client, String> {
        let timeout = self.timeout + wait;
        let (endpoint, host) = endpoint(&self.url)?;
        let config = match &self.client {
            Some(client) => client.config().to_builder(),
            None => {
                let region = self.region.clone().or_else(|| region(host)).or_else(region_of_environment);
                Config::builder()
                    .behavior_version(BehaviorVersion::v2026_01_12())
                    .http_client(http(endpoint))
                    .endpoint_url(endpoint)
                    .region(Region::new(region.unwrap_or_else(|| "us-east-1".to_owned())))
                    .credentials_provider(match &self.credentials {
                        Some(credentials) => credentials.clone(),
                        None => credentials_of_environment()?,
                    })
            }
        };
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(timeout.min(CONNECT_MAX))
            .operation_timeout(timeout)
            .build();
        let config = config
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .timeout_config(timeouts);
        Ok(Client::from_conf(config.build()))
    }
}

/// Loads the system's certificate authorities only for `https://`.
fn http(endpoint: &str) -> SharedHttpClient {
    match endpoint.starts_with("http://") {
        true => Builder::new().build_http(),
        false => Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https(),
    }
}

/// Scheme and authority of a queue's URL, and the host alone.
fn endpoint(url: &str) -> Result<(&str, &str), String> {
    let wrong = || {
        format!(
            "{url:?} is not a queue URL such as https://sqs.eu-west-1.amazonaws.com/123456789012/payments.fifo"
        )
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_once('/').ok_or_else(wrong)?;
    let named = !queue_name(url).is_empty() && !path.contains(['?', '#']);
    if !matches!(scheme, "http" | "https") || authority.is_empty() || authority.contains('@') || !named {
        return Err(wrong());
    }
    let endpoint = &url[..scheme.len() + 3 + authority.len()];
    Ok((endpoint, authority.split(':').next().unwrap_or(authority)))
}

/// The last part of a queue's URL.
pub(super) fn queue_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or("")
}

/// `sqs.eu-west-1.amazonaws.com`, `vpce-1.sqs.eu-west-1.vpce.amazonaws.com`, and the old
/// `eu-west-1.queue.amazonaws.com`.
fn region(host: &str) -> Option<String> {
    let labels: Vec<&str> = host.split('.').collect();
    if !labels.contains(&"amazonaws") {
        return None;
    }
    let at = labels.iter().position(|label| matches!(*label, "sqs" | "sqs-fips"));
    let found = match at {
        Some(at) => labels.get(at + 1),
        None => labels.first().filter(|_| labels.get(1) == Some(&"queue")),
    };
    found.map(|region| (*region).to_owned())
}

fn region_of_environment() -> Option<String> {
    ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(set)
}

fn credentials_of_environment() -> Result<Credentials, String> {
    match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => Ok(keys(&id, &secret, set("AWS_SESSION_TOKEN").as_deref())),
        _ => Err(
            "credentials for SQS are missing: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass an \
                  aws-sdk-sqs client that has credentials"
                .to_owned(),
        ),
    }
}

fn keys(id: &str, secret: &str, token: Option<&str>) -> Credentials {
    Credentials::new(id, secret, token.map(str::to_owned), None, "semel")
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) struct SqsError {
    pub(super) message: String,
    /// SQS's error code, if it returned one.
    pub(super) code: Option<String>,
    /// In doubt: SQS may have executed the request.
    pub(super) maybe_done: bool,
}

impl SqsError {
    pub(super) fn of<E: ProvideErrorMetadata + Error + 'static>(error: &SdkError<E>) -> Self {
        let (message, maybe_done) = match error {
            SdkError::ConstructionFailure(_) => (chain(error), false),
            SdkError::DispatchFailure(failure) => {
                let message =
                    failure.as_connector_error().map_or_else(|| error.to_string(), |why| chain(why));
                (message, !failure.as_connector_error().is_some_and(|why| never_connected(why)))
            }
            SdkError::ServiceError(service) => {
                let why = service.err();
                let message = match (why.code(), why.message()) {
                    (Some(code), Some(message)) => format!("{code}: {message}"),
                    (Some(code), None) => code.to_owned(),
                    _ => chain(error),
                };
                // After a 5xx the outcome is in doubt.
                (message, service.raw().status().as_u16() >= 500)
            }
            _ => (chain(error), true),
        };
        let code = error.code().map(|code| code.rsplit(['#', '.']).next().unwrap_or(code).to_owned());
        Self { message: format!("SQS: {message}"), code, maybe_done }
    }

    /// Whether SQS returned this code, with or without the suffix `Exception`.
    pub(super) fn is(&self, code: &str) -> bool {
        self.code.as_deref().is_some_and(|found| found.trim_end_matches("Exception") == code)
    }
}

/// Whether no byte of the request was sent.
fn never_connected(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        next = error.source();
    }
    false
}

/// The error with all its sources.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_s_url_says_where_and_in_which_region() {
        for (url, at, of) in [
            (
                "https://sqs.eu-west-1.amazonaws.com/1/a.fifo",
                "https://sqs.eu-west-1.amazonaws.com",
                Some("eu-west-1"),
            ),
            (
                "https://vpce-1.sqs.us-west-2.vpce.amazonaws.com/1/a",
                "https://vpce-1.sqs.us-west-2.vpce.amazonaws.com",
                Some("us-west-2"),
            ),
            (
                "https://eu-west-1.queue.amazonaws.com/1/a",
                "https://eu-west-1.queue.amazonaws.com",
                Some("eu-west-1"),
            ),
            ("http://127.0.0.1:9324/0/a", "http://127.0.0.1:9324", None),
        ] {
            let (found, host) = endpoint(url).unwrap();
            assert_eq!((found, region(host).as_deref()), (at, of), "{url}");
        }
        for wrong in
            ["", "payments", "sqs://h/1/a", "https://h", "https:///a", "https://h/1/", "https://u@h/1/a"]
        {
            assert!(endpoint(wrong).unwrap_err().contains("not a queue URL"), "{wrong}");
        }
    }
}
