//! The steps that the body of a saga runs: what is the first argument of `.run(…)` and `.pivot(…)`.
//!
//! Tokens are read and not expressions, so that what stands in `tokio::join!` is found too.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use syn::parse::{ParseStream, Parser};
use syn::{ExprPath, Result, Token};

#[derive(Default)]
pub(crate) struct Found {
    /// In their order, also repeated ones.
    pub(crate) named: Vec<ExprPath>,
    /// Where a step is run that is not named: `Charge { cents }`, `next()`, a variable.
    pub(crate) unnamed: Option<Span>,
}

/// What is read of a body.
#[derive(Default)]
struct Walk {
    found: Found,
    /// The variables that `let` introduces.
    variables: Vec<Ident>,
}

pub(crate) fn steps_in(body: TokenStream) -> Found {
    let mut walk = Walk::default();
    walk.read(body);
    let Walk { mut found, variables } = walk;
    found.named.retain(|step| match step.path.get_ident() {
        Some(name) if variables.contains(name) => {
            found.unnamed.get_or_insert(name.span());
            false
        }
        _ => true,
    });
    found
}

impl Walk {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Ident(word) if word == "let" => self.variables.extend(variable(&tokens[at + 1..])),
                TokenTree::Punct(punct) if punct.as_char() == '.' => self.call(&tokens[at + 1..]),
                _ => {}
            }
        }
    }

    /// What follows a dot.
    fn call(&mut self, rest: &[TokenTree]) {
        let Some(TokenTree::Ident(method)) = rest.first() else { return };
        let Some(arguments) = arguments(&rest[1..]) else { return };
        if method != "run" && method != "pivot" {
            return;
        }
        match Parser::parse2(first_argument, arguments.stream()) {
            Ok(First::Step(step)) => self.found.named.push(step),
            Ok(First::Unnamed(span)) => drop(self.found.unnamed.get_or_insert(span)),
            Ok(First::Alone) | Err(_) => {}
        }
    }
}

/// The variable after `let`, unless it is a pattern.
fn variable(rest: &[TokenTree]) -> Option<Ident> {
    let rest = match rest.first() {
        Some(TokenTree::Ident(word)) if word == "mut" => &rest[1..],
        _ => rest,
    };
    match (rest.first(), rest.get(1)) {
        (Some(TokenTree::Ident(name)), Some(TokenTree::Punct(next)))
            if matches!(next.as_char(), '=' | ':') =>
        {
            let in_path = is_punct(rest.get(1), ':') && is_punct(rest.get(2), ':');
            (!in_path).then(|| name.clone())
        }
        _ => None,
    }
}

/// What follows the method's name: `(…)`, or `::<…>(…)`.
fn arguments(mut rest: &[TokenTree]) -> Option<&Group> {
    if is_punct(rest.first(), ':') && is_punct(rest.get(2), '<') {
        let mut open = 0_u32;
        let end = rest.iter().position(|token| {
            open += u32::from(is_punct(Some(token), '<'));
            let closes = is_punct(Some(token), '>');
            open -= u32::from(closes && open > 0);
            closes && open == 0
        })?;
        rest = &rest[end + 1..];
    }
    match rest.first() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => Some(group),
        _ => None,
    }
}

enum First {
    Step(ExprPath),
    Unnamed(Span),
    /// No second argument: not a saga's method.
    Alone,
}

fn first_argument(input: ParseStream<'_>) -> Result<First> {
    let ahead = input.fork();
    if let Ok(step) = ahead.parse::<ExprPath>()
        && ahead.parse::<Token![,]>().is_ok()
        && !ahead.is_empty()
    {
        input.parse::<TokenStream>()?;
        return Ok(First::Step(step));
    }
    let first = input.parse::<syn::Expr>()?;
    let more = input.parse::<Option<Token![,]>>()?.is_some() && !input.is_empty();
    input.parse::<TokenStream>()?;
    Ok(if more { First::Unnamed(syn::spanned::Spanned::span(&first)) } else { First::Alone })
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}
