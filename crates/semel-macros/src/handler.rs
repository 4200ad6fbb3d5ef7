//! An axum handler: the body stays as it is, its rule is generated beside it, and it refuses to run without a claim.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, FnArg, ItemFn, Result, parse_quote};

use crate::options::Options;

pub(crate) fn expand(options: &Options, mut function: ItemFn) -> Result<TokenStream> {
    if !cfg!(feature = "axum") {
        let message =
            "without `guard`, `scope` and `key` this is an axum handler, and semel's feature `axum` is off";
        return Err(Error::new(Span::call_site(), message));
    }
    if let Some(receiver) = function.sig.receiver() {
        let message = "without `guard`, `scope` and `key` this is an axum handler, and those have no `self`";
        return Err(Error::new_spanned(receiver, message));
    }
    let (operation, declared) = (options.operation()?, options.declared()?);
    let (vis, handler) = (function.vis.clone(), function.sig.ident.clone());
    let claimed: FnArg = parse_quote!(_: ::semel::attribute::HandlerClaim<#handler>);
    function.sig.inputs.insert(0, claimed);
    let about = format!("The declaration of the handler `{handler}`.");
    Ok(quote! {
        #function

        #[doc = #about]
        // Named like the handler, so that one `use` brings both: functions and types do not share names.
        #[allow(non_camel_case_types)]
        #vis enum #handler {}

        impl #handler {
            /// The rule of its operation, for the layer: `POST /payments` and the like.
            #vis fn rule(route: &str) -> ::semel::http::Rule {
                #declared.rule(route)
            }
        }

        impl ::semel::attribute::Declared for #handler {
            const OPERATION: &'static str = #operation;
        }
    })
}
