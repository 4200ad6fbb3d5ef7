//! `#[saga]`: a function becomes a type that converts into its definition.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, LitInt, LitStr, Result, Token, Type, parenthesized, parse2};

use crate::options::{each, equals, text, unknown};
use crate::signature::{Replaced, of};
use crate::steps_in::steps_in;
use crate::value;

/// All of them, in the order of the docs.
const NAMES: [&str; 5] = ["name", "version", "deadline", "retention", "steps"];

#[derive(Default)]
struct Options {
    name: Option<LitStr>,
    version: Option<u32>,
    /// What was written, as calls on the definition. Other defaults are those of `Definition` alone.
    settings: Vec<TokenStream>,
    /// Steps that the body does not name.
    steps: Option<Punctuated<Expr, Token![,]>>,
}

impl Options {
    fn take(&mut self, name: &Ident, input: ParseStream<'_>) -> Result<()> {
        match name.to_string().as_str() {
            "name" => {
                let text = text(name, input)?;
                value::check_saga_name(&text)?;
                self.name = Some(text);
            }
            "version" => {
                equals(name, input, "1")?;
                let version = input.parse::<LitInt>()?;
                match version.base10_parse::<u32>() {
                    Ok(number) if number > 0 => self.version = Some(number),
                    _ => return Err(Error::new(version.span(), "versions are numbers, and begin with 1")),
                }
            }
            "deadline" => {
                let zero = "a deadline of zero would undo every saga; leave `deadline` out if there is none";
                let time = value::at_least_1_ms(&text(name, input)?, zero)?;
                self.settings.push(quote!(deadline(#time)));
            }
            "retention" => {
                let time = value::retention(&text(name, input)?)?;
                self.settings.push(quote!(retention(#time)));
            }
            "steps" => {
                if !input.peek(syn::token::Paren) {
                    let message =
                        "`steps` takes the steps that the body does not name: `steps(reserve, charge)`";
                    return Err(Error::new(name.span(), message));
                }
                let steps;
                parenthesized!(steps in input);
                self.steps = Some(Punctuated::parse_terminated(&steps)?);
            }
            _ => return Err(unknown(name, &NAMES)),
        }
        Ok(())
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        each(input, |name, input| options.take(name, input))?;
        Ok(options)
    }
}

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = parse2::<Options>(options)?;
    let saga = Replaced::new("saga", "SagaResult", options.name.as_ref(), item)?;
    let (app, input) = types(&saga)?;
    let Replaced { name, ident, output, declared, cfg, inner, .. } = &saga;
    let found = steps_in(inner.block.to_token_stream());
    if let (Some(unnamed), None) = (found.unnamed, &options.steps) {
        let message = "this step is not named here, so it cannot be declared, and one that is not declared parks the \
                       saga; write the step's name, or add `steps(…)` with those that this may be";
        return Err(Error::new(unnamed, message));
    }
    let mut steps: Vec<TokenStream> = Vec::new();
    let named = found.named.iter().map(ToTokens::to_token_stream);
    for step in named.chain(options.steps.iter().flatten().map(ToTokens::to_token_stream)) {
        if !steps.iter().any(|known| known.to_string() == step.to_string()) {
            steps.push(step);
        }
    }
    let declares = steps.iter().map(|step| {
        // A step of another application is refused where it is named.
        let at = Span::call_site().located_at(step.span());
        quote_spanned!(at=> let definition = ::semel::saga::attribute::DeclaredStep(#step).declare(definition);)
    });
    let (version, settings) = (options.version.unwrap_or(1), &options.settings);
    let of_types = quote!(::semel::saga::Definition<#app, #input, #output>);
    Ok(quote! {
        #declared

        #(#cfg)*
        impl ::core::convert::From<#ident> for #of_types {
            fn from(_: #ident) -> Self {
                #[allow(unused_imports)]
                use ::semel::saga::attribute::{DeclareAtomic as _, DeclareRemote as _};
                let definition = {
                    #inner
                    ::semel::saga::Definition::new(#name, #version, #ident)
                };
                let definition = definition #(.#settings)*;
                #(#declares)*
                definition
            }
        }
    })
}

/// The application and the input, from the types of the parameters.
fn types(saga: &Replaced) -> Result<(Type, Type)> {
    let expected = "a saga takes `saga: Saga<App>, input: Input`";
    let refuse = |at: &dyn ToTokens, why: &str| Err(Error::new_spanned(at, format!("{why}; {expected}")));
    let mut parameters = saga.parameters.iter();
    let Some(first) = parameters.next() else {
        return refuse(&saga.ident, "the saga's parameter is missing, which says the application");
    };
    let Some(app) = of(first, "Saga") else {
        return refuse(first, "this parameter must be `Saga<App>`, written so: it says the application");
    };
    let Some(input) = parameters.next() else {
        return refuse(&saga.ident, "the input is missing; a saga without one takes `_: ()`");
    };
    if let Type::Reference(_) = input {
        return refuse(input, "the saga's code outlives its caller, so it owns its input");
    }
    match parameters.next() {
        Some(more) => refuse(more, "a saga has one input; put both into a struct or a tuple"),
        None => Ok((app.clone(), input.clone())),
    }
}
