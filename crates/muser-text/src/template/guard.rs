//! Bounds the values that a chat template makes, which the template engine's fuel (its
//! count of steps) does not.
//!
//! Fuel pays for instructions and for the data they make, but not for the size
//! that a value *unfolds* to. With `{% set x = [x, x] %}` sixty times, a kilobyte of
//! template, `x` has 60 lists and prints as 2^60 brackets: printing, joining,
//! comparing strings or writing JSON never ends. `{% set x = [x] %}` in a loop
//! nests until the walk over it, or its release, overflows the stack, which
//! ends the process. And a namespace can be put into itself.
//!
//! So the compiled code gets checks ([`guarded`]): behind every instruction that makes
//! a container, a walk over the value as printing would walk. It bounds depth and size,
//! and so everything that is done with the value later. A namespace or a loop may not
//! be inside a value: it could grow after the check; neither may a container be a key,
//! since hashing is not paid for. Comparisons, filters, tests and methods, which cost
//! one step of fuel however large their operands are, pay for a walk over the operands
//! first.
//!
//! The price is these walks and a few more instructions, all paid with fuel. The
//! template compiler's own recursion over long chains of operators is bounded by
//! [`check_tags`].

use std::fmt;

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{DynObject, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// The deepest nesting of lists and maps in a value of a chat template.
const MAX_DEPTH: u64 = 200;
/// Bytes that a template's value may have when it is written out in full, for any
/// input.
const BASE_BYTES: u64 = 1 << 20;
/// Bytes that a template's value may have in addition for each byte of the template's
/// input.
const PER_INPUT_BYTE: u64 = 4;
/// Bytes counted for each value inside a chat template's value, besides its text: about
/// the memory that it takes.
const NODE_BYTES: u64 = 16;
/// The most tokens between the delimiters of one tag of a template, which bounds chains
/// of operators.
const MAX_TAG_TOKENS: u64 = 4096;

// The names of the filters that do the checks. No template can name them, since `#` is
// in no identifier.
const GUARD: &str = "#guard";
const FLATTEN: &str = "#flatten";
const NO_NAMESPACE: &str = "#no_namespace";
const OPERANDS: &str = "#operands";
/// The number in a template's compiled filter call that makes the interpreter look the
/// filter up each time: the four filters that do the checks must not take places in its
/// table of filters.
const NO_CACHE: u8 = u8::MAX;

/// Filters and tests of templates that look at a value's outermost level only, or pay
/// for their steps themselves, and so need no walk over the value first. `messages |
/// length` in a loop over the messages is common; with a walk each time, the loop would
/// be quadratic.
const SHALLOW: [&str; 24] = [
    "boolean",
    "count",
    "d",
    "default",
    "defined",
    "false",
    "first",
    "float",
    "int",
    "integer",
    "iterable",
    "last",
    "length",
    "mapping",
    "none",
    "number",
    "safe",
    "sequence",
    "string",
    "tojson",
    "true",
    "undefined",
    "even",
    "odd",
];

/// The bound of the size that a template's value may have when it is written out in
/// full.
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

/// The bound that a chat template exceeded: of a value's depth, a value's size or a
/// tag's length.
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

/// What a walk over a template's value found: its size in bytes, and whether it has
/// something inside that a value may not have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    bytes: u64,
    /// Whether an object that can change later, a namespace or a loop, is inside a
    /// template's value.
    mutable_inside: bool,
    /// Whether a template's value is itself an object that can change later: a namespace
    /// or a loop.
    mutable: bool,
    /// Whether a map in a template's value has a list or map as a key.
    container_key: bool,
}

impl Cost {
    /// Walks over a template's value as printing would, and returns its size in bytes
    /// and what may not be inside it.
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
            if matches!(repr, ObjectRepr::Map) {
                self.container_key |= item.as_object().is_some();
                if let Ok(item) = value.get_item(&item) {
                    self.add(&item, depth + 1, limit)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns whether an object is one of the template engine's two whose content changes:
/// a namespace or a loop. Their types are private, so they are recognised by name; a
/// test checks the names.
fn is_mutable(object: &DynObject) -> bool {
    let name = object.type_name();
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}

/// Adds to a template's environment the filters that check values, which [`guarded`]
/// code calls.
pub(crate) fn install(environment: &mut Environment<'_>, limit: ValueLimit) {
    environment.add_filter(GUARD, move |state: &State<'_, '_>, value: Value| {
        check(state, &value, limit).map(|_| value)
    });
    environment.add_filter(FLATTEN, move |state: &State<'_, '_>, value: Value| {
        check(state, &value, limit)?;
        // Slices and repetitions are views of other lists. Views of views cost their
        // depth at every access, which fuel does not count.
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(Value::from(value.try_iter()?.collect::<Vec<_>>()));
        }
        Ok(value)
    });
    environment.add_filter(NO_NAMESPACE, move |state: &State<'_, '_>, value: Value| {
        if check(state, &value, limit)?.mutable {
            return Err(refused(MUTABLE_INSIDE));
        }
        Ok(value)
    });
    environment.add_filter(OPERANDS, move |state: &State<'_, '_>, values: Value| {
        let mut values: Vec<_> = values.try_iter()?.collect();
        for value in &values {
            check(state, value, limit)?;
        }
        // Unpacking leaves the list's first item on top of the stack, so the operands'
        // order is reversed.
        values.reverse();
        Ok::<_, Error>(Value::from(values))
    });
}

fn check(state: &State<'_, '_>, value: &Value, limit: ValueLimit) -> Result<Cost, Error> {
    if value.as_object().is_none() {
        return Ok(Cost::default());
    }
    let cost = Cost::of(value, limit)?;
    if cost.mutable_inside {
        return Err(refused(MUTABLE_INSIDE));
    }
    if cost.container_key {
        return Err(refused("a list or map as a key is not supported"));
    }
    state.consume_fuel(cost.bytes / (16 * NODE_BYTES))?;
    Ok(cost)
}

const MUTABLE_INSIDE: &str = "a namespace or a loop inside another value is not supported";

fn refused(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Returns a copy of a template's compiled code with the checks of its values in it.
pub(crate) fn guarded<'s>(code: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut out = Instructions::new(code.name(), code.source());
    let mut length = 0;
    let mut moved = Vec::new();
    for index in 0.. {
        // A jump's target may be one past the end of the code, so the end is moved as
        // well.
        moved.push(length);
        let Some(instruction) = code.get(index) else {
            break;
        };
        let line = u16::try_from(code.get_line(index).unwrap_or(0)).unwrap_or(u16::MAX);
        let mut push = |instruction| {
            out.add_with_line(instruction, line);
            length += 1;
        };
        let call = |filter| Instruction::ApplyFilter(filter, Some(1), NO_CACHE);
        if matches!(instruction, Instruction::SetAttr(_)) {
            // On the stack: the new value, then the namespace, which grows.
            push(call(GUARD));
            push(Instruction::Swap);
            push(call(NO_NAMESPACE));
            push(Instruction::Swap);
        }
        match operands(instruction)? {
            0 => {}
            1 => push(call(GUARD)),
            count => {
                push(Instruction::BuildList(Some(count)));
                push(call(OPERANDS));
                push(Instruction::UnpackList(count));
            }
        }
        push(instruction.clone());
        if let Some(check) = check_after(instruction) {
            push(call(check));
        }
    }
    for index in 0..length {
        if let Some(target) = out.get_mut(index).and_then(target_of)
            && let Some(new) = moved.get(*target as usize)
        {
            *target = *new;
        }
    }
    Ok(out)
}

/// Returns how many operands of a template's instruction, from the top of the stack,
/// have to be checked, and their walk paid for with fuel, before it runs.
fn operands(instruction: &Instruction<'_>) -> Result<usize, Error> {
    let count = match instruction {
        Instruction::ApplyFilter(name, count, _) | Instruction::PerformTest(name, count, _) => {
            if SHALLOW.contains(name) {
                return Ok(0);
            }
            *count
        }
        Instruction::CallMethod(_, count) => *count,
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::In
        | Instruction::CompareAndPreserve(_) => Some(2),
        _ => Some(0),
    };
    let unknown =
        || refused("`*` and `**` in calls of filters, tests and methods are not supported");
    count.map(usize::from).ok_or_else(unknown)
}

/// Returns the filter that checks the result of a template's instruction, if its result
/// needs a check.
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

/// Returns the place in a template's compiled code that an instruction jumps to, or at
/// which the macro that it makes starts.
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

/// Refuses a template with a very long tag, since the compiler recurses once per
/// operator.
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
