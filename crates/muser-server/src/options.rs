//! The server's options and limits, and the checks of their ranges.

use crate::limits::{GrammarLimits, JsonLimits, SchemaLimits};
use crate::sites::Sites;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The limits of the server: on answers computed at once, requests, memory and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of slots (places of running answers): how many answers are computed at
    /// once, at least one.
    pub slots: usize,
    /// The context of each answer: the most tokens of its prompt and itself together.
    pub context: usize,
    /// How many requests of one client may wait for a slot (the place of one running
    /// answer), in addition to one for each slot.
    pub queue: usize,
    /// The most bytes of the prefix cache (states of earlier prompts); 0 keeps none.
    pub cache_bytes: u64,
    /// The most bytes of a request's body.
    pub body_bytes: usize,
    /// The most connections that are open at once. Beyond that, one that waits for its
    /// client is closed.
    pub connections: usize,
    /// The most bytes that all requests and unfinished answers may hold together.
    pub memory_bytes: u64,
    /// The bounds of a request's JSON body: depth, values, lengths.
    pub json: JsonLimits,
    /// The longest time from a request's first byte to the end of its answer.
    pub request_time: Duration,
    /// The longest time for receiving a request's head; also that for its body, in
    /// addition to what `body_rate` allows.
    pub read_time: Duration,
    /// How many bytes per second of a request's body have to arrive once `read_time` is
    /// over; 0 for no further time.
    pub body_rate: u64,
    /// The longest time that a connection stays open without a further request.
    pub idle_time: Duration,
    /// The longest time that a client may leave its stream unread before its answer ends.
    pub stall_time: Duration,
    /// The grace period: how long running answers may go on when the server shuts down.
    pub grace: Duration,
    /// The bounds of the JSON schemas in requests.
    pub schema: SchemaLimits,
    /// The bounds of constrained decoding: the compiling of grammars and the computing of
    /// token masks.
    pub grammar: GrammarLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            slots: 4,
            context: 4096,
            queue: 64,
            cache_bytes: 1 << 30,
            body_bytes: 8 << 20,
            connections: 512,
            memory_bytes: 256 << 20,
            json: JsonLimits::default(),
            request_time: Duration::from_secs(600),
            read_time: Duration::from_secs(30),
            body_rate: 4096,
            idle_time: Duration::from_secs(75),
            stall_time: Duration::from_secs(60),
            grace: Duration::from_secs(30),
            schema: SchemaLimits::default(),
            grammar: GrammarLimits::default(),
        }
    }
}

/// What to do with a field of a request that this server does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownFields {
    /// Refuse a request that has an unknown field, and name the field.
    #[default]
    Refuse,
    /// Ignore unknown fields of a request.
    Ignore,
}

/// The files of the TLS certificate chain and its private key, both in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The file of the certificate chain, the server's own certificate first.
    pub certificates: PathBuf,
    /// The file of the certificate's private key.
    pub key: PathBuf,
}

/// The options of a server: address, limits, API keys, certificate and names.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen at; port 0 takes a free port.
    pub address: SocketAddr,
    /// The server's limits on answers computed at once, sizes, memory and times.
    pub limits: Limits,
    /// The accepted API keys; if empty, no key is required.
    pub api_keys: Vec<String>,
    /// The certificate and key for HTTPS; `None` to serve plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The host names (in the header `Host`) that are answered without API keys, in
    /// addition to those of this machine.
    pub allowed_hosts: Vec<String>,
    /// The web pages of other servers that may send requests from a browser: origins such
    /// as `https://app.example`, or `*` for all.
    pub allowed_origins: Vec<String>,
    /// The counter of lines that the log lost, if the log has one; shown in the metrics.
    pub log_dropped: Option<Arc<AtomicU64>>,
    /// The model's name in requests and answers.
    pub model_name: String,
    /// The command line of a process that calls [`crate::grammar_worker`] to compile
    /// grammars. Without one, grammars are compiled in this process: a schema that makes
    /// the grammar library overflow its stack then ends the server.
    pub grammar_worker: Option<Vec<OsString>>,
    /// What to do with fields of requests that this server does not know.
    pub unknown_fields: UnknownFields,
}

impl Options {
    /// Returns the options of a server at this address with a model of this name: the
    /// default limits, no API keys, no HTTPS, no grammar workers, and unknown fields
    /// refused.
    pub fn new(address: SocketAddr, model_name: &str) -> Self {
        Self {
            address,
            limits: Limits::default(),
            api_keys: Vec::new(),
            tls: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            log_dropped: None,
            model_name: model_name.to_owned(),
            grammar_worker: None,
            unknown_fields: UnknownFields::Refuse,
        }
    }
}

/// Why a server did not start, or did not reload its keys and certificate.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Other machines could reach the server, and no API key or no certificate would
    /// protect it.
    #[error("listening on {address} needs {missing}: others than this machine could reach it")]
    Unprotected {
        /// The address that the server was to listen at.
        address: SocketAddr,
        /// The protection that is missing: an API key, a certificate, or both.
        missing: &'static str,
    },
    /// An option has a value out of its range.
    #[error("{name}: expected {expected}, found {found}")]
    Option {
        /// The name of the option that has a wrong value.
        name: &'static str,
        /// The values that the option may have.
        expected: String,
        /// The value that was given for the option.
        found: String,
    },
    /// The server cannot listen at its address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address that the server cannot listen at.
        address: SocketAddr,
        /// The operating system's reason why the address cannot be used.
        source: std::io::Error,
    },
    /// One of the server's threads could not be started.
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
    /// The TLS certificate or its key cannot be used.
    #[error("TLS: {what}")]
    Tls {
        /// What is wrong with the TLS certificate or its key.
        what: String,
    },
}

impl Options {
    /// Refuses server options that are unsafe or make no sense with any model.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        if !self.address.ip().is_loopback() {
            let missing = match (self.tls.is_some(), !self.api_keys.is_empty()) {
                (true, true) => None,
                (false, true) => Some("a certificate and its key"),
                (true, false) => Some("an API key"),
                (false, false) => Some("an API key, and a certificate with its key"),
            };
            if let Some(missing) = missing {
                let address = self.address;
                return Err(StartError::Unprotected { address, missing });
            }
        }
        self.limits.check()?;
        Sites::new(self)?;
        check_keys(&self.api_keys)
    }
}

impl Limits {
    /// Refuses limits of the server that are out of their range.
    fn check(&self) -> Result<(), StartError> {
        let (json, schema, grammar) = (&self.json, &self.schema, &self.grammar);
        let counts = [
            ("slots", self.slots as u64, 1, 1024),
            ("queue", self.queue as u64, 0, 1 << 20),
            ("connections", self.connections as u64, 1, 1 << 20),
            ("body", self.body_bytes as u64, 1024, 1 << 30),
            ("body rate", self.body_rate, 0, 1 << 30),
            ("memory", self.memory_bytes, 1 << 20, 1 << 44),
            // The JSON parser's own bound on depth is 128.
            ("JSON depth", json.depth as u64, 4, 127),
            ("JSON values", json.nodes as u64, 16, 1 << 28),
            ("JSON string", json.string_bytes as u64, 16, 1 << 30),
            ("JSON name", json.name_bytes as u64, 16, 1 << 20),
            ("JSON number", json.number_bytes as u64, 16, 1 << 20),
            ("messages", json.messages as u64, 1, 1 << 20),
            ("tools", json.tools as u64, 1, 1 << 20),
            ("schema", schema.bytes as u64, 64, 1 << 26),
            ("schema depth", schema.depth as u64, 4, 127),
            ("properties", schema.properties as u64, 1, 1 << 16),
            ("enum values", schema.values as u64, 1, 1 << 16),
            ("pattern steps", schema.pattern_steps, 16, 1 << 20),
            ("schema rules", schema.rules as u64, 64, 1 << 20),
            ("grammar workers", grammar.workers as u64, 1, 64),
            ("grammar memory", grammar.memory, 1 << 26, 1 << 44),
            ("grammar stack", grammar.stack as u64, 1 << 14, 1 << 30),
            ("reasoning", grammar.reasoning as u64, 0, 1 << 30),
        ];
        for (name, found, low, high) in counts {
            if !(low..=high).contains(&found) {
                return Err(StartError::Option {
                    name,
                    expected: format!("{low} to {high}"),
                    found: found.to_string(),
                });
            }
        }
        // A day at most, so that sums with the clock cannot overflow.
        let day = Duration::from_secs(86_400);
        let times = [
            ("timeout", self.request_time),
            ("read time", self.read_time),
            ("idle time", self.idle_time),
            ("stall time", self.stall_time),
            ("grace", self.grace),
            ("grammar time", self.grammar.time),
            ("mask time", self.grammar.mask_time),
        ];
        for (name, found) in times {
            if found.is_zero() || found > day {
                return Err(StartError::Option {
                    name,
                    expected: "more than 0 and at most 86400 seconds".to_owned(),
                    found: format!("{} seconds", found.as_secs_f64()),
                });
            }
        }
        Ok(())
    }
}

/// Refuses API keys that are too short to protect, or that no HTTP header can carry.
pub(crate) fn check_keys(keys: &[String]) -> Result<(), StartError> {
    for (i, key) in keys.iter().enumerate() {
        let refused = |expected: &str, found: String| {
            Err(StartError::Option {
                name: "API key",
                expected: expected.to_owned(),
                found: format!("{found} in key {}", i + 1),
            })
        };
        let visible = |c: char| c.is_ascii_graphic() || c == ' ';
        if let Some(odd) = key.chars().find(|&c| !visible(c)) {
            let found = format!("U+{:04X}", u32::from(odd));
            return refused("visible ASCII characters, which headers carry", found);
        }
        let count = key.chars().count();
        if count < SHORTEST_KEY {
            return refused("at least 16 characters", format!("{count}"));
        }
    }
    Ok(())
}

/// The fewest characters of an API key.
const SHORTEST_KEY: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(address: &str, keys: &[&str], tls: bool) -> Options {
        let files = TlsFiles {
            certificates: "c.pem".into(),
            key: "k.pem".into(),
        };
        Options {
            address: address.parse().unwrap(),
            limits: Limits::default(),
            api_keys: keys.iter().map(|k| (*k).to_owned()).collect(),
            tls: tls.then_some(files),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            log_dropped: None,
            model_name: "m".into(),
            grammar_worker: None,
            unknown_fields: UnknownFields::Refuse,
        }
    }

    #[test]
    fn only_this_machine_without_key_and_certificate() {
        let key = &["0123456789abcdef"][..];
        for ok in [
            options("127.0.0.1:0", &[], false),
            options("[::1]:0", &[], false),
            options("0.0.0.0:0", key, true),
        ] {
            ok.check().unwrap();
        }
        for (bad, missing) in [
            (
                options("0.0.0.0:0", &[], false),
                "an API key, and a certificate with its key",
            ),
            (
                options("192.0.2.1:0", key, false),
                "a certificate and its key",
            ),
            (options("[::]:0", &[], true), "an API key"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(&format!("needs {missing}:")), "{error}");
        }
    }

    #[test]
    fn numbers_and_keys_are_checked() {
        let mut none = options("127.0.0.1:0", &[], false);
        none.limits.slots = 0;
        assert_eq!(
            none.check().unwrap_err().to_string(),
            "slots: expected 1 to 1024, found 0"
        );
        for (key, found) in [
            ("short", "5 in key 1"),
            // 16 bytes, 8 characters.
            ("éééééééé", "U+00E9 in key 1"),
            ("\u{feff}0123456789abcdef", "U+FEFF in key 1"),
        ] {
            let error = options("127.0.0.1:0", &[key], false).check().unwrap_err();
            assert!(error.to_string().ends_with(found), "{error}");
        }
    }

    #[test]
    fn durations_have_ranges() {
        let set: [fn(&mut Limits, Duration); 5] = [
            |l, t| l.request_time = t,
            |l, t| l.read_time = t,
            |l, t| l.idle_time = t,
            |l, t| l.stall_time = t,
            |l, t| l.grace = t,
        ];
        for set in set {
            for (time, fits) in [
                (Duration::ZERO, false),
                (Duration::from_secs(u64::MAX), false),
                (Duration::from_secs(86_401), false),
                (Duration::from_secs(86_400), true),
                (Duration::from_millis(1), true),
            ] {
                let mut options = options("127.0.0.1:0", &[], false);
                set(&mut options.limits, time);
                assert_eq!(options.check().is_ok(), fits, "{time:?}");
            }
        }
    }
}
