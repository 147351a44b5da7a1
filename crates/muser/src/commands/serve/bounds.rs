//! Options that bound what requests may take.

use crate::exit::Usage;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use muser_server::{GrammarLimits, JsonLimits, Limits, SchemaLimits};
use std::time::Duration;

/// What requests may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bounds of requests")]
pub(super) struct Bounds {
    /// Memory of requests and unfinished answers in MiB; a client gets what it
    /// leaves free of it, one request half
    #[arg(long, default_value_t = 256, value_name = "N")]
    memory_mib: u64,
    /// Bytes of a body in MiB
    #[arg(long, default_value_t = 8, value_name = "N")]
    max_body_mib: usize,
    /// Objects and arrays within each other
    #[arg(long, default_value_t = JsonLimits::default().depth, value_name = "N")]
    max_json_depth: usize,
    /// Values and names of a body
    #[arg(long, default_value_t = JsonLimits::default().nodes, value_name = "N")]
    max_json_values: usize,
    /// Bytes of a string in KiB
    #[arg(long, default_value_t = JsonLimits::default().string_bytes >> 10, value_name = "N")]
    max_string_kib: usize,
    /// Bytes of a name of a field
    #[arg(long, default_value_t = JsonLimits::default().name_bytes, value_name = "N")]
    max_name: usize,
    /// Messages of a conversation
    #[arg(long, default_value_t = JsonLimits::default().messages, value_name = "N")]
    max_messages: usize,
    /// Tools of a request
    #[arg(long, default_value_t = JsonLimits::default().tools, value_name = "N")]
    max_tools: usize,
    /// Connections at once; beyond, one that waits for its client is closed
    #[arg(long, default_value_t = Limits::default().connections, value_name = "N")]
    connections: usize,
    /// Seconds for a head, and for a body beside what its rate allows
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = seconds())]
    read_timeout: u64,
    /// Bytes a second that a body has to come with after that time; 0 asks for
    /// all of it by then
    #[arg(long, default_value_t = Limits::default().body_rate, value_name = "N")]
    min_body_rate: u64,
    /// Seconds that a connection may be idle
    #[arg(long, default_value_t = 75, value_name = "N", value_parser = seconds())]
    idle_timeout: u64,
    /// Seconds that a stream may be left unread
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = seconds())]
    unread_timeout: u64,
    #[command(flatten)]
    schemas: SchemaBounds,
}

/// What schemas and what is made of them may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bounds of schemas")]
struct SchemaBounds {
    /// Bytes of a schema in KiB
    #[arg(long, default_value_t = SchemaLimits::default().bytes >> 10, value_name = "N")]
    max_schema_kib: usize,
    /// Objects and arrays of a schema within each other
    #[arg(long, default_value_t = SchemaLimits::default().depth, value_name = "N")]
    max_schema_depth: usize,
    /// Values of a schema
    #[arg(long, default_value_t = SchemaLimits::default().nodes, value_name = "N")]
    max_schema_values: usize,
    /// Properties, definitions or required names of one object
    #[arg(long, default_value_t = SchemaLimits::default().properties, value_name = "N")]
    max_properties: usize,
    /// Values of an enum
    #[arg(long, default_value_t = SchemaLimits::default().values, value_name = "N")]
    max_enum: usize,
    /// Items that an array has to have, and has without a bound of its own
    #[arg(long, default_value_t = SchemaLimits::default().items, value_name = "N")]
    max_items: usize,
    /// Bytes of a pattern
    #[arg(long, default_value_t = SchemaLimits::default().pattern_bytes, value_name = "N")]
    max_pattern: usize,
    /// Steps of a pattern with its repetitions written out
    #[arg(long, default_value_t = SchemaLimits::default().pattern_steps, value_name = "N")]
    max_pattern_steps: u64,
    /// Rules of the grammar that a schema comes to
    #[arg(long, default_value_t = SchemaLimits::default().rules, value_name = "N")]
    max_schema_rules: usize,
    /// Processes that compile grammars, 1 to 64
    #[arg(long, default_value_t = GrammarLimits::default().workers, value_name = "N")]
    grammar_workers: usize,
    /// CPU seconds to compile a grammar, 1 to 3600
    #[arg(long, default_value_t = GrammarLimits::default().time.as_secs(), value_name = "N",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    grammar_timeout: u64,
    /// Memory of a process that compiles grammars in MiB, at least 64
    #[arg(long, default_value_t = GrammarLimits::default().memory >> 20, value_name = "N")]
    grammar_mib: u64,
    /// Tokens of reasoning before an answer that has to fit a schema
    #[arg(long, default_value_t = GrammarLimits::default().reasoning, value_name = "N")]
    max_reasoning: usize,
}

impl Bounds {
    /// The limits that these are; the others have their defaults.
    pub(super) fn limits(&self) -> anyhow::Result<Limits> {
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let string = bytes("max-string-kib", self.max_string_kib as u64, 1 << 10)?;
        let body = bytes("max-body-mib", self.max_body_mib as u64, 1 << 20)?;
        let (schema, grammar) = self.schemas.limits()?;
        Ok(Limits {
            body_bytes: count(body),
            connections: self.connections,
            memory_bytes: bytes("memory-mib", self.memory_mib, 1 << 20)?,
            json: JsonLimits {
                depth: self.max_json_depth,
                nodes: self.max_json_values,
                string_bytes: count(string),
                name_bytes: self.max_name,
                messages: self.max_messages,
                tools: self.max_tools,
                ..JsonLimits::default()
            },
            read_time: Duration::from_secs(self.read_timeout),
            body_rate: self.min_body_rate,
            idle_time: Duration::from_secs(self.idle_timeout),
            stall_time: Duration::from_secs(self.unread_timeout),
            schema,
            grammar,
            ..Limits::default()
        })
    }
}

impl SchemaBounds {
    fn limits(&self) -> anyhow::Result<(SchemaLimits, GrammarLimits)> {
        let size = bytes("max-schema-kib", self.max_schema_kib as u64, 1 << 10)?;
        let schema = SchemaLimits {
            bytes: usize::try_from(size).unwrap_or(usize::MAX),
            depth: self.max_schema_depth,
            nodes: self.max_schema_values,
            properties: self.max_properties,
            values: self.max_enum,
            items: self.max_items,
            pattern_bytes: self.max_pattern,
            pattern_steps: self.max_pattern_steps,
            rules: self.max_schema_rules,
            ..SchemaLimits::default()
        };
        let grammar = GrammarLimits {
            workers: self.grammar_workers,
            time: Duration::from_secs(self.grammar_timeout),
            memory: bytes("grammar-mib", self.grammar_mib, 1 << 20)?,
            reasoning: self.max_reasoning,
            ..GrammarLimits::default()
        };
        Ok((schema, grammar))
    }
}

/// A size in bytes that was given in larger units.
pub(super) fn bytes(name: &str, number: u64, unit: u64) -> Result<u64, Usage> {
    let bytes = number.checked_mul(unit);
    bytes.ok_or_else(|| Usage(format!("--{name} is too large")))
}

/// Seconds of a duration: none is not a duration, and sums with the clock have
/// to fit it.
pub(super) fn seconds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=86_400)
}
