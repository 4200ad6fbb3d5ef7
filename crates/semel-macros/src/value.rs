//! Literals: durations, names and choices. A wrong one is refused where it stands.
//!
//! The bounds are those of `semel::guard`; a macro crate cannot depend on it, so a test of semel compares the two.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, LitStr, Result};

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const LEASE_MS_MIN: u64 = 10;
const LEASE_MS_MAX: u64 = 86_400_000;
const WAIT_MS_MAX: u64 = 300_000;
const OPERATION_BYTES_MAX: usize = 200;
const SAGA_NAME_BYTES_MAX: usize = 64;

fn refuse<T>(span: Span, message: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(span, message))
}

/// Reads `30s` or `1h30m`. A number without a unit is refused: it is ambiguous.
fn duration_ms(text: &str) -> Option<u64> {
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*unit_ms)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

fn duration(text: &str, span: Span) -> Result<u64> {
    let wrong =
        || format!("{text:?} is not a duration; write it like \"30s\", \"5m\", \"2h\", \"7d\" or \"1h30m\"");
    duration_ms(text).map_or_else(|| refuse(span, wrong()), Ok)
}

fn of_ms(ms: u64) -> TokenStream {
    quote!(::core::time::Duration::from_millis(#ms))
}

/// 1 to 200 printable ASCII characters, no space at the ends.
pub(crate) fn check_operation(name: &LitStr) -> Result<()> {
    let text = name.value();
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if text.is_empty() || text.len() > OPERATION_BYTES_MAX || !printable || text.trim() != text {
        let rule = "1 to 200 printable ASCII characters, no space at the ends";
        return refuse(name.span(), format!("{text:?} is not an operation name: {rule}"));
    }
    Ok(())
}

/// The rule of `semel::saga`: 1 to 64 printable ASCII characters without # and /.
pub(crate) fn check_saga_name(name: &LitStr) -> Result<()> {
    let text = name.value();
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b'/');
    if text.is_empty() || text.len() > SAGA_NAME_BYTES_MAX || !printable {
        let rule = "1 to 64 printable ASCII characters without spaces, # and /";
        return refuse(
            name.span(),
            format!("{text:?} cannot name a saga or a step: {rule}; choose another with `name = \"…\"`"),
        );
    }
    Ok(())
}

/// A duration of more than nothing.
pub(crate) fn at_least_1_ms(value: &LitStr, zero: &str) -> Result<TokenStream> {
    match duration(&value.value(), value.span())? {
        0 => refuse(value.span(), zero),
        ms => Ok(of_ms(ms)),
    }
}

pub(crate) fn settle(value: &LitStr) -> Result<TokenStream> {
    duration(&value.value(), value.span()).map(of_ms)
}

pub(crate) fn retention(value: &LitStr) -> Result<TokenStream> {
    let (text, span) = (value.value(), value.span());
    if text == "forever" {
        return Ok(quote!(::semel::Retention::Forever));
    }
    if duration_ms(&text).is_none() {
        let ways = "write it like \"24h\" or \"7d\", or \"forever\"";
        return refuse(span, format!("{text:?} is not a retention; {ways}"));
    }
    match duration(&text, span)? {
        0 => refuse(span, "a retention of zero would let every retry run again"),
        ms => Ok(quote!(::semel::Retention::Ms(#ms))),
    }
}

pub(crate) fn lease(value: &LitStr) -> Result<TokenStream> {
    match duration(&value.value(), value.span())? {
        ms @ LEASE_MS_MIN..=LEASE_MS_MAX => Ok(of_ms(ms)),
        _ => refuse(value.span(), "a lease is between \"10ms\" and \"24h\""),
    }
}

pub(crate) fn timeout(value: &LitStr) -> Result<TokenStream> {
    at_least_1_ms(value, "a timeout of zero would end all work before it began")
}

pub(crate) fn safe_for(value: &LitStr) -> Result<TokenStream> {
    at_least_1_ms(
        value,
        "a service that forgets keys at once does not honour them; declare the effect as \"opaque\"",
    )
}

pub(crate) fn in_flight(value: &LitStr) -> Result<TokenStream> {
    let (text, span) = (value.value(), value.span());
    if text == "reject" {
        return Ok(quote!(::semel::InFlight::Reject));
    }
    let Some(wait) = text.strip_prefix("wait:") else {
        let ways = "write \"reject\", or how long a duplicate waits for the first: \"wait:2s\"";
        return refuse(span, format!("{text:?} is not an in-flight policy; {ways}"));
    };
    let ms = duration(wait, span)?;
    if ms > WAIT_MS_MAX {
        return refuse(span, "a duplicate waits at most \"5m\"");
    }
    let wait = of_ms(ms);
    Ok(quote!(::semel::InFlight::Wait(#wait)))
}

pub(crate) fn effect(value: &LitStr) -> Result<TokenStream> {
    match value.value().as_str() {
        "opaque" => Ok(quote!(::semel::Effect::Opaque)),
        "keyed" => Ok(quote!(::semel::Effect::Keyed)),
        "atomic" => Ok(quote!(::semel::Effect::Atomic)),
        other => refuse(
            value.span(),
            format!("{other:?} is not an effect; use \"opaque\", \"keyed\" or \"atomic\""),
        ),
    }
}

pub(crate) fn store_down(value: &LitStr) -> Result<TokenStream> {
    match value.value().as_str() {
        "closed" => Ok(quote!(::semel::StoreDown::Closed)),
        "open" => Ok(quote!(::semel::StoreDown::Open)),
        other => refuse(
            value.span(),
            format!(
                "{other:?} is not a store_down policy; use \"closed\" (nothing runs) or \"open\" (unguarded)"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, ms) in [
            ("30s", Some(30_000)),
            ("1h30m", Some(5_400_000)),
            ("7d", Some(604_800_000)),
            ("10ms", Some(10)),
            ("0s", Some(0)),
            ("", None),
            ("30", None),
            ("s", None),
            ("1w", None),
            ("-1s", None),
            ("1 s", None),
            ("1.5s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(duration_ms(text), ms, "{text:?}");
        }
    }

    #[test]
    fn bounds_are_part_of_what_is_allowed() {
        let literal = |text: &str| LitStr::new(text, Span::call_site());
        for (lease_is, good) in [("10ms", true), ("9ms", false), ("24h", true), ("86400001ms", false)] {
            assert_eq!(lease(&literal(lease_is)).is_ok(), good, "{lease_is}");
        }
        for (wait, good) in [("wait:5m", true), ("wait:300001ms", false), ("wait:", false), ("2s", false)] {
            assert_eq!(in_flight(&literal(wait)).is_ok(), good, "{wait}");
        }
        for (name, good) in
            [("a", true), ("a.b-c", true), ("", false), ("a b", false), ("a#1", false), ("a/b", false)]
        {
            assert_eq!(check_saga_name(&literal(name)).is_ok(), good, "{name}");
        }
        assert!(check_saga_name(&literal(&"x".repeat(64))).is_ok());
        assert!(check_saga_name(&literal(&"x".repeat(65))).is_err());
        assert!(check_operation(&literal(&"x".repeat(200))).is_ok());
        for bad in ["", " a", "a ", "a\n", "ä", &"x".repeat(201)] {
            assert!(check_operation(&literal(bad)).is_err(), "{bad:?}");
        }
    }
}
