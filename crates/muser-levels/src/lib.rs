//! Attributes that compile kernels for the instruction-set levels of
//! `muser-cpu`: `scalar`, `avx2` and `avx512`.
//!
//! The constant `FEATURES` is the only list of each level's CPU features; no other code
//! writes `#[target_feature]`. Three macros use it:
//!
//! - [`macro@levels`] expands a module once for each level, so that a kernel that is
//!   the same at all levels is written once, as ordinary code;
//! - [`macro@level`] compiles one function for one level;
//! - [`macro@features`] passes the features of a level to a macro that detects them at
//!   run time.
//!
//! A function of a level is a safe function that only code of the same or a higher
//! level may call. The kernel table of `muser-cpu` stores such functions as *safe*
//! pointers inside a function of their level. A kernel that needs a feature that its
//! level lacks does not compile there.
//!
//! The macros use `proc_macro` alone. They only have to find where the functions of a
//! module begin, and a parser for all of Rust would double the time of a clean build of
//! `muser-cpu`.
#![forbid(unsafe_code)]

mod functions;

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};

/// The instruction-set levels, the lowest first, each with the CPU features that its
/// functions are compiled for.
const FEATURES: [(&str, &[&str]); 3] = [
    ("scalar", &[]),
    ("avx2", &["avx2", "fma", "f16c"]),
    (
        "avx512",
        &[
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512vnni",
            "avx2",
            "fma",
            "f16c",
        ],
    ),
];

/// Compiles a function for an instruction-set level (scalar, avx2, avx512):
/// `#[level(avx2)]`.
///
/// Without `unsafe`, the function may call the intrinsics and functions of that level
/// and of lower levels, and functions of that level and of higher levels may call it.
/// At the level `scalar` the attribute changes nothing. The other levels exist on x86-64
/// only; the attribute adds no condition for that, so the function's module needs it.
#[proc_macro_attribute]
pub fn level(arguments: TokenStream, item: TokenStream) -> TokenStream {
    match one_level(arguments) {
        Ok(features) => {
            let mut out = attribute(features);
            out.extend(item);
            out
        }
        Err((at, message)) => error(at, &message),
    }
}

/// Expands a module once for each instruction-set level (scalar, avx2, avx512).
///
/// `#[levels] mod kernels { … }` becomes the modules `scalar`, `avx2` and `avx512` (the
/// last two on x86-64 only), with the visibility and the attributes of `kernels`. The
/// name `kernels` itself is dropped. In each of the modules
///
/// - every function, and every method of an inherent `impl`, is compiled for the level,
///   as by [`macro@level`];
/// - the path segment `level` is replaced by the name of the level: `use
///   crate::simd::level as v;`
/// - an item with `#[only(avx2, avx512)]` exists at the listed levels only.
///
/// Methods of traits are not changed: Rust does not allow `#[target_feature]` on them.
#[proc_macro_attribute]
pub fn levels(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(token) = arguments.into_iter().next() {
        return error(token.span(), "levels: expected no arguments");
    }
    let item: Vec<TokenTree> = item.into_iter().collect();
    let [head @ .., TokenTree::Ident(name), TokenTree::Group(body)] = &item[..] else {
        return error(Span::call_site(), "levels: expected a module with a body");
    };
    let is_module =
        matches!(head.last(), Some(TokenTree::Ident(word)) if word.to_string() == "mod");
    if !is_module || body.delimiter() != Delimiter::Brace {
        return error(name.span(), "levels: expected a module with a body");
    }
    let mut out = TokenStream::new();
    for (level, features) in FEATURES {
        let body = match functions::compiled_for(body.stream(), level, features) {
            Ok(body) => body,
            Err((at, message)) => return error(at, &message),
        };
        if !features.is_empty() {
            out.extend(on_x86_64());
        }
        out.extend(head.iter().cloned());
        out.extend([
            TokenTree::Ident(Ident::new(level, name.span())),
            TokenTree::Group(Group::new(Delimiter::Brace, body)),
        ]);
    }
    out
}

/// Calls a macro with the CPU features of an instruction-set level: `features!(avx2 =>
/// need)` expands to `need! { "avx2", "fma", "f16c", }`.
#[proc_macro]
pub fn features(arguments: TokenStream) -> TokenStream {
    let arguments: Vec<TokenTree> = arguments.into_iter().collect();
    let [
        level,
        TokenTree::Punct(equals),
        TokenTree::Punct(arrow),
        callee @ TokenTree::Ident(_),
    ] = &arguments[..]
    else {
        return error(Span::call_site(), "features: expected `level => macro`");
    };
    if (equals.as_char(), arrow.as_char()) != ('=', '>') {
        return error(equals.span(), "features: expected `level => macro`");
    }
    let features = match one_level(level.clone().into()) {
        Ok(features) => features,
        Err((at, message)) => return error(at, &message),
    };
    let mut list = TokenStream::new();
    for feature in features {
        list.extend([
            TokenTree::Literal(Literal::string(feature)),
            TokenTree::Punct(Punct::new(',', Spacing::Alone)),
        ]);
    }
    TokenStream::from_iter([
        callee.clone(),
        TokenTree::Punct(Punct::new('!', Spacing::Alone)),
        TokenTree::Group(Group::new(Delimiter::Brace, list)),
    ])
}

/// An error in the input of a macro that compiles functions for instruction-set levels:
/// its place in the source, and a message.
type Problem = (Span, String);

/// Returns the CPU features of the one instruction-set level that these tokens name.
fn one_level(arguments: TokenStream) -> Result<&'static [&'static str], Problem> {
    let expected = || "expected one level: scalar, avx2 or avx512".to_owned();
    let arguments: Vec<TokenTree> = arguments.into_iter().collect();
    let [TokenTree::Ident(name)] = &arguments[..] else {
        return Err((Span::call_site(), expected()));
    };
    let name = name.to_string();
    let found = FEATURES.iter().find(|(level, _)| *level == name);
    match found {
        Some((_, features)) => Ok(features),
        None => Err((arguments[0].span(), expected())),
    }
}

/// Makes the attribute `#[target_feature(enable = "…")]` for these CPU features, or
/// nothing for none.
fn attribute(features: &[&str]) -> TokenStream {
    if features.is_empty() {
        return TokenStream::new();
    }
    let source = format!("#[target_feature(enable = {:?})]", features.join(","));
    source.parse().expect("an attribute of string literals")
}

/// Makes the attribute `#[cfg(target_arch = "x86_64")]`, under which the avx2 and avx512
/// levels exist.
fn on_x86_64() -> TokenStream {
    let source = r#"#[cfg(target_arch = "x86_64")]"#;
    source.parse().expect("a literal of an attribute")
}

/// Makes a `compile_error!` with this place in the source and this message.
fn error(at: Span, message: &str) -> TokenStream {
    let text = TokenTree::Literal(Literal::string(message));
    let tokens = [
        TokenTree::Ident(Ident::new("compile_error", at)),
        TokenTree::Punct(Punct::new('!', Spacing::Alone)),
        TokenTree::Group(Group::new(Delimiter::Parenthesis, text.into())),
        TokenTree::Punct(Punct::new(';', Spacing::Alone)),
    ];
    let located = tokens.into_iter().map(|mut token| {
        token.set_span(at);
        token
    });
    located.collect()
}
