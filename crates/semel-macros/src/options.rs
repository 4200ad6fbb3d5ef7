//! The options in the parentheses.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, LitStr, Result, Token, parenthesized};

use crate::value;

/// All of them, in the order of the docs.
const NAMES: [&str; 14] = [
    "operation",
    "effect",
    "retention",
    "lease",
    "in_flight",
    "store_down",
    "timeout",
    "safe_for",
    "guard",
    "scope",
    "single_tenant",
    "key",
    "skip",
    "attempt",
];

#[derive(Default)]
pub(crate) struct Options {
    operation: Option<LitStr>,
    /// The settings that were written, as changes of a `semel::guard::Policy`. What was not written has no value here: defaults are `Policy::default()`'s business alone.
    settings: Vec<TokenStream>,
    /// Where the effect was declared atomic.
    pub(crate) atomic: Option<Span>,
    pub(crate) guard: Option<Expr>,
    pub(crate) scope: Option<Expr>,
    pub(crate) key: Option<Expr>,
    pub(crate) skip: Vec<Ident>,
    pub(crate) attempt: Option<Ident>,
    /// Whether an option was given that only a function has.
    of_a_function: bool,
}

impl Options {
    /// A handler's key, scope and store are those of the layer; a function that names one of them has no layer.
    pub(crate) fn is_of_a_function(&self) -> bool {
        self.of_a_function
    }

    pub(crate) fn operation(&self) -> Result<&LitStr> {
        self.operation.as_ref().ok_or_else(|| missing("operation", "\"payment.create\""))
    }

    /// The declaration: `operation("payment.create").set(|policy| policy.retention = …)`.
    pub(crate) fn declared(&self) -> Result<TokenStream> {
        let (operation, settings) = (self.operation()?, &self.settings);
        Ok(quote!(::semel::attribute::operation(#operation) #(.set(|policy| #settings))*))
    }

    fn take(&mut self, name: &Ident, input: ParseStream<'_>) -> Result<()> {
        match name.to_string().as_str() {
            "operation" => {
                let operation = text(name, input)?;
                value::check_operation(&operation)?;
                self.operation = Some(operation);
            }
            "effect" => {
                let effect = text(name, input)?;
                if effect.value() == "atomic" {
                    self.atomic = Some(effect.span());
                }
                self.set(name, value::effect(&effect)?);
            }
            "retention" => self.set(name, value::retention(&text(name, input)?)?),
            "lease" => self.set(name, value::lease(&text(name, input)?)?),
            "in_flight" => self.set(name, value::in_flight(&text(name, input)?)?),
            "store_down" => self.set(name, value::store_down(&text(name, input)?)?),
            "timeout" => {
                let timeout = value::timeout(&text(name, input)?)?;
                self.set(name, quote!(::core::option::Option::Some(#timeout)));
            }
            "safe_for" => {
                let safe_for = value::safe_for(&text(name, input)?)?;
                self.set(name, quote!(::core::option::Option::Some(#safe_for)));
            }
            "guard" => self.guard = Some(expression(name, input)?),
            "scope" => self.scope = Some(expression(name, input)?),
            "single_tenant" => self.scope = Some(syn::parse_quote!(::semel::Scope::single_tenant())),
            "key" => self.key = Some(expression(name, input)?),
            "skip" => self.skip = list(name, input)?,
            "attempt" => {
                equals(name, input, "attempt")?;
                self.attempt = Some(input.parse()?);
            }
            _ => return Err(unknown(name, &NAMES)),
        }
        self.of_a_function |=
            ["guard", "scope", "single_tenant", "key", "skip", "attempt"].iter().any(|of| name == of);
        Ok(())
    }

    fn set(&mut self, name: &Ident, value: TokenStream) {
        // Spelled by us: an error of the setting would be ours, not the user's.
        let field = Ident::new(&name.to_string(), Span::call_site());
        self.settings.push(quote!(policy.#field = #value));
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        each(input, |name, input| {
            let scopes = ["scope", "single_tenant"];
            if scopes.iter().any(|one| name == one) && options.scope.is_some() {
                let message = "`scope` and `single_tenant` exclude each other";
                return Err(Error::new(name.span(), message));
            }
            options.take(name, input)
        })?;
        options.operation()?;
        Ok(options)
    }
}

/// Reads options up to the end, each at most once.
pub(crate) fn each(
    input: ParseStream<'_>,
    mut take: impl FnMut(&Ident, ParseStream<'_>) -> Result<()>,
) -> Result<()> {
    let mut seen = Vec::<Ident>::new();
    while !input.is_empty() {
        let name = input.parse::<Ident>()?;
        if seen.contains(&name) {
            return Err(Error::new(name.span(), format!("`{name}` is given twice")));
        }
        take(&name, input)?;
        seen.push(name);
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(())
}

pub(crate) fn unknown(option: &Ident, all: &[&str]) -> Error {
    let all: Vec<_> = all.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("unknown option `{option}`; the options are {}", all.join(", "));
    Error::new(option.span(), message)
}

/// The error for a missing option, shown at the attribute.
pub(crate) fn missing(option: &str, example: &str) -> Error {
    Error::new(Span::call_site(), format!("`{option}` is missing; write it like `{option} = {example}`"))
}

pub(crate) fn equals(name: &Ident, input: ParseStream<'_>, example: &str) -> Result<()> {
    if input.parse::<Option<Token![=]>>()?.is_none() {
        return Err(Error::new(name.span(), format!("`{name}` needs a value: `{name} = {example}`")));
    }
    Ok(())
}

pub(crate) fn text(name: &Ident, input: ParseStream<'_>) -> Result<LitStr> {
    equals(name, input, "\"…\"")?;
    input
        .parse()
        .map_err(|error| Error::new(error.span(), format!("`{name}` needs a string: `{name} = \"…\"`")))
}

fn expression(name: &Ident, input: ParseStream<'_>) -> Result<Expr> {
    equals(name, input, "argument")?;
    input.parse()
}

fn list(name: &Ident, input: ParseStream<'_>) -> Result<Vec<Ident>> {
    if !input.peek(syn::token::Paren) {
        let message = "`skip` takes the arguments to leave out: `skip(database, client)`";
        return Err(Error::new(name.span(), message));
    }
    let arguments;
    parenthesized!(arguments in input);
    Ok(Punctuated::<Ident, Token![,]>::parse_terminated(&arguments)?.into_iter().collect())
}
