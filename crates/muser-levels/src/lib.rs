//! Attributes that compile kernels for the instruction-set levels of
//! `muser-cpu`: `scalar`, `avx2` and `avx512`.
//!
//! The CPU features of a level stand in this crate, once (`FEATURES`); nobody
//! else writes `#[target_feature]`. Three macros use the list:
//!
//! - [`macro@levels`] expands a module once a level, so that a kernel that is
//!   the same at all levels is written once, as ordinary code;
//! - [`macro@level`] compiles one function for one level;
//! - [`macro@features`] hands the list to a macro that looks for the features at
//!   run time.
//!
//! A function of a level is a safe function that only code of the same level may
//! call. The kernel table of `muser-cpu` stores such functions as *safe*
//! pointers in a function of their level: one that needs a feature more than its
//! level has does not compile there.
//!
//! Written with `proc_macro` alone: what has to be found in a module is where
//! functions begin, and a parser of all of Rust would double the time of a
//! clean build of `muser-cpu`.
#![forbid(unsafe_code)]

mod functions;

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};

/// The levels, the lowest first, each with the features that its functions are
/// compiled for.
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

/// Compiles a function for a level: `#[level(avx2)]`.
///
/// It may call the intrinsics and functions of that level and of the levels
/// below without `unsafe`, and be called by functions of its own level and of
/// higher ones. It exists on x86-64 alone, as does the file that it stands in;
/// at the level `scalar` the attribute changes nothing.
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

/// Expands a module once for each level.
///
/// `#[levels] mod kernels { … }` becomes the modules `scalar`, `avx2` and
/// `avx512` (the last two on x86-64 alone) with the visibility and the attributes
/// of `kernels`, whose name is for the reader. In each of them
///
/// - every function of the module, and every method of its inherent `impl`s, is
///   compiled for the level, as by [`macro@level`];
/// - `level`, as a part of a path, is the name of the level: `use
///   crate::simd::level as v;`
/// - an item with `#[only(avx2, avx512)]` stands at these levels alone.
///
/// Methods of traits are left as they are: the language has no features there.
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

/// Calls a macro with the names of a level's features: `features!(avx2 => need)`
/// is `need!("avx2", "fma", "f16c")`.
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

/// What is wrong with the input of a macro, and where.
type Problem = (Span, String);

/// The features of the one level that these tokens name.
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

/// `#[target_feature(enable = "…")]`, or nothing for no features.
fn attribute(features: &[&str]) -> TokenStream {
    if features.is_empty() {
        return TokenStream::new();
    }
    let source = format!("#[target_feature(enable = {:?})]", features.join(","));
    source.parse().expect("an attribute of string literals")
}

/// The condition under which vector levels exist.
fn on_x86_64() -> TokenStream {
    let source = r#"#[cfg(target_arch = "x86_64")]"#;
    source.parse().expect("a literal of an attribute")
}

/// An error of compilation at this place.
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
