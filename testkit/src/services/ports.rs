//! Free ports on loopback, different in every checkout.
//!
//! Below 32768, where Linux hands out ephemeral ports: a port chosen there may be some client's
//! a moment later. Where the search begins depends on the checkout's path, so that two checkouts
//! that start at the same moment do not reach for the same ports.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

const FIRST: u16 = 20_000;
const LAST: u16 = 31_999;

/// Default ports of servers that live in our range: Erlang's distribution port of RabbitMQ, and
/// MongoDB's, which is often on a developer's machine and starts later than we do.
const NEVER: [u16; 2] = [25_672, 27_017];

/// Chooses `count` free ports for a service; `slot` keeps the services of one checkout apart.
pub(super) fn choose(checkout: &Path, slot: u16, count: usize) -> Option<Vec<u16>> {
    let range = u32::from(LAST - FIRST) + 1;
    let start = (hash(checkout.as_os_str().as_encoded_bytes()) as u32).wrapping_add(u32::from(slot) * 16);
    let mut chosen = BTreeSet::new();
    let mut ports = Vec::new();
    for step in 0..range {
        let port = FIRST + u16::try_from(start.wrapping_add(step) % range).ok()?;
        if ports.len() == count {
            break;
        }
        if !NEVER.contains(&port) && is_free(port) && chosen.insert(port) {
            ports.push(port);
        }
    }
    (ports.len() == count).then_some(ports)
}

/// A port for a test's own server that starts later, or goes away and comes back: free now, and never handed out to a
/// process that asks for any port.
pub fn spare_port() -> u16 {
    const SPARE: std::ops::Range<u16> = 12_000..20_000;
    let port = std::iter::repeat_with(|| fastrand::u16(SPARE)).take(1_000).find(|port| is_free(*port));
    port.expect("a free port below 20,000")
}

/// Whether we could listen on this port now.
pub(super) fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// FNV-1a: stable across builds and machines, which the standard library's hasher is not.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_port_is_free_and_given_out_once() {
        let port = spare_port();
        assert!(port < FIRST && TcpListener::bind(("127.0.0.1", port)).is_ok());
    }

    #[test]
    fn chosen_ports_are_distinct_free_and_below_the_ephemeral_range() {
        let ports = choose(Path::new("/some/checkout"), 3, 6).unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 6);
        for port in ports {
            assert!((FIRST..=LAST).contains(&port) && !NEVER.contains(&port));
        }
    }

    #[test]
    fn a_port_that_is_taken_is_passed_over() {
        let checkout = Path::new("/a/checkout/of/this/test");
        let first = choose(checkout, 0, 1).unwrap()[0];
        let _taken = TcpListener::bind(("127.0.0.1", first)).unwrap();
        assert!(!is_free(first));
        assert_ne!(choose(checkout, 0, 1).unwrap()[0], first);
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
