//! muser as one side of the comparison of speed with llama.cpp: runs a model on the CPU
//! backend in this process.

use super::side::{Answer, Chain, Invariant, Side, hash};
use muser_cpu::{Cpu, CpuOptions, Level};
use muser_model::gguf::Gguf;
use muser_model::{Cache, Transformer, Want};
use muser_ops::Lane;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// muser as one side of the comparison of speed: one lane (strict or pinned arithmetic)
/// at one instruction-set level, with a model and a KV cache for each number of threads
/// in use.
pub(super) struct Ours {
    gguf: Gguf,
    level: Level,
    lane: Lane,
    tokens: Vec<u32>,
    rigs: BTreeMap<usize, Rig>,
}

struct Rig {
    model: Transformer<Cpu>,
    cache: Cache<Cpu>,
}

/// Opens muser's CPU backend at an instruction-set level, with a lane (strict or pinned
/// arithmetic) and a number of threads.
pub(super) fn cpu(level: Level, lane: Lane, threads: usize) -> Result<Cpu, String> {
    Cpu::open(CpuOptions {
        threads: Some(threads),
        level: Some(level),
        lane,
        ..CpuOptions::default()
    })
    .map_err(|e| e.to_string())
}

impl Ours {
    pub(super) fn new(gguf: &Gguf, level: Level, lane: Lane, tokens: &[u32]) -> Self {
        Self {
            gguf: gguf.clone(),
            level,
            lane,
            tokens: tokens.to_vec(),
            rigs: BTreeMap::new(),
        }
    }

    fn rig(&mut self, threads: usize) -> Result<(&mut Rig, &[u32]), String> {
        if !self.rigs.contains_key(&threads) {
            let backend = Arc::new(cpu(self.level, self.lane, threads)?);
            let model = Transformer::load(&self.gguf, backend).map_err(|e| e.to_string())?;
            let cache = model.cache(self.tokens.len());
            self.rigs.insert(threads, Rig { model, cache });
        }
        match self.rigs.get_mut(&threads) {
            Some(rig) => Ok((rig, &self.tokens)),
            None => Err("no backend".to_owned()),
        }
    }
}

impl Side for Ours {
    fn run(&mut self, chain: &Chain) -> Result<Answer, String> {
        let Chain {
            depth,
            width,
            calls,
            ..
        } = *chain;
        let (rig, tokens) = self.rig(chain.threads)?;
        let end = width.checked_mul(calls).and_then(|n| n.checked_add(depth));
        if width == 0 || calls == 0 || end.is_none_or(|end| end > tokens.len()) {
            let room = tokens.len();
            return Err(format!("{chain:?}: there is room for {room} positions"));
        }
        rig.go_to(tokens, depth)?;
        if chain.warm {
            rig.forward(&tokens[depth..depth + width], Want::Last, &mut |_, _| {})?;
            rig.go_to(tokens, depth)?;
        }
        let mut seconds = Vec::with_capacity(calls);
        let mut last = Vec::with_capacity(rig.model.spec().vocab);
        for call in 0..calls {
            let at = depth + call * width;
            last.clear();
            let start = Instant::now();
            // The logits are copied, as llama.cpp does: they end in memory of the
            // caller.
            rig.forward(&tokens[at..at + width], Want::Last, &mut |_, row| {
                last.extend_from_slice(row);
            })?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let last = hash(&last);
        Ok(Answer { seconds, last })
    }
}

impl Invariant for Ours {
    fn otherwise(&mut self, chain: &Chain) -> Result<String, String> {
        let Chain { depth, width, .. } = *chain;
        let (rig, tokens) = self.rig(chain.threads)?;
        match (width, chain.calls) {
            // One call of one token: the token is computed again as one of two rows in
            // a call.
            (1, 1) => {
                let from = depth.saturating_sub(1);
                let pair = tokens.get(from..from + 2).ok_or("a context of one token")?;
                rig.go_to(tokens, from)?;
                let mut own = Vec::new();
                rig.forward(pair, Want::All, &mut |i, row| {
                    if from + i == depth {
                        own.extend_from_slice(row);
                    }
                })?;
                Ok(hash(&own))
            }
            (_, calls) => {
                let end = depth + width * calls;
                // The last token of a single call is computed again in a call
                // of its own; several calls are computed again as one.
                let cut = if calls == 1 { end - 1 } else { depth };
                rig.go_to(tokens, depth)?;
                rig.go_to(tokens, cut)?;
                let mut last = Vec::new();
                rig.forward(&tokens[cut..end], Want::Last, &mut |_, row| {
                    last.extend_from_slice(row);
                })?;
                Ok(hash(&last))
            }
        }
    }
}

impl Rig {
    fn forward(
        &mut self,
        tokens: &[u32],
        want: Want,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), String> {
        let done = self.model.forward(&mut self.cache, tokens, want, sink);
        done.map_err(|e| e.to_string())
    }

    /// Brings the KV cache to the first `depth` tokens: truncates it or stores more.
    /// Starts again from the first token if the ring buffer of a sliding-window layer
    /// no longer holds what position `depth` sees.
    fn go_to(&mut self, tokens: &[u32], depth: usize) -> Result<(), String> {
        if self.cache.len() > depth && !self.cache.truncate(depth) {
            self.cache.clear();
        }
        let stored = self.cache.len();
        if stored == depth {
            return Ok(());
        }
        self.forward(&tokens[stored..depth], Want::Nothing, &mut |_, _| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muser_model::synth::{self, Geometry, Mix};

    fn ours() -> Ours {
        let mut file = Vec::new();
        let geometry = Geometry::named("glimmer-tiny").unwrap();
        synth::write(&geometry, Mix::Q4KM, 1, &mut file, &mut |_, _| {}).unwrap();
        let gguf = Gguf::from_vec(file).unwrap();
        let tokens = super::super::side::tokens(40, geometry.vocab);
        Ours::new(&gguf, Level::Scalar, Lane::Strict, &tokens)
    }

    /// Tests that forward calls of other widths over the same tokens give the same
    /// logits, and that one more token gives other logits.
    #[test]
    fn chains_give_the_row_that_other_calls_give() {
        let mut ours = ours();
        let mut rows = Vec::new();
        for (depth, width, calls) in [(0, 1, 1), (39, 1, 1), (0, 4, 1), (3, 1, 5), (3, 2, 3)] {
            let chain = Chain {
                threads: 1,
                depth,
                width,
                calls,
                warm: width == 2,
            };
            let answer = ours.run(&chain).unwrap();
            assert_eq!(answer.seconds.len(), calls);
            assert_eq!(ours.otherwise(&chain).unwrap(), answer.last, "{chain:?}");
            rows.push(answer.last);
        }
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 5);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut ours = ours();
        for (depth, width, calls) in [(0, 0, 1), (0, 1, 0), (39, 2, 1), (0, usize::MAX, 2)] {
            let chain = Chain {
                threads: 1,
                depth,
                width,
                calls,
                warm: false,
            };
            assert!(ours.run(&chain).unwrap_err().contains("room"), "{chain:?}");
        }
    }
}
