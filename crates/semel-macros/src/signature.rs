//! What steps and sagas read from the function they are written as.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::ext::IdentExt;
use syn::{
    Attribute, Error, FnArg, GenericArgument, ItemFn, LitStr, PathArguments, Result, ReturnType, Type,
    Visibility, parse2,
};

use crate::value;

/// The item of an attribute, which has to be an async function with a body.
pub(crate) fn async_function(attribute: &str, item: TokenStream) -> Result<ItemFn> {
    let function = parse2::<ItemFn>(item).map_err(|error| {
        Error::new(error.span(), format!("`{attribute}` needs an async function with a body"))
    })?;
    if function.sig.asyncness.is_none() {
        let message = format!("`{attribute}` needs an async function; add `async`");
        return Err(Error::new_spanned(function.sig.fn_token, message));
    }
    Ok(function)
}

/// An async function that a unit struct of the same name replaces.
pub(crate) struct Replaced {
    /// The name in the journal.
    pub(crate) name: LitStr,
    pub(crate) ident: Ident,
    /// The types of its parameters.
    pub(crate) parameters: Vec<Type>,
    /// What it returns if all goes well.
    pub(crate) output: Type,
    /// The struct.
    pub(crate) declared: TokenStream,
    /// The attributes of what is generated beside the struct.
    pub(crate) cfg: Vec<Attribute>,
    /// The function as it was written, for the inside of a method.
    pub(crate) inner: ItemFn,
}

impl Replaced {
    /// `result` is the name of the `Result` it returns.
    pub(crate) fn new(
        attribute: &str,
        result: &str,
        name: Option<&LitStr>,
        item: TokenStream,
    ) -> Result<Self> {
        let function = async_function(attribute, item)?;
        let (ident, generics) = (&function.sig.ident, &function.sig.generics);
        let name = match name {
            Some(name) => name.clone(),
            None => LitStr::new(&ident.unraw().to_string(), ident.span()),
        };
        value::check_saga_name(&name)?;
        if let Some(parameter) = generics.params.first() {
            let message = format!(
                "a {attribute} has one set of types, because it is kept in the journal: no type parameters, no lifetimes"
            );
            return Err(Error::new_spanned(parameter, message));
        }
        let parameters = function.sig.inputs.iter().map(|input| match input {
            FnArg::Typed(typed) => Ok((*typed.ty).clone()),
            FnArg::Receiver(receiver) => {
                let message = format!("a {attribute} is a function of its own, outside of any `impl`");
                Err(Error::new_spanned(receiver, message))
            }
        });
        let parameters = parameters.collect::<Result<Vec<_>>>()?;
        let output = match &function.sig.output {
            ReturnType::Type(_, ty) => of(ty, result).or_else(|| of(ty, "Result")).cloned().ok_or(ty),
            ReturnType::Default => {
                let message = format!("a {attribute} returns `{result}<T>`");
                return Err(Error::new(ident.span(), message));
            }
        };
        let output =
            output.map_err(|ty| Error::new_spanned(ty, format!("a {attribute} returns `{result}<T>`")))?;
        let (ident, vis) = (ident.clone(), function.vis.clone());
        let (mut outer, mut cfg, mut inner) = (Vec::new(), Vec::new(), function);
        inner.vis = Visibility::Inherited;
        inner.attrs.retain(|attribute| {
            let is = |name: &str| attribute.path().is_ident(name);
            if is("cfg") {
                cfg.push(attribute.clone());
            }
            if is("doc") || is("cfg") || is("deprecated") || is("allow") {
                outer.push(attribute.clone());
            }
            !(is("doc") || is("cfg") || is("deprecated"))
        });
        let declared = quote! {
            #(#outer)*
            #[allow(non_camel_case_types)]
            #[derive(Clone, Copy, Debug)]
            #vis struct #ident;
        };
        Ok(Self { name, ident, parameters, output, declared, cfg, inner })
    }
}

/// What replaces a function that was refused: the struct alone, so that its name is known.
pub(crate) fn stub(item: TokenStream) -> Option<TokenStream> {
    let function = parse2::<ItemFn>(item).ok()?;
    let (vis, ident) = (function.vis, function.sig.ident);
    Some(quote!(#[allow(unused, missing_docs, non_camel_case_types)] #vis struct #ident;))
}

/// The first type in the brackets of a type called `name`: `Shop` of `At<'_, Shop>`.
pub(crate) fn of<'t>(ty: &'t Type, name: &str) -> Option<&'t Type> {
    let last = last_segment(ty).filter(|last| last.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

pub(crate) fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        Type::Group(group) => last_segment(&group.elem),
        Type::Paren(paren) => last_segment(&paren.elem),
        _ => None,
    }
}
