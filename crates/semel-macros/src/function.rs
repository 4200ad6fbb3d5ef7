//! Any async function: its arguments are the request, its body becomes the work.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::{
    Error, Expr, FnArg, GenericArgument, GenericParam, ItemFn, Lifetime, Pat, PathArguments, Receiver,
    ReceiverKind, Result, ReturnType, Type, parse_quote,
};

use crate::options::{Options, missing};

/// Most arguments that are fingerprinted: the longest tuple serde knows.
const ARGUMENTS_MAX: usize = 16;

pub(crate) fn expand(options: &Options, mut function: ItemFn) -> Result<TokenStream> {
    if let Some(span) = options.atomic {
        let message = "an atomic effect needs claim and rows in one transaction; a function around them cannot provide \
                       that; use \"keyed\" or \"opaque\"";
        return Err(Error::new(span, message));
    }
    let guard = options.guard.as_ref().ok_or_else(|| missing("guard", "guard"))?;
    let key = options.key.as_ref().ok_or_else(|| missing("key", "key"))?;
    let scope = options.scope.as_ref().ok_or_else(|| {
        let message = "`scope` is missing; write it like `scope = merchant`, or `single_tenant` if there is only one \
                       tenant";
        Error::new(Span::call_site(), message)
    })?;
    let ItemFn { sig, block, .. } = &function;
    let given = match &sig.output {
        ReturnType::Type(_, ty) if matches!(**ty, Type::Path(_)) => ty.span(),
        other => {
            let message = "an idempotent function returns a `Result<T, E>` where `E: From<semel::OnceError>`";
            let at = if let ReturnType::Type(_, ty) = other { ty.span() } else { sig.ident.span() };
            return Err(Error::new(at, message));
        }
    };
    for parameter in &sig.generics.params {
        if let GenericParam::Lifetime(lifetime) = parameter {
            let message = "the work outlives its caller, so lifetime parameters are not allowed; let arguments own \
                           their data, and omit the lifetime of a borrowed `guard`, `scope` or `key`";
            return Err(Error::new_spanned(lifetime, message));
        }
    }
    let mut arguments = Vec::new();
    for argument in &sig.inputs {
        match argument {
            FnArg::Receiver(receiver) => check_receiver(receiver, block.to_token_stream())?,
            FnArg::Typed(typed) => arguments.push((name_of(&typed.pat)?, &*typed.ty)),
        }
    }
    if let Some(stranger) = options.skip.iter().find(|skip| !arguments.iter().any(|(name, _)| *name == *skip))
    {
        return Err(Error::new(stranger.span(), format!("`{stranger}` is not an argument of this function")));
    }
    for (name, ty) in &arguments {
        if let Some(span) = borrowed(ty)
            && ![guard, scope, key].iter().any(|expression| uses(expression.to_token_stream(), name))
        {
            let message = format!("`{name}` is borrowed, but the work outlives its caller; take it by value");
            return Err(Error::new(span, message));
        }
    }
    let asked: Vec<_> = arguments
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !is_just(key, name) && !is_just(scope, name))
        .filter(|name| !uses(guard.to_token_stream(), name) && !options.skip.contains(name))
        .collect();
    if let Some(one_more) = asked.get(ARGUMENTS_MAX) {
        let message = "at most 16 arguments are fingerprinted; put them into a struct, or `skip` some";
        return Err(Error::new(one_more.span(), message));
    }
    let mut declared = options.declared()?;
    // Such names were once left out, because a field or a method has them. Those fingerprints cannot be compared.
    if asked.iter().any(|name| find(guard.to_token_stream(), &|ident| ident == *name).is_some()) {
        declared = quote!(#declared.fingerprint_revision(1));
    }
    let attempt = options.attempt.as_ref().map_or_else(|| quote!(_), ToTokens::to_token_stream);
    // Resolved here and not in the body: the body may have a `call` of its own.
    let call = Ident::new("call", Span::mixed_site());
    // A type error in a value or an error type shall point to where it was written.
    let run = Ident::new("run", given);
    function.block = parse_quote!({
        let #call = #declared.call(&#guard, &#scope, &#key, &(#(&#asked,)*));
        #call.#run(move |#attempt| async move #block).await
    });
    Ok(function.into_token_stream())
}

fn check_receiver(receiver: &Receiver, body: TokenStream) -> Result<()> {
    match &receiver.kind {
        ReceiverKind::Reference(_, _, None) => match find(body, &|ident| ident == "self") {
            Some(own) => {
                let message = "the work outlives its caller and cannot borrow `self`; take `self: std::sync::Arc<Self>`";
                Err(Error::new(own.span(), message))
            }
            None => Ok(()),
        },
        ReceiverKind::Typed(_, ty) if is_arc(ty) => Ok(()),
        _ => {
            let message = "`self` may be the service or part of the request; take `&self` or `self: Arc<Self>` for a \
                           service, and pass the request as an argument";
            Err(Error::new_spanned(receiver, message))
        }
    }
}

fn is_arc(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "Arc")
}

fn name_of(pattern: &Pat) -> Result<&Ident> {
    match pattern {
        Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => Ok(&name.ident),
        other => Err(Error::new_spanned(other, "give this argument a name, and destructure it in the body")),
    }
}

/// The expression is just this argument.
fn is_just(expression: &Expr, argument: &Ident) -> bool {
    match expression {
        Expr::Path(path) => path.path.is_ident(argument),
        Expr::Reference(reference) => is_just(&reference.expr, argument),
        _ => false,
    }
}

/// The expression uses this argument: as a variable, not as a field, a method or a part of a path.
fn uses(tokens: TokenStream, argument: &Ident) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_punct = |token: Option<&TokenTree>, wanted: char| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted);
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => uses(group.stream(), argument),
        TokenTree::Ident(ident) if ident == argument => {
            let before = |back: usize| at.checked_sub(back).and_then(|at| tokens.get(at));
            // `a..b` is a range of two variables.
            let is_member = is_punct(before(1), '.') && !is_punct(before(2), '.');
            let in_path = is_punct(before(1), ':') && is_punct(before(2), ':');
            let begins_path = is_punct(tokens.get(at + 1), ':') && is_punct(tokens.get(at + 2), ':');
            !is_member && !in_path && !begins_path
        }
        _ => false,
    })
}

fn find(tokens: TokenStream, wanted: &dyn Fn(&Ident) -> bool) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) if wanted(&ident) => Some(ident),
        TokenTree::Group(group) => find(group.stream(), wanted),
        _ => None,
    })
}

/// Where a type borrows, as far as its spelling shows. What a function pointer or a `dyn Fn` takes is not held.
fn borrowed(ty: &Type) -> Option<Span> {
    let outlives = |lifetime: &Lifetime| lifetime.ident == "static";
    match ty {
        Type::Reference(reference) => match &reference.lifetime {
            Some(lifetime) if outlives(lifetime) => borrowed(&reference.elem),
            _ => Some(reference.and_token.span),
        },
        Type::Path(path) => path.path.segments.iter().find_map(|segment| match &segment.arguments {
            PathArguments::AngleBracketed(arguments) => {
                arguments.args.iter().find_map(|argument| match argument {
                    GenericArgument::Lifetime(lifetime) => (!outlives(lifetime)).then(|| lifetime.span()),
                    GenericArgument::Type(ty) => borrowed(ty),
                    _ => None,
                })
            }
            _ => None,
        }),
        Type::Tuple(tuple) => tuple.elems.iter().find_map(borrowed),
        Type::Array(array) => borrowed(&array.elem),
        Type::Slice(slice) => borrowed(&slice.elem),
        Type::Paren(paren) => borrowed(&paren.elem),
        Type::Group(group) => borrowed(&group.elem),
        _ => None,
    }
}
