//! The options of `muser serve` that bound the sizes, times and memory of requests.

use crate::exit::Usage;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use muser_server::{GrammarLimits, JsonLimits, Limits, SchemaLimits};
use std::time::Duration;

/// Bounds of HTTP requests to `muser serve`: memory, sizes and times.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bounds of requests")]
pub(super) struct Bounds {
    /// Most memory of all requests and unfinished answers in MiB; one client gets no more
    /// than it leaves free for others, one request no more than half
    #[arg(long, default_value_t = 256, value_name = "N")]
    memory_mib: u64,
    /// Largest body of a request in MiB
    #[arg(long, default_value_t = 8, value_name = "N")]
    max_body_mib: usize,
    /// Deepest nesting of objects and arrays in a JSON body
    #[arg(long, default_value_t = JsonLimits::default().depth, value_name = "N")]
    max_json_depth: usize,
    /// Most values and names in a JSON body
    #[arg(long, default_value_t = JsonLimits::default().nodes, value_name = "N")]
    max_json_values: usize,
    /// Longest string in a JSON body in KiB
    #[arg(long, default_value_t = JsonLimits::default().string_bytes >> 10, value_name = "N")]
    max_string_kib: usize,
    /// Longest field name in a JSON body in bytes
    #[arg(long, default_value_t = JsonLimits::default().name_bytes, value_name = "N")]
    max_name: usize,
    /// Most messages of a request's conversation
    #[arg(long, default_value_t = JsonLimits::default().messages, value_name = "N")]
    max_messages: usize,
    /// Most tools that a request defines
    #[arg(long, default_value_t = JsonLimits::default().tools, value_name = "N")]
    max_tools: usize,
    /// Most connections at once; beyond that, one that waits for its client is closed
    #[arg(long, default_value_t = Limits::default().connections, value_name = "N")]
    connections: usize,
    /// Most seconds for a request's head to arrive; its body has as many, and what
    /// --min-body-rate allows
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = seconds())]
    read_timeout: u64,
    /// Bytes a second that a request's body has to arrive with after the time of
    /// --read-timeout; 0 asks for all of it by then
    #[arg(long, default_value_t = Limits::default().body_rate, value_name = "N")]
    min_body_rate: u64,
    /// Seconds that a connection may be idle between requests
    #[arg(long, default_value_t = 75, value_name = "N", value_parser = seconds())]
    idle_timeout: u64,
    /// Seconds that a client may leave a streamed answer unread
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = seconds())]
    unread_timeout: u64,
    #[command(flatten)]
    schemas: SchemaBounds,
}

/// Bounds of the JSON schemas in requests, and of the grammars that they are compiled to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bounds of schemas")]
struct SchemaBounds {
    /// Largest JSON schema in KiB
    #[arg(long, default_value_t = SchemaLimits::default().bytes >> 10, value_name = "N")]
    max_schema_kib: usize,
    /// Deepest nesting of objects and arrays in a JSON schema
    #[arg(long, default_value_t = SchemaLimits::default().depth, value_name = "N")]
    max_schema_depth: usize,
    /// Most values of any kind in a JSON schema
    #[arg(long, default_value_t = SchemaLimits::default().nodes, value_name = "N")]
    max_schema_values: usize,
    /// Most properties, definitions or required names of one object of a JSON schema
    #[arg(long, default_value_t = SchemaLimits::default().properties, value_name = "N")]
    max_properties: usize,
    /// Most values of an enum in a JSON schema
    #[arg(long, default_value_t = SchemaLimits::default().values, value_name = "N")]
    max_enum: usize,
    /// Most items that a JSON schema may require of an array (minItems); an array without
    /// a smaller maxItems ends there, too
    #[arg(long, default_value_t = SchemaLimits::default().items, value_name = "N")]
    max_items: usize,
    /// Longest pattern (regular expression) in a JSON schema in bytes
    #[arg(long, default_value_t = SchemaLimits::default().pattern_bytes, value_name = "N")]
    max_pattern: usize,
    /// Most steps of a JSON schema's pattern with its repetitions written out
    #[arg(long, default_value_t = SchemaLimits::default().pattern_steps, value_name = "N")]
    max_pattern_steps: u64,
    /// Most rules of the grammar that a JSON schema is turned into
    #[arg(long, default_value_t = SchemaLimits::default().rules, value_name = "N")]
    max_schema_rules: usize,
    /// Number of processes that compile grammars of JSON schemas, 1 to 64
    #[arg(long, default_value_t = GrammarLimits::default().workers, value_name = "N")]
    grammar_workers: usize,
    /// Most CPU seconds to compile the grammar of a JSON schema, 1 to 3600
    #[arg(long, default_value_t = GrammarLimits::default().time.as_secs(), value_name = "N",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    grammar_timeout: u64,
    /// Most memory of a process that compiles grammars in MiB, at least 64
    #[arg(long, default_value_t = GrammarLimits::default().memory >> 20, value_name = "N")]
    grammar_mib: u64,
    /// Most tokens of reasoning before an answer that has to fit a JSON schema
    #[arg(long, default_value_t = GrammarLimits::default().reasoning, value_name = "N")]
    max_reasoning: usize,
}

impl Bounds {
    /// Returns the server's limits with the values of these options; limits that no option
    /// sets have their defaults.
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

/// Converts the value of the option `--name` from a larger unit, such as MiB, to bytes; an
/// error if that does not fit 64 bits.
pub(super) fn bytes(name: &str, number: u64, unit: u64) -> Result<u64, Usage> {
    let bytes = number.checked_mul(unit);
    bytes.ok_or_else(|| Usage(format!("--{name} is too large")))
}

/// Returns the parser of an option in whole seconds, 1 to 86400: zero is no duration, and
/// the sum with the clock's time must not overflow.
pub(super) fn seconds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=86_400)
}
