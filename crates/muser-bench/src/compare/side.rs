//! The interface through which the comparison of speed runs llama.cpp and muser: chains
//! of forward calls and their answers.

use serde_json::{Value, json};

/// A chain: successive forward calls of one width (number of tokens), the first one at
/// a depth (number of positions stored). Each call computes the logits of its last
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) threads: usize,
    pub(super) depth: usize,
    pub(super) width: usize,
    pub(super) calls: usize,
    /// Whether an untimed warm-up call runs before the timed calls, after which the KV
    /// cache is cut back.
    pub(super) warm: bool,
}

/// The answer to a chain of forward calls: the time of each call and the hash of the
/// last logits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// Seconds that each forward call of the chain took, in order.
    pub(super) seconds: Vec<f64>,
    /// FNV-1a hash of the logits of the last timed forward call.
    pub(super) last: String,
}

/// One side of the comparison of speed, which runs and times chains of forward calls:
/// llama.cpp, or muser in one lane (strict or pinned arithmetic).
pub(super) trait Side {
    /// Brings the KV cache to the depth of the chain (its number of stored positions),
    /// untimed, then runs and times the chain's forward calls.
    fn run(&mut self, chain: &Chain) -> Result<Answer, String>;
}

/// A side of the comparison of speed whose logits depend on the tokens alone, not on
/// how they are split into calls: muser's strict lane (its own arithmetic).
pub(super) trait Invariant: Side {
    /// Computes the tokens of a chain in forward calls of other widths. Returns the
    /// hash of the last logits, which must equal that of the chain itself.
    fn otherwise(&mut self, chain: &Chain) -> Result<String, String>;
}

impl Chain {
    /// Encodes a chain of forward calls as a JSON request.
    pub(super) fn json(&self) -> Value {
        json!({
            "threads": self.threads, "depth": self.depth, "width": self.width,
            "calls": self.calls, "warm": self.warm,
        })
    }

    /// Decodes a chain of forward calls from a JSON request.
    pub(super) fn parse(request: &Value) -> Result<Self, String> {
        let number = |name: &str| {
            let n = request[name].as_u64().and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| format!("{name}: expected a number, found {}", request[name]))
        };
        Ok(Self {
            threads: number("threads")?,
            depth: number("depth")?,
            width: number("width")?,
            calls: number("calls")?,
            warm: request["warm"].as_bool().unwrap_or(false),
        })
    }
}

impl Answer {
    /// Encodes the answer to a chain of forward calls (times and hash) as a JSON reply.
    pub(super) fn json(&self) -> Value {
        json!({ "ok": true, "seconds": self.seconds, "last": self.last })
    }

    /// Decodes the answer to a chain of forward calls (times and hash) from a JSON
    /// reply.
    pub(super) fn parse(reply: &Value) -> Result<Self, String> {
        let seconds = reply["seconds"].as_array().into_iter().flatten();
        let seconds: Vec<f64> = seconds.filter_map(Value::as_f64).collect();
        match (seconds.is_empty(), reply["last"].as_str()) {
            (false, Some(last)) => Ok(Self {
                seconds,
                last: last.to_owned(),
            }),
            _ => Err(format!("expected seconds and a hash, found {reply}")),
        }
    }
}

/// Returns the FNV-1a hash of a row of logits as little-endian bytes, which serves only
/// to compare rows.
pub(super) fn hash(row: &[f32]) -> String {
    let bytes = row.iter().flat_map(|x| x.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Returns `n` pseudo-random token ids for timed forward calls. The cost of a token
/// does not depend on its id.
pub(super) fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    let mut state = 1u64;
    let next = || {
        // Knuth's MMIX generator, whose low bits have short periods: the high
        // half is used.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // No truncation: a vocabulary has fewer than 2^24 tokens.
        ((state >> 32) % vocab.max(1) as u64) as u32
    };
    std::iter::repeat_with(next).take(n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_come_back() {
        let chain = Chain {
            threads: 2,
            depth: 7,
            width: 3,
            calls: 4,
            warm: true,
        };
        assert_eq!(Chain::parse(&chain.json()), Ok(chain));
        assert!(Chain::parse(&json!({ "threads": 1, "depth": -1 })).is_err());
        let answer = Answer {
            seconds: vec![0.5, 0.25],
            last: "00ff".to_owned(),
        };
        assert_eq!(Answer::parse(&answer.json()), Ok(answer));
        assert!(Answer::parse(&json!({ "seconds": [], "last": "" })).is_err());
    }

    #[test]
    fn the_hash_is_fnv_1a_of_the_bytes() {
        // The published value of eight zero bytes.
        assert_eq!(hash(&[0.0, 0.0]), "a8c7f832281a39c5");
        assert_eq!(hash(&[]), "cbf29ce484222325");
        assert_ne!(hash(&[0.0]), hash(&[-0.0]));
    }

    #[test]
    fn tokens_are_of_the_vocabulary() {
        let ids = tokens(1000, 300);
        assert!(ids.iter().all(|&t| t < 300));
        assert!(ids.iter().collect::<std::collections::BTreeSet<_>>().len() > 250);
    }
}
