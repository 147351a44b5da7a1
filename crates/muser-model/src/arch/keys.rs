//! Typed questions to a file's metadata, under an architecture's prefix.

use crate::spec::{AttnBias, FfnBias, MAX_HEADS, MAX_WIDTH};
use crate::{ModelError, Role};
use muser_gguf::{Metadata, Value};
use muser_ops::Lane;
use std::cell::RefCell;
use std::collections::HashSet;

/// The metadata of a file, the keys asked for so far, and the tensors it has.
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

    /// The lane, for defaults that depend on it.
    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// Whether the file has this tensor.
    pub(super) fn has(&self, tensor: &str) -> bool {
        (self.has)(tensor)
    }

    /// `general.name`, or nothing.
    pub(super) fn name(&self) -> Result<String, ModelError> {
        let name = self.metadata.opt_string("general.name")?;
        Ok(name.unwrap_or("").to_owned())
    }

    /// The key with its prefix, noted as asked for.
    fn key(&self, suffix: &str) -> String {
        let key = format!("{}.{suffix}", self.arch);
        self.asked.borrow_mut().insert(key.clone());
        key
    }

    /// The error for a value of a key that the architecture has no meaning for.
    pub(super) fn refused(
        &self,
        suffix: &str,
        expected: impl ToString,
        found: impl ToString,
    ) -> ModelError {
        refused(&self.key(suffix), expected, found)
    }

    /// A size from 1 to `most`.
    pub(super) fn size(&self, suffix: &str, most: u32) -> Result<usize, ModelError> {
        let value = self.metadata.u32(&self.key(suffix))?;
        self.check_size(suffix, value, most)
    }

    /// The same, if there is such a key.
    pub(super) fn opt_size(&self, suffix: &str, most: u32) -> Result<Option<usize>, ModelError> {
        let value = self.metadata.opt_u32(&self.key(suffix))?;
        value.map(|v| self.check_size(suffix, v, most)).transpose()
    }

    /// A size that a file may give as one number or as one a layer, if these
    /// are all the same.
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

    /// The same, of a key that must be there.
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

    /// A count, 0 where there is no such key.
    pub(super) fn count(&self, suffix: &str, most: u32) -> Result<usize, ModelError> {
        match self.metadata.opt_u32(&self.key(suffix))? {
            None | Some(0) => Ok(0),
            Some(value) => self.check_size(suffix, value, most),
        }
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, suffix: &str) -> Result<f32, ModelError> {
        let value = self.metadata.f32(&self.key(suffix))?;
        self.check_positive(suffix, value)
    }

    /// The same, if there is such a key.
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

    /// A number, if there is such a key.
    pub(super) fn opt_number(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.metadata.opt_f32(&self.key(suffix))?)
    }

    /// A text, if there is such a key.
    pub(super) fn opt_text(&self, suffix: &str) -> Result<Option<&str>, ModelError> {
        Ok(self.metadata.opt_string(&self.key(suffix))?)
    }

    /// The biases that the file has for a layer's attention.
    pub(super) fn attn_bias(&self, layer: usize) -> AttnBias {
        let has = |role: Role| self.has(&role.tensor_name(layer));
        AttnBias {
            q: has(Role::QBias),
            k: has(Role::KBias),
            v: has(Role::VBias),
            output: has(Role::AttnOutputBias),
        }
    }

    /// The biases that the file has for a layer's FFN.
    pub(super) fn ffn_bias(&self, layer: usize) -> FfnBias {
        let has = |role: Role| self.has(&role.tensor_name(layer));
        FfnBias {
            gate: has(Role::FfnGateBias),
            up: has(Role::FfnUpBias),
            down: has(Role::FfnDownBias),
        }
    }

    /// Query heads and KV heads: the latter divide the former.
    pub(super) fn check_heads(&self, heads: usize, kv_heads: usize) -> Result<(), ModelError> {
        if heads.is_multiple_of(kv_heads) {
            return Ok(());
        }
        let expected = format!("a divisor of attention.head_count {heads}");
        Err(self.refused("attention.head_count_kv", expected, kv_heads))
    }

    /// Refuses a head of an odd width, and any of these keys that gives it
    /// another.
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

    /// `vocab_size` and the token list, either of which serves alone.
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

    /// Which layers slide, in both dialects in circulation: a period n, of
    /// which every n-th layer is full, or one boolean a layer. `period` is that
    /// of a file without either.
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

    /// Refuses a key of the architecture's prefix that nobody asked for, unless
    /// it is known to be harmless.
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
