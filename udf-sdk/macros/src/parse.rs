//! As much of Rust's grammar as signatures need.

use std::iter::Peekable;

use proc_macro::token_stream::IntoIter;
use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

/// An error at a place in the author's code.
pub(crate) struct Problem {
    message: String,
    span: Span,
}

impl Problem {
    pub(crate) fn new(span: Span, message: impl Into<String>) -> Self {
        Problem {
            message: message.into(),
            span,
        }
    }

    /// `compile_error!` at the place.
    pub(crate) fn tokens(&self) -> TokenStream {
        let text = format!("::core::compile_error!({:?});", self.message);
        let tokens: TokenStream = text.parse().unwrap_or_default();
        respanned(tokens, self.span)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

/// The item as it was, and what comes beside it. With an error the item stays too, so that
/// there is one message and not one for each use.
pub(crate) fn finish(item: TokenStream, beside: Result<String>) -> TokenStream {
    let mut all = item;
    match beside.map(|text| text.parse::<TokenStream>()) {
        Ok(Ok(tokens)) => all.extend(tokens),
        Ok(Err(error)) => {
            let message = format!("the attribute made text that is no Rust: {error}");
            all.extend(Problem::new(Span::call_site(), message).tokens());
        }
        Err(problem) => all.extend(problem.tokens()),
    }
    all
}

fn respanned(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), respanned(group.stream(), span));
                inner.set_span(span);
                TokenTree::Group(inner)
            }
            mut other => {
                other.set_span(span);
                other
            }
        })
        .collect()
}

/// A parameter of a function.
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// Its type, as text.
    pub(crate) kind: String,
}

/// A function's signature.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) span: Span,
    /// The lines of its doc comment.
    pub(crate) doc: Vec<String>,
    pub(crate) parameters: Vec<Parameter>,
    /// The type that it returns, as text; `()` when it says none.
    pub(crate) returns: String,
}

pub(crate) type Tokens = Peekable<IntoIter>;

/// Reads a function. Leaves what comes after its body.
pub(crate) fn function(tokens: &mut Tokens) -> Result<Function> {
    let doc = attributes(tokens);
    let mut last = Span::call_site();
    loop {
        match tokens.next() {
            Some(TokenTree::Ident(word)) if word.to_string() == "fn" => break,
            // `pub`, `pub(crate)`, `const`, `unsafe`, `extern "C"`.
            Some(TokenTree::Ident(word)) => {
                last = word.span();
                if word.to_string() == "async" {
                    return Err(Problem::new(last, "a user function cannot be async"));
                }
                if matches!(
                    word.to_string().as_str(),
                    "struct" | "enum" | "mod" | "impl" | "trait"
                ) {
                    return Err(Problem::new(last, "this attribute belongs on a function"));
                }
            }
            Some(other) => last = other.span(),
            None => return Err(Problem::new(last, "this attribute belongs on a function")),
        }
    }
    let (name, span) = match tokens.next() {
        Some(TokenTree::Ident(name)) => (name.to_string(), name.span()),
        _ => return Err(Problem::new(last, "a function without a name")),
    };
    let inside = match tokens.next() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => group,
        Some(other) => {
            return Err(Problem::new(
                other.span(),
                "a user function cannot be generic: SQL has to know its types",
            ));
        }
        None => return Err(Problem::new(span, "a function without parameters")),
    };
    let parameters = split(inside.stream())
        .into_iter()
        .map(parameter)
        .collect::<Result<Vec<_>>>()?;
    let mut returns = String::new();
    for token in tokens.by_ref() {
        match token {
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => break,
            TokenTree::Punct(mark) if mark.as_char() == ';' => break,
            TokenTree::Ident(word) if word.to_string() == "where" => {
                return Err(Problem::new(
                    word.span(),
                    "a user function cannot be generic",
                ));
            }
            other => push(&mut returns, &other),
        }
    }
    let returns = match returns.trim().strip_prefix("->") {
        Some(kind) => kind.trim().to_string(),
        None => "()".to_string(),
    };
    Ok(Function {
        name,
        span,
        doc,
        parameters,
        returns,
    })
}

/// Skips attributes and returns the lines of the doc comment among them.
pub(crate) fn attributes(tokens: &mut Tokens) -> Vec<String> {
    let mut doc = Vec::new();
    while matches!(tokens.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == '#') {
        tokens.next();
        let Some(TokenTree::Group(group)) = tokens.next() else {
            continue;
        };
        let mut inside = group.stream().into_iter();
        let is_doc =
            matches!(inside.next(), Some(TokenTree::Ident(word)) if word.to_string() == "doc");
        if is_doc && let (Some(_), Some(TokenTree::Literal(text))) = (inside.next(), inside.next())
        {
            doc.extend(
                unquoted(&text.to_string())
                    .lines()
                    .map(|l| l.trim().to_string()),
            );
        }
    }
    doc
}

fn parameter(tokens: Vec<TokenTree>) -> Result<Parameter> {
    let span = tokens.first().map_or_else(Span::call_site, TokenTree::span);
    let mut rest = tokens
        .into_iter()
        .collect::<TokenStream>()
        .into_iter()
        .peekable();
    attributes(&mut rest);
    let mut name = None;
    for token in rest.by_ref() {
        match token {
            TokenTree::Ident(word) if word.to_string() == "self" => {
                return Err(Problem::new(span, "a user function has no `self`"));
            }
            TokenTree::Ident(word) if word.to_string() == "mut" => {}
            TokenTree::Ident(word) if name.is_none() => name = Some(word.to_string()),
            TokenTree::Punct(mark) if mark.as_char() == ':' && name.is_some() => break,
            other => {
                return Err(Problem::new(
                    other.span(),
                    "a parameter of a user function is a name and a type, such as `x: f64`",
                ));
            }
        }
    }
    let mut kind = String::new();
    for token in rest {
        push(&mut kind, &token);
    }
    match name {
        Some(name) if !kind.is_empty() => Ok(Parameter { name, kind }),
        _ => Err(Problem::new(span, "a parameter without a type")),
    }
}

/// Adds a token to text that will be read as Rust again. A lifetime's and an arrow's marks
/// have to touch what follows them.
fn push(text: &mut String, token: &TokenTree) {
    let joins = matches!(token, TokenTree::Punct(mark)
        if mark.as_char() == '\'' || mark.spacing() == proc_macro::Spacing::Joint);
    text.push_str(&token.to_string());
    if !joins {
        text.push(' ');
    }
}

/// The parts between commas that are in no brackets.
pub(crate) fn split(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let (mut depth, mut parts) = (0_i32, vec![Vec::new()]);
    for token in tokens {
        if let TokenTree::Punct(mark) = &token {
            match mark.as_char() {
                '<' => depth += 1,
                '>' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(Vec::new());
                    continue;
                }
                _ => {}
            }
        }
        if let Some(last) = parts.last_mut() {
            last.push(token);
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// A struct's name and its fields, in order.
pub(crate) fn fields(item: TokenStream) -> Result<(String, Vec<Parameter>)> {
    let mut tokens = item.into_iter().peekable();
    let mut name = None;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word.to_string() == "struct" => {
                if let Some(TokenTree::Ident(word)) = tokens.next() {
                    name = Some(word);
                }
            }
            TokenTree::Ident(word)
                if matches!(word.to_string().as_str(), "enum" | "union") && name.is_none() =>
            {
                return Err(Problem::new(word.span(), "this derive is for structs"));
            }
            TokenTree::Group(group) if name.is_some() => {
                let name = name.map_or_else(String::new, |name| name.to_string());
                if group.delimiter() != Delimiter::Brace {
                    return Err(Problem::new(group.span(), "name the fields of this struct"));
                }
                let fields = split(group.stream())
                    .into_iter()
                    .map(|field| parameter(without_visibility(field)))
                    .collect::<Result<Vec<_>>>()?;
                return Ok((name, fields));
            }
            TokenTree::Punct(mark) if mark.as_char() == '<' && name.is_some() => {
                return Err(Problem::new(mark.span(), "this struct cannot be generic"));
            }
            _ => {}
        }
    }
    Err(Problem::new(
        Span::call_site(),
        "this derive is for structs with fields",
    ))
}

/// A field without its attributes and `pub`.
fn without_visibility(field: Vec<TokenTree>) -> Vec<TokenTree> {
    let mut tokens = field
        .into_iter()
        .collect::<TokenStream>()
        .into_iter()
        .peekable();
    attributes(&mut tokens);
    if matches!(tokens.peek(), Some(TokenTree::Ident(word)) if word.to_string() == "pub") {
        tokens.next();
        if matches!(tokens.peek(), Some(TokenTree::Group(_))) {
            tokens.next();
        }
    }
    tokens.collect()
}

/// What a string literal says.
pub(crate) fn unquoted(literal: &str) -> String {
    if let Some(raw) = literal.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        return raw
            .get(hashes + 1..raw.len().saturating_sub(hashes + 1))
            .unwrap_or_default()
            .to_string();
    }
    let inside = literal.trim_matches('"');
    let mut text = String::new();
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('u') => {
                let digits: String = chars.by_ref().take_while(|c| *c != '}').skip(1).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                text.extend(code.and_then(char::from_u32));
            }
            Some(other) => text.push(other),
            None => {}
        }
    }
    text
}
