//! `#[idempotent]`: an async function, or a handler.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{ItemFn, Result, parse_quote, parse2};

use crate::options::Options;
use crate::signature::async_function;
use crate::{function, handler};

/// Replaces a function that was refused. Its body is not compiled: it relies on what the attribute would have
/// generated. A returned `impl` keeps its body, which alone says what it is.
pub(crate) fn stub(item: TokenStream) -> Option<TokenStream> {
    let mut function = parse2::<ItemFn>(item).ok()?;
    if !function.sig.output.to_token_stream().into_iter().any(|token| token.to_string() == "impl") {
        function.block = parse_quote!({ ::core::unreachable!() });
    }
    function.attrs.push(parse_quote!(#[allow(unused)]));
    Some(function.into_token_stream())
}

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = parse2::<Options>(options)?;
    let function = async_function("idempotent", item)?;
    if options.is_of_a_function() {
        function::expand(&options, function)
    } else {
        handler::expand(&options, function)
    }
}
