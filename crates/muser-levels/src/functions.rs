//! Compiles the functions of a module for an instruction-set level: finds where they
//! begin in its tokens and adds the attribute.

use crate::{Problem, attribute};
use proc_macro::{Delimiter, Group, Ident, Spacing, TokenStream, TokenTree};

/// Returns the items of a module with every function compiled for the instruction-set
/// level, and with the path segment `level` replaced by the level's name.
pub(crate) fn compiled_for(
    items: TokenStream,
    level: &str,
    features: &[&str],
) -> Result<TokenStream, Problem> {
    let mut out = TokenStream::new();
    for item in split(items) {
        let Some(item) = chosen(item, level)? else {
            continue;
        };
        match Kind::of(&item) {
            Kind::Function => {
                out.extend(attribute(features));
                out.extend(named(item.into_iter().collect(), level));
            }
            Kind::Methods => {
                let mut item = item;
                if let Some(TokenTree::Group(body)) = item.pop() {
                    let inside = compiled_for(body.stream(), level, features)?;
                    out.extend(named(item.into_iter().collect(), level));
                    out.extend([TokenTree::Group(Group::new(body.delimiter(), inside))]);
                }
            }
            Kind::Other => out.extend(named(item.into_iter().collect(), level)),
        }
    }
    Ok(out)
}

/// The kinds of items (functions, impl blocks, others) in a Rust module, by what the
/// macro `#[levels]` does with them.
enum Kind {
    /// A function in a Rust module: `#[levels]` compiles it for the instruction-set
    /// level.
    Function,
    /// An inherent `impl`: `#[levels]` compiles its methods for the instruction-set
    /// level.
    Methods,
    /// Any other item of a Rust module: `#[levels]` compiles nothing in it for the
    /// instruction-set level.
    Other,
}

impl Kind {
    fn of(item: &[TokenTree]) -> Self {
        let words = item
            .iter()
            .enumerate()
            .filter_map(|(i, token)| match token {
                TokenTree::Ident(word) => Some((i, word.to_string())),
                TokenTree::Group(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => None,
            });
        let mut is_impl = false;
        for (i, word) in words {
            match word.as_str() {
                // `fn` before a name begins a function; `fn(…)` is a pointer type.
                "fn" if !is_impl && matches!(item.get(i + 1), Some(TokenTree::Ident(_))) => {
                    return Self::Function;
                }
                "impl" => is_impl = true,
                // `impl Trait for Type`.
                "for" if is_impl => return Self::Other,
                "struct" | "enum" | "union" | "trait" | "mod" | "use" | "type" | "static"
                | "macro_rules" => return Self::Other,
                _ => {}
            }
        }
        match is_impl {
            true => Self::Methods,
            false => Self::Other,
        }
    }
}

/// Splits the tokens of a Rust module or of an `impl` into items with their attributes.
fn split(items: TokenStream) -> Vec<Vec<TokenTree>> {
    let tokens: Vec<TokenTree> = items.into_iter().collect();
    let (mut all, mut item) = (Vec::new(), Vec::new());
    // The first word of the item that tells its kind: `fn`, `use`, `impl`, …
    let mut keyword: Option<String> = None;
    for (i, token) in tokens.iter().enumerate() {
        let next = tokens.get(i + 1);
        if let (None, TokenTree::Ident(word)) = (&keyword, token) {
            let word = word.to_string();
            let constant_function = word == "const"
                && matches!(next, Some(TokenTree::Ident(w)) if w.to_string() == "fn");
            if word != "pub" && !constant_function {
                keyword = Some(word);
            }
        }
        item.push(token.clone());
        let ends = match token {
            TokenTree::Punct(p) => p.as_char() == ';',
            TokenTree::Group(g) if g.delimiter() == Delimiter::Brace => {
                // A brace does not end `use a::{b};` or `const X: T = { … };`, which end
                // with a semicolon, nor a type like `Slab<{ N }>`.
                let keyword = keyword.as_deref().unwrap_or_default();
                let semicolon = matches!(keyword, "use" | "static" | "type" | "const");
                let in_type =
                    matches!(next, Some(TokenTree::Punct(p)) if matches!(p.as_char(), '>' | ','));
                !semicolon && !in_type
            }
            TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Literal(_) => false,
        };
        if ends {
            all.push(std::mem::take(&mut item));
            keyword = None;
        }
    }
    if !item.is_empty() {
        all.push(item);
    }
    all
}

/// Removes the attribute `#[only(…)]` from an item of a module. Returns `None` if the
/// attribute is there and does not list the instruction-set level.
fn chosen(item: Vec<TokenTree>, level: &str) -> Result<Option<Vec<TokenTree>>, Problem> {
    let mut out = Vec::with_capacity(item.len());
    let mut tokens = item.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_attribute = matches!(&token, TokenTree::Punct(p) if p.as_char() == '#');
        if is_attribute
            && let Some(TokenTree::Group(attribute)) = tokens.peek()
            && let Some(levels) = only(attribute)?
        {
            tokens.next();
            if !levels.iter().any(|l| l == level) {
                return Ok(None);
            }
            continue;
        }
        out.push(token);
    }
    Ok(Some(out))
}

/// Returns the instruction-set levels in an attribute `[only(…)]`; `None` for any other
/// attribute.
fn only(attribute: &Group) -> Result<Option<Vec<String>>, Problem> {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let [TokenTree::Ident(word), TokenTree::Group(list)] = &tokens[..] else {
        return Ok(None);
    };
    if word.to_string() != "only" {
        return Ok(None);
    }
    let mut levels = Vec::new();
    for token in list.stream() {
        match token {
            TokenTree::Ident(level)
                if crate::FEATURES.iter().any(|(l, _)| *l == level.to_string()) =>
            {
                levels.push(level.to_string());
            }
            TokenTree::Punct(p) if p.as_char() == ',' => {}
            other => {
                let message = "only: expected levels: scalar, avx2, avx512".to_owned();
                return Err((other.span(), message));
            }
        }
    }
    Ok(Some(levels))
}

/// Replaces the path segment `level` in tokens by the instruction-set level's name.
fn named(tokens: TokenStream, level: &str) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let colon = |token: Option<&TokenTree>, spacing: Spacing| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':' && p.spacing() == spacing);
    let one = |(i, token): (usize, &TokenTree)| match token {
        TokenTree::Group(group) => {
            let mut inside = Group::new(group.delimiter(), named(group.stream(), level));
            inside.set_span(group.span());
            TokenTree::Group(inside)
        }
        TokenTree::Ident(word) if word.to_string() == "level" => {
            // A path segment has `::` before or after it: two colons, the first joint.
            let after_path = i >= 2
                && colon(tokens.get(i - 2), Spacing::Joint)
                && colon(tokens.get(i - 1), Spacing::Alone);
            match after_path || colon(tokens.get(i + 1), Spacing::Joint) {
                true => TokenTree::Ident(Ident::new(level, word.span())),
                false => token.clone(),
            }
        }
        TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => token.clone(),
    };
    tokens.iter().enumerate().map(one).collect()
}
