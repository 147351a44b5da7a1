//! Every architecture in a float format and in K-quants: the CPU's bits are the
//! oracle's at each level, and neither threads nor cuts of the prompt nor
//! company in a pass move one. A level that the machine lacks is reported as
//! ignored.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{bits, oracle, synthetic, tokens};
use libtest_mimic::{Arguments, Trial};
use muser_cpu::{Cpu, CpuOptions, Level};
use muser_gguf::Gguf;
use muser_model::{Cache, Step, Transformer, Want};
use muser_ops::Backend;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// Tokens of the sequence: more than two chunks of 64 positions, and than a
/// window.
const LONG: usize = 150;

struct Case {
    file: Vec<u8>,
    ids: Vec<u32>,
    /// The oracle's logits, all tokens in one call.
    expected: OnceLock<Vec<Vec<u32>>>,
}

impl Case {
    fn expected(&self) -> &[Vec<u32>] {
        self.expected.get_or_init(|| {
            let model = oracle(self.file.clone());
            let rows = bits(&model, &mut model.cache(LONG), &self.ids, &[]);
            // Rows differ from each other, or equality would say little. A token
            // that sees itself alone may give its row twice.
            let distinct: HashSet<&Vec<u32>> = rows.iter().collect();
            assert!(distinct.len() > LONG / 2, "{}", distinct.len());
            rows
        })
    }

    fn on_cpu(&self, level: Level, threads: usize) -> Transformer<Cpu> {
        let options = CpuOptions {
            threads: Some(threads),
            level: Some(level),
            ..CpuOptions::default()
        };
        let gguf = Gguf::from_vec(self.file.clone()).unwrap();
        Transformer::load(&gguf, Arc::new(Cpu::open(options).unwrap())).unwrap()
    }

    fn whole<B: Backend>(&self, model: &Transformer<B>) {
        let rows = bits(model, &mut model.cache(LONG), &self.ids, &[]);
        assert!(rows == self.expected());
    }

    fn cuts<B: Backend>(&self, model: &Transformer<B>) {
        for cut in [vec![], vec![1; 9], vec![7, 9, 16, 33, 64]] {
            let rows = bits(model, &mut model.cache(LONG), &self.ids, &cut);
            assert!(rows == self.expected(), "{cut:?}");
        }
    }

    /// Beginnings of the sequence together, of different lengths, twice: the
    /// second pass goes on where the first one ended.
    fn together<B: Backend>(&self, model: &Transformer<B>) {
        let lengths = [(1, 1), (70, 1), (9, 60), (64, 2), (3, 0)];
        let mut caches: Vec<Cache<B>> = lengths.iter().map(|_| model.cache(LONG)).collect();
        let mut work = model.workspace();
        for pass in 0..2 {
            let range = |&(a, b): &(usize, usize)| if pass == 0 { 0..a } else { a..a + b };
            let mut steps: Vec<Step<'_, B>> = caches
                .iter_mut()
                .zip(&lengths)
                .map(|(cache, n)| Step {
                    cache,
                    tokens: &self.ids[range(n)],
                    want: Want::All,
                    choice: None,
                })
                .collect();
            let mut seen = 0;
            let sink = &mut |step: usize, i: usize, row: &[f32]| {
                let expected = &self.expected()[range(&lengths[step]).start + i];
                assert!(row.iter().map(|v| v.to_bits()).eq(expected.iter().copied()));
                seen += 1;
            };
            model.forward_many(&mut work, &mut steps, sink).unwrap();
            assert_eq!(seen, lengths.iter().map(|n| range(n).len()).sum::<usize>());
        }
    }
}

fn main() {
    let mut trials = Vec::new();
    for (name, geometry, mix) in common::architectures() {
        let case = Arc::new(Case {
            file: synthetic(&geometry, mix),
            ids: tokens(LONG, geometry.vocab as u32),
            expected: OnceLock::new(),
        });
        let own = Arc::clone(&case);
        trials.push(Trial::test(format!("{name}/oracle"), move || {
            let model = oracle(own.file.clone());
            own.cuts(&model);
            own.together(&model);
            Ok(())
        }));
        for level in Level::ALL {
            let own = Arc::clone(&case);
            let run = move || {
                own.whole(&own.on_cpu(level, 1));
                let model = own.on_cpu(level, 3);
                own.cuts(&model);
                own.together(&model);
                Ok(())
            };
            let trial = Trial::test(format!("{name}/{level}"), run);
            trials.push(trial.with_ignored_flag(!level.is_available()));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
