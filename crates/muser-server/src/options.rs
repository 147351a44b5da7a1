//! How the server is to run.

use crate::limits::{GrammarLimits, SchemaLimits};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What the server may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Answers computed at once, at least one.
    pub slots: usize,
    /// Positions of each, prompt and answer together.
    pub context: usize,
    /// Answers that may wait for a slot.
    pub queue: usize,
    /// Bytes of the prefix cache; 0 keeps none.
    pub cache_bytes: u64,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Connections open at once; more wait to be accepted.
    pub connections: usize,
    /// From a request's arrival to the end of its answer.
    pub request_time: Duration,
    /// For the head of a request, and again for its body.
    pub read_time: Duration,
    /// For running answers once the server is to end.
    pub grace: Duration,
    /// What schemas may be.
    pub schema: SchemaLimits,
    /// What constrained decoding may take.
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
            request_time: Duration::from_secs(600),
            read_time: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            schema: SchemaLimits::default(),
            grammar: GrammarLimits::default(),
        }
    }
}

/// Certificate chain and private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub certificates: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How the server is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// What it may take.
    pub limits: Limits,
    /// Keys that are accepted; none asks for none.
    pub api_keys: Vec<String>,
    /// HTTPS.
    pub tls: Option<TlsFiles>,
    /// The model's name in requests and answers.
    pub model_name: String,
    /// Command line of a process that calls [`crate::grammar_worker`]. Without
    /// one, grammars are compiled in this process: a schema that makes the
    /// grammar library overflow its stack then ends the server.
    pub grammar_worker: Option<Vec<OsString>>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Others could reach it and nothing would protect it.
    #[error("listening on {address} needs {missing}: others than this machine could reach it")]
    Unprotected {
        /// Where it was to listen.
        address: SocketAddr,
        /// What is not given.
        missing: &'static str,
    },
    /// A number out of its range.
    #[error("{name}: expected {expected}, found {found}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its range.
        expected: String,
        /// The value.
        found: String,
    },
    /// The address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A thread.
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
    /// Certificate or key.
    #[error("TLS: {what}")]
    Tls {
        /// What is wrong.
        what: String,
    },
}

impl Options {
    /// Refuses what would be unsafe or make no sense, whatever the model.
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
        let counts = [
            ("slots", self.limits.slots, 1, 1024),
            ("queue", self.limits.queue, 0, 1 << 20),
            ("connections", self.limits.connections, 1, 1 << 20),
            ("body", self.limits.body_bytes, 1024, 1 << 30),
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
        if self.api_keys.iter().any(|k| k.len() < 16) {
            return Err(StartError::Option {
                name: "API key",
                expected: "at least 16 characters".to_owned(),
                found: "fewer".to_owned(),
            });
        }
        Ok(())
    }
}

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
            model_name: "m".into(),
            grammar_worker: None,
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
        let short = options("127.0.0.1:0", &["short"], false);
        assert!(short.check().is_err());
    }
}
