//! The strict lane's attention, cut for the team.
//!
//! A query position and a KV head are a task; where these are fewer than the
//! threads, as at decode, a long context is cut by chunks too. What is computed
//! does not depend on it: a chunk's part is the same on any thread, and parts are
//! merged in order.

use super::{Cpu, Shared};
use crate::kernels::attention::{Span, part_len};
use crate::kv::Kv;
use crate::rows::{for_chunks, for_parts};
use muser_ops::Attention;
use muser_ops::attention::CHUNK;

/// A context of fewer chunks is not cut: a second dispatch costs more.
const CUT_FROM: usize = 8;
/// Tasks a thread when it is cut: one that falls behind holds the others up for
/// a fraction.
const TASKS: usize = 4;

impl Cpu {
    /// Attention of the rows of `q`, the first at position `first`.
    pub(super) fn attention_strict(
        &self,
        desc: &Attention,
        first: usize,
        q: &[f32],
        kv: &Kv,
        out: &mut [f32],
    ) {
        let (d, heads) = (desc.head_dim, desc.kv_heads);
        let group = desc.heads / heads;
        let chunk = group * d;
        let rows = q.len() / (chunk * heads);
        let seen = |r: usize| desc.first_visible(first + r) / CHUNK..(first + r) / CHUNK + 1;
        let shared = &mut *self.lock();
        if rows * heads >= self.threads || seen(rows - 1).len() < CUT_FROM {
            for_chunks(&mut shared.team, out, chunk, |i, out| {
                let (r, head) = (i / heads, i % heads);
                let q = &q[i * chunk..][..chunk];
                self.table
                    .attention(desc, first + r, q, &kv.head(head), out);
            });
            return;
        }
        let padded = kv.head(0).padded_dim();
        let part = part_len(group, padded);
        let all: usize = (0..rows).map(|r| seen(r).len() * heads).sum();
        let length = all.div_ceil(TASKS * self.threads);
        // Parts lie one after the other by row, KV head and chunk.
        let (mut tasks, mut ends, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = 0;
        for r in 0..rows {
            let chunks = seen(r);
            for head in 0..heads {
                starts.push(end * part);
                for from in chunks.clone().step_by(length) {
                    let span = from..chunks.end.min(from + length);
                    end += span.len();
                    ends.push(end * part);
                    tasks.push((r, head, span));
                }
            }
        }
        starts.push(end * part);
        let Shared { team, operands } = shared;
        let parts = &mut operands.parts;
        parts.resize(end * part, 0.0);
        for_parts(team, parts, &ends, |i, out| {
            let (r, head, chunks) = tasks[i].clone();
            let p = first + r;
            let q = &q[(r * heads + head) * chunk..][..chunk];
            let span = Span { p, chunks };
            self.table
                .attention_span(desc, &span, q, &kv.head(head), out);
        });
        let parts = &*parts;
        for_chunks(team, out, d, |i, out| {
            let (place, head) = (i / group, i % group);
            let parts = &parts[starts[place]..starts[place + 1]];
            self.table.attention_merge(parts, group, padded, head, out);
        });
    }
}
