//! Which headers may count.

use super::RecipeError;

/// Most headers a recipe may choose.
pub const HEADERS_MAX: usize = 32;

/// Headers that change between a request and its own retry, and so can never be chosen: who carries it, how
/// it travels, when and how often it was sent, and credentials, which are refreshed. The content type is here
/// because its essence is in every fingerprint and its boundary is random; the idempotency key, because the
/// fingerprint is what is compared *under* a key.
#[rustfmt::skip]
const VOLATILE: &[&str] = &[
    "accept-encoding", "age", "amz-sdk-invocation-id", "amz-sdk-request", "authorization", "b3", "baggage",
    "cache-control", "connection", "content-length", "content-type", "cookie", "date", "dpop", "expect",
    "forwarded", "idempotency-key", "keep-alive", "pragma", "proxy-authorization", "proxy-connection",
    "signature", "signature-input", "stripe-signature", "te", "traceparent", "tracestate", "trailer",
    "transfer-encoding", "upgrade", "user-agent", "via", "x-amz-date", "x-amz-security-token",
    "x-amzn-trace-id", "x-cloud-trace-context", "x-correlation-id", "x-idempotency-key", "x-real-ip",
    "x-request-id", "x-stainless-retry-count", "x-stripe-client-telemetry",
];

/// Prefixes of volatile headers.
const VOLATILE_PREFIXES: &[&str] = &["x-b3-", "x-datadog-", "x-envoy-", "x-forwarded-"];

/// The names in lower case, sorted, once each.
///
/// A volatile one is an error and not silently left out: the recipe's author believes that it counts.
pub(super) fn choose(names: Vec<String>) -> Result<Vec<String>, RecipeError> {
    let mut chosen = Vec::with_capacity(names.len());
    for given in names {
        let name = given.to_ascii_lowercase();
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(RecipeError::HeaderName { name: given });
        }
        if is_volatile(&name) {
            return Err(RecipeError::VolatileHeader { name });
        }
        chosen.push(name);
    }
    chosen.sort();
    chosen.dedup();
    if chosen.len() > HEADERS_MAX {
        return Err(RecipeError::TooManyHeaders { count: chosen.len() });
    }
    Ok(chosen)
}

fn is_volatile(name: &str) -> bool {
    VOLATILE.contains(&name) || VOLATILE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// RFC 9110's `tchar`.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<Vec<String>, RecipeError> {
        choose(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn names_are_lower_case_sorted_and_once_each() {
        assert_eq!(chosen(&["X-b", "x-A", "x-B"]), Ok(vec!["x-a".to_owned(), "x-b".to_owned()]));
    }

    #[test]
    fn a_header_that_changes_between_retries_is_refused() {
        for name in VOLATILE.iter().chain(&["Authorization", "X-Forwarded-For", "x-b3-traceid"]) {
            let refused = RecipeError::VolatileHeader { name: name.to_ascii_lowercase() };
            assert_eq!(chosen(&["x-a", name]), Err(refused));
        }
    }

    #[test]
    fn what_no_header_is_called_is_refused() {
        for name in ["", "a b", "a:", "\u{e9}", "a\n"] {
            assert_eq!(chosen(&[name]), Err(RecipeError::HeaderName { name: name.to_owned() }));
        }
    }

    #[test]
    fn the_bound_holds() {
        let names = |count: usize| (0..count).map(|n| format!("x-{n}")).collect();
        assert!(choose(names(HEADERS_MAX)).is_ok());
        assert_eq!(
            choose(names(HEADERS_MAX + 1)),
            Err(RecipeError::TooManyHeaders { count: HEADERS_MAX + 1 })
        );
    }
}
