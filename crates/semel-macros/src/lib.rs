//! The attributes of semel. Use them as `semel::idempotent`, `semel::step` and `semel::saga`, with the feature `macros`;
//! they are documented there.
//!
//! | module | what |
//! |---|---|
//! | `options` | the options in the parentheses |
//! | `value` | durations and names, checked while compiling |
//! | `function` | any async function: the body becomes the work |
//! | `handler` | an axum handler: the body stays, and its rule is generated beside it |
//! | `step` | a step of a saga: the function becomes a type with the traits of a step |
//! | `saga` | a saga: the function becomes a type that converts into its definition |
//! | `steps_in` | the steps that the body of a saga runs |
//! | `signature` | what steps and sagas read from a function |
//!
//! Generated code decides nothing: it names what was written and calls `semel::attribute` and `semel::saga`.

mod function;
mod handler;
mod idempotent;
mod options;
mod saga;
mod signature;
mod step;
mod steps_in;
mod value;

use proc_macro2::TokenStream;
use syn::Result;

/// Once per key: see `semel::idempotent`.
#[proc_macro_attribute]
pub fn idempotent(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    attribute(idempotent::expand, idempotent::stub, options, item)
}

/// A step of a saga: see `semel::step`.
#[proc_macro_attribute]
pub fn step(options: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(step::expand, signature::stub, options, item)
}

/// A saga: see `semel::saga`.
#[proc_macro_attribute]
pub fn saga(options: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(saga::expand, signature::stub, options, item)
}

/// Expands an attribute. An item that is refused is replaced by its stub, so that those who use it do not fail too.
fn attribute(
    expand: fn(TokenStream, TokenStream) -> Result<TokenStream>,
    stub: fn(TokenStream) -> Option<TokenStream>,
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

#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
