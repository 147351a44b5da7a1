//! Bounds that the engine's fuel does not give.
//!
//! Fuel pays for instructions and for the data they make, but not for what a
//! value *unfolds* to. With `{% set x = [x, x] %}` sixty times, a kilobyte of
//! template, `x` has 60 lists and prints as 2^60 brackets: printing, joining,
//! comparing strings or writing JSON never ends. `{% set x = [x] %}` in a loop
//! nests until the walk over it, or its release, overflows the stack, which
//! ends the process. And a namespace can be put into itself.
//!
//! So every instruction that makes a container is followed by a check that
//! walks the value as printing would: its depth and its size are bounded, hence
//! everything that is later done with it. A namespace may not be inside a
//! value: it could grow after the check. The price is one walk over each
//! container made, paid from the fuel. The compiler's own recursion over long
//! chains of operators is bounded by [`check_tags`].

use std::fmt;

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{DynObject, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Containers within containers.
const MAX_DEPTH: u64 = 200;
/// What a value may unfold to, in bytes, whatever the input is.
const BASE_BYTES: u64 = 8 << 20;
/// And further bytes for each byte of input.
const PER_INPUT_BYTE: u64 = 4;
/// Bytes that a value counts besides its text: about what one takes.
const NODE_BYTES: u64 = 16;
/// Tokens between the delimiters of one tag: the longest chain of operators.
const MAX_TAG_TOKENS: u64 = 4096;

// No template can name these: `#` is in no identifier.
const GUARD: &str = "#guard";
const FLATTEN: &str = "#flatten";
const NO_NAMESPACE: &str = "#no_namespace";
/// "Look the filter up each time": these three must not take places in the
/// interpreter's table of filters.
const NO_CACHE: u8 = u8::MAX;

/// How large a value may get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueLimit {
    bytes: u64,
}

impl ValueLimit {
    pub(crate) fn for_input(bytes: u64) -> Self {
        Self {
            bytes: BASE_BYTES.saturating_add(bytes.saturating_mul(PER_INPUT_BYTE)),
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }
}

/// A bound that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    Depth,
    Bytes(u64),
    TagTokens,
}

impl Excess {
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Depth => "levels of nesting in a value",
            Self::Bytes(_) => "bytes in a value",
            Self::TagTokens => "tokens in a tag",
        }
    }

    pub(crate) fn limit(self) -> u64 {
        match self {
            Self::Depth => MAX_DEPTH,
            Self::Bytes(limit) => limit,
            Self::TagTokens => MAX_TAG_TOKENS,
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} {}", self.limit(), self.what())
    }
}

impl std::error::Error for Excess {}

impl From<Excess> for Error {
    fn from(excess: Excess) -> Self {
        Self::new(ErrorKind::InvalidOperation, "limit exceeded").with_source(excess)
    }
}

/// What a walk found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    bytes: u64,
    /// A namespace or a loop below the top: values that change.
    mutable_inside: bool,
    /// The value itself is one.
    mutable: bool,
}

impl Cost {
    /// Walks `value` as printing it would.
    pub(crate) fn of(value: &Value, limit: ValueLimit) -> Result<Self, Excess> {
        let mut cost = Self::default();
        cost.add(value, 0, limit)?;
        Ok(cost)
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    fn add(&mut self, value: &Value, depth: u64, limit: ValueLimit) -> Result<(), Excess> {
        if depth > MAX_DEPTH {
            return Err(Excess::Depth);
        }
        let text = value.as_bytes().map_or(0, <[u8]>::len) as u64;
        self.bytes = self.bytes.saturating_add(text.saturating_add(NODE_BYTES));
        if self.bytes > limit.bytes {
            return Err(Excess::Bytes(limit.bytes));
        }
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        if is_mutable(object) {
            self.mutable |= depth == 0;
            self.mutable_inside |= depth > 0;
        }
        let repr = object.repr();
        if matches!(repr, ObjectRepr::Plain) {
            return Ok(());
        }
        let Ok(items) = value.try_iter() else {
            return Ok(());
        };
        for item in items {
            self.add(&item, depth + 1, limit)?;
            if matches!(repr, ObjectRepr::Map)
                && let Ok(item) = value.get_item(&item)
            {
                self.add(&item, depth + 1, limit)?;
            }
        }
        Ok(())
    }
}

/// The engine's two objects whose content changes. Their types are private, so
/// they are known by name; tests see to it that the names stay right.
fn is_mutable(object: &DynObject) -> bool {
    let name = object.type_name();
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}

/// Adds the checks that [`guarded`] code calls.
pub(crate) fn install(environment: &mut Environment<'_>, limit: ValueLimit) {
    environment.add_filter(GUARD, move |state: &State<'_, '_>, value: Value| {
        check(state, &value, limit).map(|_| value)
    });
    environment.add_filter(FLATTEN, move |state: &State<'_, '_>, value: Value| {
        check(state, &value, limit)?;
        // Slices and repetitions are views: a view of a view of … costs its
        // depth at every access, which fuel does not count.
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(Value::from(value.try_iter()?.collect::<Vec<_>>()));
        }
        Ok(value)
    });
    environment.add_filter(NO_NAMESPACE, move |state: &State<'_, '_>, value: Value| {
        if check(state, &value, limit)?.mutable {
            return Err(mutable_inside());
        }
        Ok(value)
    });
}

fn check(state: &State<'_, '_>, value: &Value, limit: ValueLimit) -> Result<Cost, Error> {
    if value.as_object().is_none() {
        return Ok(Cost::default());
    }
    let cost = Cost::of(value, limit)?;
    if cost.mutable_inside {
        return Err(mutable_inside());
    }
    state.consume_fuel(cost.bytes / (16 * NODE_BYTES))?;
    Ok(cost)
}

fn mutable_inside() -> Error {
    let reason = "a namespace or a loop inside another value is not supported";
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// A copy of `code` with a check behind every instruction that makes a container.
pub(crate) fn guarded<'s>(code: &Instructions<'s>) -> Instructions<'s> {
    let mut out = Instructions::new(code.name(), code.source());
    let mut length = 0;
    let mut moved = Vec::new();
    for index in 0.. {
        // Targets one past the end are moved as well.
        moved.push(length);
        let Some(instruction) = code.get(index) else {
            break;
        };
        let line = u16::try_from(code.get_line(index).unwrap_or(0)).unwrap_or(u16::MAX);
        let mut push = |instruction| {
            out.add_with_line(instruction, line);
            length += 1;
        };
        if matches!(instruction, Instruction::SetAttr(_)) {
            // On the stack: the new value, then the namespace.
            push(Instruction::Swap);
            push(Instruction::ApplyFilter(NO_NAMESPACE, Some(1), NO_CACHE));
            push(Instruction::Swap);
        }
        push(instruction.clone());
        if let Some(check) = check_after(instruction) {
            push(Instruction::ApplyFilter(check, Some(1), NO_CACHE));
        }
    }
    for index in 0..length {
        if let Some(target) = out.get_mut(index).and_then(target_of)
            && let Some(new) = moved.get(*target as usize)
        {
            *target = *new;
        }
    }
    out
}

fn check_after(instruction: &Instruction<'_>) -> Option<&'static str> {
    match instruction {
        Instruction::BuildMap(_)
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::Add
        | Instruction::ApplyFilter(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_) => Some(GUARD),
        Instruction::Slice | Instruction::Mul => Some(FLATTEN),
        _ => None,
    }
}

/// The place that an instruction jumps to or starts a macro at.
fn target_of<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// Refuses tags of absurd length: the compiler recurses once an operator.
pub(crate) fn check_tags(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let mut tokens: u64 = 0;
    for token in tokenize(source, false, syntax) {
        match token?.0 {
            Token::TemplateData(_) | Token::BlockStart | Token::VariableStart => tokens = 0,
            _ => tokens += 1,
        }
        if tokens > MAX_TAG_TOKENS {
            return Err(Excess::TagTokens.into());
        }
    }
    Ok(())
}
