//! Receipts: JSON files that name a model, tokens and an arithmetic, with the hash of the
//! logits that come out. `muser parity` writes and checks them.
//!
//! ```json
//! {
//!   "receipt": 1,
//!   "lane": "pinned", "lane_version": 1, "profile": "llamacpp-avx512",
//!   "threads": 2,
//!   "muser": "0.1.0",
//!   "model": { "name": "glimmer-nano-2-q4_k_m.gguf", "sha256": "…" },
//!   "calls": [1, 4, 16],
//!   "tokens": [ … ],
//!   "logits": { "rows": 21, "columns": 4096, "sha256": "…" },
//!   "reference": { … what llama.cpp's build says of itself … }
//! }
//! ```
//!
//! The SHA-256 of logits is that of their values as little-endian f32, row after row.

use crate::input;
use anyhow::Context as _;
use muser_ops::Lane;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of the receipts' JSON format.
const FORMAT: u32 = 1;

/// A receipt: the record of one run's model, lane (the arithmetic), threads and tokens with
/// the hash of its logits, which `muser parity` checks.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receipt {
    receipt: u32,
    lane: String,
    /// The version of the lane (the arithmetic) that the receipt's logits were computed
    /// in.
    pub(crate) lane_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    /// The number of threads that computed the receipt's logits: in the pinned lane
    /// (llama.cpp's arithmetic) their bits can depend on it.
    pub(crate) threads: usize,
    /// The version of muser that wrote the receipt.
    muser: String,
    pub(crate) model: Model,
    /// The number of tokens in each of the successive forward calls that gave the
    /// receipt's logits.
    pub(crate) calls: Vec<usize>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Logits,
    /// Facts about the build of llama.cpp that gave the same logits as this receipt's:
    /// version, compiler, features.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<serde_json::Value>,
}

/// The model file of a receipt: its name and the SHA-256 of its bytes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) sha256: String,
}

/// The logits of a receipt: their number of rows (tokens) and columns (vocabulary), and the
/// SHA-256 of all.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Logits {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) sha256: String,
}

impl Receipt {
    /// Makes a receipt (a record) of logits that this build of muser computed.
    pub(crate) fn new(
        lane: Lane,
        threads: usize,
        model: Model,
        tokens: Vec<u32>,
        calls: Vec<usize>,
        logits: Logits,
        reference: Option<serde_json::Value>,
    ) -> Self {
        Self {
            receipt: FORMAT,
            lane: lane.name().to_owned(),
            lane_version: lane.version(),
            profile: lane.profile().map(|p| p.name().to_owned()),
            threads,
            muser: env!("CARGO_PKG_VERSION").to_owned(),
            model,
            calls,
            tokens,
            logits,
            reference,
        }
    }

    /// Reads a receipt from a JSON file and checks that its fields are consistent.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = input::text(path, input::MOST_RECEIPT)?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let receipt: Self = serde_json::from_str(text).context("is no receipt")?;
        if receipt.receipt != FORMAT {
            let found = receipt.receipt;
            anyhow::bail!("receipt format: expected {FORMAT}, found {found}");
        }
        if receipt.calls.contains(&0) {
            anyhow::bail!("calls: expected sizes above 0, found 0");
        }
        let sum = receipt
            .calls
            .iter()
            .try_fold(0usize, |s, &c| s.checked_add(c));
        let (calls, tokens) = (sum.unwrap_or(usize::MAX), receipt.tokens.len());
        if calls != tokens || tokens == 0 {
            anyhow::bail!(
                "calls: expected the receipt's {tokens} tokens (one or more), found {calls}"
            );
        }
        let lane = receipt.lane()?;
        if lane.version() != receipt.lane_version {
            anyhow::bail!(
                "lane {lane}: this build has version {}, the receipt is of version {}",
                lane.version(),
                receipt.lane_version
            );
        }
        Ok(receipt)
    }

    /// Returns the lane (the arithmetic: strict, or pinned with its profile) that the
    /// receipt's logits were computed in.
    pub(crate) fn lane(&self) -> anyhow::Result<Lane> {
        match (self.lane.as_str(), &self.profile) {
            ("strict", None) => Ok(Lane::Strict),
            ("pinned", Some(profile)) => Ok(Lane::Pinned(profile.parse()?)),
            ("strict", Some(_)) => anyhow::bail!("profile: the strict lane has none"),
            ("pinned", None) => anyhow::bail!("profile: the pinned lane needs one, found none"),
            (other, _) => anyhow::bail!("lane: expected strict or pinned, found {other:?}"),
        }
    }

    /// Formats the receipt as JSON, one field a line; a list of numbers is on one line.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let value = serde_json::to_value(self)?;
        let Some(fields) = value.as_object() else {
            anyhow::bail!("a receipt is an object");
        };
        let lines = fields.iter().map(|(k, v)| format!("  {k:?}: {v}"));
        Ok(format!(
            "{{\n{}\n}}\n",
            lines.collect::<Vec<_>>().join(",\n")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muser_ops::Profile;

    fn receipt() -> Receipt {
        let model = Model {
            name: "m.gguf".to_owned(),
            sha256: "00".to_owned(),
        };
        let logits = Logits {
            rows: 3,
            columns: 8,
            sha256: "01".to_owned(),
        };
        let lane = Lane::Pinned(Profile::LlamaCppAvx2);
        Receipt::new(lane, 2, model, vec![4, 5, 6], vec![1, 2], logits, None)
    }

    #[test]
    fn what_is_written_is_read() {
        let written = receipt();
        let text = written.text().unwrap();
        assert_eq!(Receipt::parse(&text).unwrap(), written);
        assert_eq!(text.lines().count(), 2 + 9 + 1);
    }

    #[test]
    fn inconsistent_receipts_are_refused_by_name() {
        let text = receipt().text().unwrap();
        for (from, to, error) in [
            ("[1,2]", "[1,1]", "calls: expected the receipt's 3 tokens"),
            ("[1,2]", "[1,0,2]", "calls: expected sizes above 0"),
            (
                "\"receipt\": 1",
                "\"receipt\": 2",
                "receipt format: expected 1, found 2",
            ),
            (
                "\"pinned\"",
                "\"strict\"",
                "profile: the strict lane has none",
            ),
            ("\"pinned\"", "\"loose\"", "lane: expected strict or pinned"),
            ("llamacpp-avx2", "llamacpp-neon", "unknown profile"),
            (
                "\"lane_version\": 1",
                "\"lane_version\": 9",
                "this build has version 1",
            ),
            ("\"tokens\"", "\"tokes\"", "is no receipt"),
        ] {
            let broken = text.replacen(from, to, 1);
            assert_ne!(broken, text, "{from}");
            let found = format!("{:#}", Receipt::parse(&broken).unwrap_err());
            assert!(found.contains(error), "{found}");
        }
    }
}
