//! `#[step]`: a function becomes a type with the traits of a step.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Error, LitInt, LitStr, Path, Result, Type, parse2};

use crate::options::{each, equals, text, unknown};
use crate::signature::{Replaced, last_segment, of};
use crate::value;

/// All of them, in the order of the docs.
const NAMES: [&str; 13] = [
    "keyed",
    "opaque",
    "atomic",
    "undo",
    "leaves_nothing",
    "lookup",
    "safe_for",
    "timeout",
    "settle",
    "attempts",
    "concurrent",
    "undo_effect",
    "name",
];

#[derive(Default)]
struct Options {
    /// `keyed`, `opaque` or `atomic`.
    effect: Option<Ident>,
    undo: Option<Path>,
    leaves_nothing: bool,
    lookup: Option<Path>,
    name: Option<LitStr>,
    /// What was written, as calls on the spec. Other defaults are those of `StepSpec` alone.
    settings: Vec<TokenStream>,
    /// Where each option stands.
    given: Vec<Ident>,
}

impl Options {
    fn take(&mut self, name: &Ident, input: ParseStream<'_>) -> Result<()> {
        match name.to_string().as_str() {
            "keyed" | "opaque" | "atomic" => {
                if let Some(effect) = &self.effect {
                    let message =
                        format!("`{effect}` and `{name}` exclude each other: a step has one effect");
                    return Err(Error::new(name.span(), message));
                }
                self.effect = Some(name.clone());
            }
            "undo" => self.undo = Some(function(name, input, "release")?),
            "leaves_nothing" => self.leaves_nothing = true,
            "lookup" => {
                self.lookup = Some(function(name, input, "find")?);
                self.settings.push(quote!(with_lookup()));
            }
            "safe_for" => {
                let zero =
                    "a participant that forgets keys at once is not keyed; declare the step as `opaque`";
                let time = value::at_least_1_ms(&text(name, input)?, zero)?;
                self.settings.push(quote!(safe_for(#time)));
            }
            "timeout" => {
                let time = value::timeout(&text(name, input)?)?;
                self.settings.push(quote!(timeout(#time)));
            }
            "settle" => {
                let time = value::settle(&text(name, input)?)?;
                self.settings.push(quote!(settle(#time)));
            }
            "attempts" => {
                let message = "`attempts` is a number from 1 on: the first attempt counts";
                let count = count(name, input, "5", message)?;
                self.settings.push(quote!(attempts_max(#count)));
            }
            "concurrent" => {
                let message =
                    "`concurrent` is a number from 1 on: so many calls of the step are under way at once";
                let count = count(name, input, "20", message)?;
                self.settings.push(quote!(concurrent_max(#count)));
            }
            "undo_effect" => {
                equals(name, input, "keyed")?;
                let effect = input.parse::<Ident>()?;
                let effect = match effect.to_string().as_str() {
                    "keyed" => quote!(Keyed),
                    "opaque" => quote!(Opaque),
                    _ => {
                        let message = "`undo_effect` is `keyed` or `opaque`";
                        return Err(Error::new(effect.span(), message));
                    }
                };
                self.settings.push(quote!(undo_effect(::semel::Effect::#effect)));
            }
            "name" => {
                let text = text(name, input)?;
                value::check_saga_name(&text)?;
                self.name = Some(text);
            }
            _ => return Err(unknown(name, &NAMES)),
        }
        self.given.push(name.clone());
        Ok(())
    }

    fn given(&self, option: &str) -> Option<&Ident> {
        self.given.iter().find(|given| *given == option)
    }

    /// Refuses what does not go together. Returns the effect.
    fn check(&self) -> Result<Ident> {
        let Some(effect) = self.effect.clone() else {
            let message = "what protects the step's effect is missing; write `keyed` if the participant honours the \
                           key, `atomic` if the step only writes to the journal's database, and `opaque` otherwise";
            return Err(Error::new(Span::call_site(), message));
        };
        let refuse = |option: &str, why: &str| match self.given(option) {
            Some(given) => Err(Error::new(given.span(), why)),
            None => Ok(()),
        };
        if effect == "atomic" {
            let why = "an atomic step sends no key that could expire; leave `safe_for` out, or declare the step as \
                       `keyed`";
            refuse("safe_for", why)?;
            let why = "the result of an atomic step is never unknown: it is in the journal's own commit; leave `lookup` \
                       out";
            refuse("lookup", why)?;
            let why =
                "nothing of an atomic step arrives late: it is committed or rolled back; leave `settle` out";
            refuse("settle", why)?;
            let why = "the undo of an atomic step is atomic too; leave `undo_effect` out";
            refuse("undo_effect", why)?;
        }
        if effect == "opaque" && self.given("undo_effect").is_none() {
            let why = "`safe_for` says how long the participant remembers our key, and an opaque step relies on none; \
                       leave it out, or declare the step as `keyed`";
            refuse("safe_for", why)?;
        }
        if self.undo.is_some() {
            let why = "`undo` and `leaves_nothing` exclude each other: what leaves nothing needs no undo";
            refuse("leaves_nothing", why)?;
        } else {
            refuse("undo_effect", "`undo_effect` is about the undo; add `undo = …`, or leave it out")?;
        }
        Ok(effect)
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        each(input, |name, input| options.take(name, input))?;
        Ok(options)
    }
}

/// A number from 1 on.
fn count(name: &Ident, input: ParseStream<'_>, example: &str, otherwise: &str) -> Result<u32> {
    equals(name, input, example)?;
    let number = input.parse::<LitInt>()?;
    let count = number.base10_parse::<u32>().ok().filter(|count| *count > 0);
    count.ok_or_else(|| Error::new(number.span(), otherwise))
}

fn function(name: &Ident, input: ParseStream<'_>, example: &str) -> Result<Path> {
    equals(name, input, example)?;
    input.parse().map_err(|error| {
        let message = format!("`{name}` names an async function: `{name} = {example}`");
        Error::new(error.span(), message)
    })
}

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let options = parse2::<Options>(options)?;
    let effect = options.check()?;
    let atomic = effect == "atomic";
    let step = Replaced::new("step", "StepResult", options.name.as_ref(), item)?;
    let (app, input) = types(&step, atomic)?;
    let Replaced { name, ident, output, declared, cfg, inner, .. } = &step;

    // Spelled so that no function of the user is hidden by them.
    let local = |name: &str| Ident::new(name, Span::mixed_site());
    let (tx, at, asked, result) =
        (local("step_tx"), local("step_at"), local("step_input"), local("step_result"));
    let (tx_parameter, tx_argument, kept) = if atomic {
        (quote!(#tx: &mut ::semel::saga::StepTx<'_>,), quote!(#tx,), quote!(Self::Output))
    } else {
        (quote!(), quote!(), quote!(::core::option::Option<Self::Output>))
    };
    let parameters = quote!(#tx_parameter #at: ::semel::saga::At<'_, #app>, #asked: &Self::Input);
    let arguments = quote!(#tx_argument #at, #asked);
    let undo = options.undo.as_ref().map(|undo| {
        quote! {
            async fn undo(&self, #parameters, #result: #kept) -> ::semel::saga::StepResult<()> {
                #undo(#arguments, #result).await
            }
        }
    });
    let look_up = options.lookup.as_ref().map(|lookup| {
        quote! {
            async fn look_up(&self, #parameters) -> ::semel::saga::LookedUp<Self::Output> {
                #lookup(#arguments).await
            }
        }
    });
    let undoing = match (&options.undo, options.leaves_nothing) {
        (Some(_), _) => quote!(HasUndo),
        (None, true) => quote!(NothingToUndo),
        (None, false) => quote!(NoUndo),
    };
    let role = if atomic { quote!(AtomicStep) } else { quote!(SagaStep) };
    // An error of the constructor would be ours, not the user's.
    let (effect, settings) = (Ident::new(&effect.to_string(), Span::call_site()), &options.settings);
    Ok(quote! {
        #declared

        #(#cfg)*
        impl ::semel::saga::StepType for #ident {
            type Input = #input;
            type Output = #output;
            type Undo = ::semel::saga::#undoing;

            fn spec(&self) -> ::semel::saga::StepSpec {
                ::semel::saga::StepSpec::#effect(#name)#(.#settings)*
            }
        }

        #(#cfg)*
        impl ::semel::saga::#role<#app> for #ident {
            async fn run(&self, #parameters) -> ::semel::saga::StepResult<Self::Output> {
                // The journal's type is the one to borrow: `&String`, `&Vec<T>`.
                #[allow(clippy::ptr_arg)]
                #inner
                #ident(#arguments).await
            }
            #undo
            #look_up
        }
    })
}

/// The application and the input, from the types of the parameters.
fn types(step: &Replaced, atomic: bool) -> Result<(Type, Type)> {
    let expected = if atomic {
        "an atomic step takes `tx: &mut StepTx<'_>, at: At<'_, App>, input: &Input`"
    } else {
        "a step takes `at: At<'_, App>, input: &Input`"
    };
    let refuse = |at: &dyn ToTokens, why: &str| Err(Error::new_spanned(at, format!("{why}; {expected}")));
    let mut parameters = step.parameters.iter();
    if let Some(first) = step.parameters.first() {
        let is_tx = matches!(first, Type::Reference(tx) if last_segment(&tx.elem).is_some_and(|last| last.ident == "StepTx"));
        match (is_tx, atomic) {
            (true, false) => return refuse(first, "only a step declared as `atomic` has a transaction"),
            (false, true) => return refuse(first, "the transaction is missing"),
            (true, true) => drop(parameters.next()),
            (false, false) => {}
        }
    }
    let Some(at) = parameters.next() else {
        return refuse(&step.ident, "the parameter `at` is missing, which says the application");
    };
    let Some(app) = of(at, "At") else {
        return refuse(at, "this parameter must be `At<'_, App>`, written so: it says the application");
    };
    let Some(input) = parameters.next() else {
        return refuse(&step.ident, "the input is missing; a step without one takes `_: &()`");
    };
    let owned = match input {
        Type::Reference(reference) if reference.mutability.is_none() => &*reference.elem,
        other => return refuse(other, "the input is in the journal, and the step borrows it"),
    };
    if matches!(owned, Type::Slice(_)) || last_segment(owned).is_some_and(|last| last.ident == "str") {
        let why = "the input is read from the journal, so its type has to own it: `&String`, `&Vec<T>`";
        return refuse(owned, why);
    }
    match parameters.next() {
        Some(more) => refuse(more, "a step has one input; put both into a struct or a tuple"),
        None => Ok((app.clone(), owned.clone())),
    }
}
