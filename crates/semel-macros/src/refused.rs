//! What the attributes refuse, and where it says so.
//!
//! `refused/NAME.rs` is a source with one mistake in each function; `refused/NAME.txt` has a line for each: where,
//! and the message. Nothing is compiled: all of it is decided by the expansion.

use proc_macro2::{Delimiter, LineColumn, TokenStream, TokenTree};
use syn::Result;

use crate::{idempotent, saga, step};

type Expand = fn(TokenStream, TokenStream) -> Result<TokenStream>;

const ATTRIBUTES: [(&str, Expand); 3] =
    [("idempotent", idempotent::expand), ("step", step::expand), ("saga", saga::expand)];

/// The attributed items of a source: the line of the attribute, what expands it, its options, the item.
fn attributed(tokens: TokenStream) -> Vec<(usize, Expand, TokenStream, TokenStream)> {
    let (mut found, mut tokens) = (Vec::new(), tokens.into_iter());
    while let Some(token) = tokens.next() {
        let TokenTree::Group(group) = &token else { continue };
        let mut inner = group.stream().into_iter();
        let attribute = match (group.delimiter(), inner.next()) {
            (Delimiter::Bracket, Some(TokenTree::Ident(name))) => {
                ATTRIBUTES.iter().find(|(attribute, _)| name == attribute)
            }
            _ => None,
        };
        let (expand, options) = match (attribute, inner.next()) {
            (Some((_, expand)), Some(TokenTree::Group(options))) => (*expand, options.stream()),
            (Some((_, expand)), None) => (*expand, TokenStream::new()),
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
        found.push((group.span().start().line, expand, options, item.into_iter().collect()));
    }
    found
}

/// `LINE:COLUMN message`, or `LINE message` where the whole attribute is meant.
fn refusals(source: &str) -> String {
    let mut lines = String::new();
    for (line, expand, options, item) in attributed(source.parse().unwrap()) {
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

refused!(arguments, functions, missing, options, sagas, steps, values);
// A handler with a receiver is refused for another reason where there are no handlers.
#[cfg(feature = "axum")]
refused!(receivers);
