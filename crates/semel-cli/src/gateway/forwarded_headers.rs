//! Removes hop-by-hop headers, and adds the `X-Forwarded-…` ones.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use semel::http::headers;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// RFC 9110, section 7.6.1, and headers treated the same in practice. Trailers are not forwarded, so neither is the
/// header that announces them.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Naming these in `Connection` does not make them hop-by-hop: upstream needs them to know the request and its sender.
const END_TO_END: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::HOST,
    headers::IDEMPOTENCY_KEY,
];

/// Removes hop-by-hop headers, those named by `Connection` included, except those in `kept`: upstream must also see the
/// headers that the gateway has read (key, tenant, credentials).
pub(super) fn strip(headers: &mut HeaderMap, kept: &[HeaderName]) {
    // Usually there is none: scanning the request's few names is cheaper than looking up each of these.
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return;
    }
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    if let Some(named) = named_by_connection(headers) {
        for name in named.iter().filter(|name| !kept.contains(name)) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    // A chunked body has no valid length.
    if chunked {
        headers.remove(header::CONTENT_LENGTH);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    headers.get(header::CONNECTION)?;
    let lines = headers.get_all(header::CONNECTION).iter();
    let tokens = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
    let names = tokens.filter_map(|token| HeaderName::from_bytes(token.trim().as_bytes()).ok());
    Some(names.filter(|name| !END_TO_END.contains(name)).collect())
}

/// Proxies whose `X-Forwarded-…` headers are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trusted(Vec<(IpAddr, u8)>);

impl Trusted {
    /// Reads addresses such as `10.0.0.0/8` or `::1`.
    pub(super) fn parse(texts: &[String]) -> Result<Self, String> {
        let one = |text: &String| {
            let wrong = || format!("{text:?} is not an address or network; write it like 10.0.0.0/8");
            let (address, bits) = text.split_once('/').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
            let address: IpAddr = address.parse().map_err(|_| wrong())?;
            let bits_max = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(bits_max), str::parse).map_err(|_| wrong())?;
            if bits > bits_max { Err(wrong()) } else { Ok((address, bits)) }
        };
        texts.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.0.iter().any(|(network, bits)| match (network, peer) {
            (IpAddr::V4(network), IpAddr::V4(peer)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                network.to_bits() & mask == peer.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(peer)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*bits)).unwrap_or(0);
                network.to_bits() & mask == peer.to_bits() & mask
            }
            _ => false,
        })
    }
}

/// Sets the `X-Forwarded-…` headers: extends what a trusted peer sent, replaces what any other did.
pub(super) fn forwarded(
    headers: &mut HeaderMap,
    peer: HeaderValue,
    trusted: bool,
    host: Option<&HeaderValue>,
) {
    if !trusted {
        let names: Vec<HeaderName> =
            headers.keys().filter(|name| is_about_earlier_hops(name)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
    let mut hops: Vec<&str> = Vec::new();
    if trusted {
        hops.extend(headers.get_all(X_FORWARDED_FOR).iter().filter_map(|line| line.to_str().ok()));
    }
    let hops = match (hops.is_empty(), peer.to_str()) {
        (false, Ok(last)) => HeaderValue::from_str(&[&hops[..], &[last]].concat().join(", ")).ok(),
        _ => None,
    };
    headers.insert(X_FORWARDED_FOR, hops.unwrap_or(peer));
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
}

/// Whether a proxy uses this header to describe the request it received; any `X-Forwarded-…` counts.
fn is_about_earlier_hops(name: &HeaderName) -> bool {
    name == header::FORWARDED || name == "x-real-ip" || name.as_str().starts_with("x-forwarded-")
}

/// The headers about earlier hops, for a request about the same caller.
pub(super) fn forwarded_of(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let names = [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, header::FORWARDED];
    let lines =
        |name: HeaderName| headers.get_all(&name).iter().map(move |value| (name.clone(), value.clone()));
    names.into_iter().flat_map(|name| lines(name).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_belongs_to_one_connection_stays_there() {
        let mut sent = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other, content-type, idempotency-key"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic x"),
            ("content-type", "a/b"),
            ("idempotency-key", "k"),
        ]);
        strip(&mut sent, &[]);
        assert_eq!(sent, headers(&[("content-type", "a/b"), ("idempotency-key", "k")]));
    }

    #[test]
    fn what_the_gateway_has_read_cannot_be_taken_from_upstream() {
        let mut sent =
            headers(&[("connection", "x-tenant-id, x-other"), ("x-tenant-id", "acme"), ("x-other", "1")]);
        strip(&mut sent, &[HeaderName::from_static("x-tenant-id")]);
        assert_eq!(sent, headers(&[("x-tenant-id", "acme")]));
    }

    #[test]
    fn nothing_of_a_stranger_about_earlier_hops_passes() {
        let names = [
            "forwarded",
            "x-real-ip",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-uri",
            "x-forwarded-method",
        ];
        for trusted in [true, false] {
            let mut sent = headers(&names.map(|name| (name, "1")));
            forwarded(&mut sent, HeaderValue::from_static("10.0.0.1"), trusted, None);
            for name in names {
                assert_eq!(sent.contains_key(name), trusted, "{name}");
            }
        }
    }

    #[test]
    fn a_trusted_peer_is_believed_and_a_stranger_is_not() {
        let host = HeaderValue::from_static("shop.example");
        let sent = [("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "https"), ("forwarded", "for=1")];
        for (trusted, hops, proto, kept) in
            [(true, "1.2.3.4, 10.0.0.1", "https", true), (false, "10.0.0.1", "http", false)]
        {
            let mut headers = headers(&sent);
            forwarded(&mut headers, HeaderValue::from_static("10.0.0.1"), trusted, Some(&host));
            assert_eq!(headers["x-forwarded-for"], hops);
            assert_eq!(headers["x-forwarded-proto"], proto);
            assert_eq!(headers["x-forwarded-host"], "shop.example");
            assert_eq!(headers.contains_key("forwarded"), kept);
        }
    }

    #[test]
    fn networks() {
        let trusted = Trusted::parse(&["10.0.0.0/8".into(), "::1".into(), "192.168.1.7".into()]).unwrap();
        for (peer, trusts) in [
            ("10.200.3.4", true),
            ("11.0.0.1", false),
            ("::1", true),
            ("::2", false),
            ("::ffff:10.1.1.1", true),
            ("192.168.1.7", true),
            ("192.168.1.8", false),
        ] {
            assert_eq!(trusted.trusts(peer.parse().unwrap()), trusts, "{peer}");
        }
        assert!(Trusted::parse(&["0.0.0.0/0".into()]).unwrap().trusts([8, 8, 8, 8].into()));
        for bad in ["10.0.0.0/33", "ten", "10.0.0.0/x", ""] {
            assert!(Trusted::parse(&[bad.into()]).is_err(), "{bad}");
        }
    }
}
