//! The attribute of semel. Use it as `semel::idempotent`, with the feature `macros`; it is documented there.
//!
//! | module | what |
//! |---|---|
//! | `options` | the options in the parentheses |
//! | `value` | durations and names, checked while compiling |
//! | `function` | any async function: the body becomes the work |
//! | `handler` | an axum handler: the body stays, and its rule is generated beside it |
//!
//! Generated code decides nothing: it names what was written and calls `semel::attribute`.

mod function;
mod handler;
mod options;
mod value;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::{Error, ItemFn, Result, parse_quote, parse2};

use options::Options;

/// Once per key: see `semel::idempotent`.
#[proc_macro_attribute]
pub fn idempotent(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let item = TokenStream::from(item);
    match expand(options.into(), item.clone()) {
        Ok(tokens) => tokens.into(),
        Err(error) => {
            let mut tokens = error.into_compile_error();
            tokens.extend(stub(item));
            tokens.into()
        }
    }
}

/// Replaces a function that was refused, so that its callers do not fail too. Its body is not compiled: it relies on
/// what the attribute would have generated. A returned `impl` keeps its body, which alone says what it is.
fn stub(item: TokenStream) -> Option<TokenStream> {
    let mut function = parse2::<ItemFn>(item).ok()?;
    if !function.sig.output.to_token_stream().into_iter().any(|token| token.to_string() == "impl") {
        function.block = parse_quote!({ ::core::unreachable!() });
    }
    function.attrs.push(parse_quote!(#[allow(unused)]));
    Some(function.into_token_stream())
}

fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = parse2::<Options>(options)?;
    let AsyncFunction(function) = parse2(item)?;
    if options.is_of_a_function() {
        function::expand(&options, function)
    } else {
        handler::expand(&options, function)
    }
}

struct AsyncFunction(ItemFn);

impl Parse for AsyncFunction {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let function = input.parse::<ItemFn>().map_err(|error| {
            let message = "`idempotent` needs an async function with a body";
            Error::new(error.span(), message)
        })?;
        if function.sig.asyncness.is_none() {
            let message = "`idempotent` needs an async function; add `async`";
            return Err(Error::new_spanned(function.sig.fn_token, message));
        }
        Ok(Self(function))
    }
}

#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
