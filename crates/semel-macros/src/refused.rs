//! What the attribute refuses, and where it says so.
//!
//! `refused/NAME.rs` is a source with one mistake in each function; `refused/NAME.txt` has a line for each: where,
//! and the message. Nothing is compiled: all of it is decided by the expansion.

use proc_macro2::{Delimiter, LineColumn, TokenTree};

use super::*;

/// The attributed items of a source: the line of the attribute, its options, the item.
fn attributed(tokens: TokenStream) -> Vec<(usize, TokenStream, TokenStream)> {
    let (mut found, mut tokens) = (Vec::new(), tokens.into_iter());
    while let Some(token) = tokens.next() {
        let TokenTree::Group(group) = &token else { continue };
        let mut inner = group.stream().into_iter();
        let options = match (inner.next(), inner.next()) {
            (Some(TokenTree::Ident(name)), Some(TokenTree::Group(options)))
                if group.delimiter() == Delimiter::Bracket && name == "idempotent" =>
            {
                options.stream()
            }
            _ => {
                found.extend(attributed(group.stream()));
                continue;
            }
        };
        let mut item = Vec::new();
        for token in tokens.by_ref() {
            let ends = match &token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(punct) => punct.as_char() == ';',
                _ => false,
            };
            item.push(token);
            if ends {
                break;
            }
        }
        found.push((group.span().start().line, options, item.into_iter().collect()));
    }
    found
}

/// `LINE:COLUMN message`, or `LINE message` where the whole attribute is meant.
fn refusals(source: &str) -> String {
    let mut lines = String::new();
    for (line, options, item) in attributed(source.parse().unwrap()) {
        let error = expand(options, item).expect_err("each of these is refused");
        let LineColumn { line: at, column } = error.span().start();
        // The span of the call itself has no position in a source that was only parsed.
        let position = if at < line { line.to_string() } else { format!("{at}:{}", column + 1) };
        lines += &format!("{position} {error}\n");
    }
    lines
}

macro_rules! refused {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            let expected = include_str!(concat!("refused/", stringify!($name), ".txt"));
            let source = include_str!(concat!("refused/", stringify!($name), ".rs"));
            assert_eq!(refusals(source), expected);
        })*
    };
}

refused!(arguments, functions, missing, options, values);
// A handler with a receiver is refused for another reason where there are no handlers.
#[cfg(feature = "axum")]
refused!(receivers);
