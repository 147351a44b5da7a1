//! Reads the metadata keys of a model's architecture, checks their types and ranges,
//! and records which were read, so that all others can be refused: [`Keys`].

use crate::spec::{AttnBias, FfnBias, MAX_HEADS, MAX_WIDTH};
use crate::{ModelError, Role};
use muser_gguf::{Metadata, Value};
use muser_ops::Lane;
use std::cell::RefCell;
use std::collections::HashSet;

/// The metadata of a model file, the keys read so far, and a test of which tensors the
/// file has.
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    has: &'a dyn Fn(&str) -> bool,
    arch: &'static str,
    lane: Lane,
    asked: RefCell<HashSet<String>>,
}

pub(super) fn refused(key: &str, expected: impl ToString, found: impl ToString) -> ModelError {
    ModelError::Config {
        key: key.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

impl<'a> Keys<'a> {
    pub(super) fn new(
        metadata: &'a Metadata,
        has: &'a dyn Fn(&str) -> bool,
        arch: &'static str,
        lane: Lane,
    ) -> Self {
        Self {
            metadata,
            has,
            arch,
            lane,
            asked: RefCell::default(),
        }
    }

    /// Returns the lane, on which defaults of absent metadata keys depend: strict
    /// (muser's own arithmetic) or pinned (llama.cpp's).
    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// Returns whether the model file has a tensor of this name.
    pub(super) fn has(&self, tensor: &str) -> bool {
        (self.has)(tensor)
    }

    /// Returns the model's name, `general.name`; empty if the file has none.
    pub(super) fn name(&self) -> Result<String, ModelError> {
        let name = self.metadata.opt_string("general.name")?;
        Ok(name.unwrap_or("").to_owned())
    }

    /// Puts the architecture's prefix before a metadata key, as in `llama.block_count`,
    /// and records the key as read, so that it is not refused as unknown.
    fn key(&self, suffix: &str) -> String {
        let key = format!("{}.{suffix}", self.arch);
        self.asked.borrow_mut().insert(key.clone());
        key
    }

    /// Makes the error for a metadata value that the architecture does not allow.
    pub(super) fn refused(
        &self,
        suffix: &str,
        expected: impl ToString,
        found: impl ToString,
    ) -> ModelError {
        refused(&self.key(suffix), expected, found)
    }

    /// Reads a size of the model, such as its number of layers, from a metadata key.
    /// Refuses sizes outside 1 to `most`.
    pub(super) fn size(&self, suffix: &str, most: u32) -> Result<usize, ModelError> {
        let value = self.metadata.u32(&self.key(suffix))?;
        self.check_size(suffix, value, most)
    }

    /// Reads a size of the model from a metadata key; `None` if there is no such key.
    /// Refuses sizes outside 1 to `most`.
    pub(super) fn opt_size(&self, suffix: &str, most: u32) -> Result<Option<usize>, ModelError> {
        let value = self.metadata.opt_u32(&self.key(suffix))?;
        value.map(|v| self.check_size(suffix, v, most)).transpose()
    }

    /// Reads a size of the layers that the metadata gives once or for each layer;
    /// `None` if there is no such key. Refuses sizes that differ between layers.
    pub(super) fn opt_uniform(
        &self,
        suffix: &str,
        most: u32,
        layers: usize,
    ) -> Result<Option<usize>, ModelError> {
        let key = self.key(suffix);
        let Some(Value::Array(_)) = self.metadata.get(&key) else {
            return self.opt_size(suffix, most);
        };
        let values = self.metadata.u32s(&key)?;
        let expected = format!("one number, or the same one for each of {layers} layers");
        if values.len() != layers {
            let found = format!("{} numbers", values.len());
            return Err(refused(&key, expected, found));
        }
        if let Some(other) = values.iter().find(|&&v| v != values[0]) {
            return Err(refused(
                &key,
                expected,
                format!("{} and {other}", values[0]),
            ));
        }
        Ok(Some(self.check_size(suffix, values[0], most)?))
    }

    /// Reads a size of the layers that the metadata gives once or for each layer, as
    /// [`Keys::opt_uniform`] does. Refuses a file without the key.
    pub(super) fn uniform(
        &self,
        suffix: &str,
        most: u32,
        layers: usize,
    ) -> Result<usize, ModelError> {
        match self.opt_uniform(suffix, most, layers)? {
            Some(size) => Ok(size),
            None => self.size(suffix, most),
        }
    }

    fn check_size(&self, suffix: &str, value: u32, most: u32) -> Result<usize, ModelError> {
        if value == 0 || value > most {
            return Err(self.refused(suffix, format!("1 to {most}"), value));
        }
        Ok(value as usize)
    }

    /// Reads a count, such as the number of experts, from a metadata key; 0 if there is
    /// no such key. Refuses counts above `most`.
    pub(super) fn count(&self, suffix: &str, most: u32) -> Result<usize, ModelError> {
        match self.metadata.opt_u32(&self.key(suffix))? {
            None | Some(0) => Ok(0),
            Some(value) => self.check_size(suffix, value, most),
        }
    }

    /// Reads a number from the model's metadata; refuses any that is not finite and
    /// above 0.
    pub(super) fn positive(&self, suffix: &str) -> Result<f32, ModelError> {
        let value = self.metadata.f32(&self.key(suffix))?;
        self.check_positive(suffix, value)
    }

    /// Reads a number from the model's metadata; `None` if there is no such key.
    /// Refuses numbers that are not finite and above 0.
    pub(super) fn opt_positive(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        let value = self.metadata.opt_f32(&self.key(suffix))?;
        value.map(|v| self.check_positive(suffix, v)).transpose()
    }

    pub(super) fn check_positive(&self, suffix: &str, value: f32) -> Result<f32, ModelError> {
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.refused(suffix, "a finite number above 0", value))
        }
    }

    /// Reads a number from the model's metadata; `None` if there is no such key.
    pub(super) fn opt_number(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.metadata.opt_f32(&self.key(suffix))?)
    }

    /// Reads a string from the model's metadata; `None` if there is no such key.
    pub(super) fn opt_text(&self, suffix: &str) -> Result<Option<&str>, ModelError> {
        Ok(self.metadata.opt_string(&self.key(suffix))?)
    }

    /// Returns which projections of a layer's attention have a bias tensor in the file.
    pub(super) fn attn_bias(&self, layer: usize) -> AttnBias {
        let has = |role: Role| self.has(&role.tensor_name(layer));
        AttnBias {
            q: has(Role::QBias),
            k: has(Role::KBias),
            v: has(Role::VBias),
            output: has(Role::AttnOutputBias),
        }
    }

    /// Returns which projections of a layer's dense FFN have a bias tensor in the file.
    pub(super) fn ffn_bias(&self, layer: usize) -> FfnBias {
        let has = |role: Role| self.has(&role.tensor_name(layer));
        FfnBias {
            gate: has(Role::FfnGateBias),
            up: has(Role::FfnUpBias),
            down: has(Role::FfnDownBias),
        }
    }

    /// Refuses a number of K/V heads that does not divide the number of query heads.
    pub(super) fn check_heads(&self, heads: usize, kv_heads: usize) -> Result<(), ModelError> {
        if heads.is_multiple_of(kv_heads) {
            return Ok(());
        }
        let expected = format!("a divisor of attention.head_count {heads}");
        Err(self.refused("attention.head_count_kv", expected, kv_heads))
    }

    /// Refuses an odd width of attention heads, and any of the metadata keys `same`
    /// that gives another width.
    pub(super) fn check_head_dim(
        &self,
        head_dim: usize,
        same: &[&'static str],
    ) -> Result<(), ModelError> {
        const KEY: &str = "attention.key_length";
        if !head_dim.is_multiple_of(2) {
            return Err(self.refused(KEY, "an even number (RoPE pairs)", head_dim));
        }
        for suffix in same {
            match self.opt_size(suffix, MAX_HEADS)? {
                Some(found) if found != head_dim => {
                    return Err(self.refused(suffix, format!("{KEY} {head_dim}"), found));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the size of the vocabulary from `vocab_size` or the token list. Refuses a
    /// file where the two differ.
    pub(super) fn vocab(&self) -> Result<usize, ModelError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let size = self.opt_size("vocab_size", MAX_WIDTH)?;
        let tokens = self.metadata.opt_strings(TOKENS)?.map(|t| t.len());
        let Some(tokens) = tokens else {
            return size.map_or_else(|| self.size("vocab_size", MAX_WIDTH), Ok);
        };
        if tokens == 0 || tokens > MAX_WIDTH as usize {
            let expected = format!("1 to {MAX_WIDTH} tokens");
            return Err(refused(TOKENS, expected, tokens));
        }
        match size {
            Some(size) if size != tokens => {
                let expected = format!("the length of {TOKENS}, {tokens}");
                Err(self.refused("vocab_size", expected, size))
            }
            _ => Ok(tokens),
        }
    }

    /// Reads which layers have a sliding window. Files give either a period n (every
    /// n-th layer attends to all positions) or one boolean for each layer; `period` is
    /// used for a file that gives neither.
    pub(super) fn pattern(&self, layers: usize, period: usize) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        let key = self.key(KEY);
        let period = match self.metadata.get(&key) {
            Some(Value::Array(_)) => {
                let pattern = self.metadata.bools(&key)?;
                if pattern.len() != layers {
                    let expected = format!("one boolean for each of {layers} layers");
                    return Err(refused(&key, expected, pattern.len()));
                }
                return Ok(pattern);
            }
            Some(_) => self.metadata.u32(&key)? as usize,
            None => period,
        };
        if period == 0 {
            return Err(refused(&key, "a period of at least 1", 0));
        }
        Ok((0..layers).map(|i| i % period != period - 1).collect())
    }

    /// Refuses a model file that has a metadata key with the architecture's prefix
    /// which was not read and is not listed as harmless.
    pub(super) fn check_all_asked(&self, harmless: &[&str]) -> Result<(), ModelError> {
        let asked = self.asked.borrow();
        for entry in self.metadata.iter() {
            let own = entry.key.strip_prefix(self.arch);
            let Some(suffix) = own.and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            if !asked.contains(&entry.key) && !harmless.contains(&suffix) {
                let found = match &entry.value {
                    Value::Array(array) => format!("array of {} {}", array.len(), array.elem()),
                    value => value.to_string(),
                };
                let expected = "no such key: what it means for the arithmetic is not known";
                return Err(refused(&entry.key, expected, found));
            }
        }
        Ok(())
    }
}
