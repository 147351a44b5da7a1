//! Generates one answer token by token: from logits to a token, its text, and the end of
//! the answer.

use super::{Counts, Delta, Finish, Generate, TokenLogProb};
use crate::error::ApiError;
use crate::grammar::Masks;
use muser_engine::{Codec, Draw, LogProbs, Sampler, Token, Transcript};
use muser_text::chat::{Channel, Reader};
use std::time::Duration;

/// The state of one answer while it is generated: its sampler, text, token masks and
/// counts.
pub(crate) struct Answer {
    sampler: Sampler,
    transcript: Transcript,
    /// The masks of the answer's grammar: which tokens may come next; `None` if the
    /// answer has no grammar.
    masks: Option<Masks>,
    /// The number of reasoning tokens after which an answer that has a grammar must stop
    /// reasoning, and the token that ends the reasoning.
    reasoning: Option<(usize, Token)>,
    logprobs: Option<usize>,
    /// Whether the token that ends the answer gets a log-probability, as the other tokens
    /// do.
    score: bool,
    max_tokens: Option<usize>,
    min_tokens: usize,
    stop_tokens: Vec<Token>,
    counts: Counts,
    /// The mask of allowed tokens that [`Answer::draw`] last handed to the forward pass.
    allowed: Option<Vec<u32>>,
}

/// Where an answer's next token comes from: chosen on the host from logits, or by the
/// forward pass itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// The next token is still to be chosen, on the host, from these logits.
    Logits(&'a [f32]),
    /// The forward pass chose this token, as [`Answer::draw`] told it to.
    Pass(Token),
}

/// What the scheduler has to do with an answer after an attempt to add its next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The grammar's mask for the answer's next token is not computed yet: try again
    /// later.
    Later,
    /// The answer goes on: this token has to go through the model next.
    Next(Token),
    /// The answer is complete, for this reason.
    Done(Finish),
}

impl Answer {
    /// Creates the state of an answer that has no tokens yet. `choice`, the answer's
    /// number among those to its prompt, is added to the sampler's seed.
    pub(crate) fn new(
        generate: &Generate,
        codec: &Codec,
        vocab: usize,
        choice: u64,
    ) -> Result<Self, ApiError> {
        let tokenizer = codec.tokenizer();
        let mut sampling = generate.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(choice);
        if generate.ignore_end {
            let ends = tokenizer.iter().flat_map(|t| t.eog().iter());
            sampling
                .logit_bias
                .extend(ends.map(|t| (t, f32::NEG_INFINITY)));
        }
        let reader = Reader::new(generate.format, generate.tools.clone());
        let special = generate.show_special;
        let masks = generate.grammar.as_ref().map(Masks::new).transpose()?;
        let reasoning = generate.format.markup().reasoning;
        let end = reasoning.and_then(|reasoning| tokenizer.ok()?.id_of(reasoning.end));
        let reasoning = generate.grammar.as_ref().zip(end).map(|(grammar, end)| {
            let half = generate.max_tokens.map_or(usize::MAX, |most| most / 2);
            (grammar.reasoning().min(half), end)
        });
        Ok(Self {
            sampler: Sampler::new(sampling, vocab)?,
            transcript: Transcript::new(codec, reader, &generate.stop, special)?,
            masks,
            reasoning,
            logprobs: generate.logprobs,
            score: generate.score,
            min_tokens: generate.min_tokens,
            stop_tokens: generate.stop_tokens.clone(),
            max_tokens: generate.max_tokens,
            counts: Counts::default(),
            allowed: None,
        })
    }

    /// Describes how the forward pass itself can choose the answer's next token, from the
    /// logits of `vocab` tokens. Returns `None` where [`Answer::step`] needs the logits:
    /// for log-probabilities, or for a grammar's mask that may not be ready.
    pub(crate) fn draw(&mut self, vocab: usize, codec: &Codec) -> Option<Draw<'_>> {
        if self.masks.is_some() || self.logprobs.is_some() || self.max_tokens == Some(0) {
            return None;
        }
        self.allowed = self.without_ends(None, vocab, codec);
        Some(Draw {
            sampler: &mut self.sampler,
            allowed: self.allowed.as_deref(),
        })
    }

    /// Returns the token counts of the answer so far (sampled tokens, and of these in
    /// reasoning).
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Adds the answer's next token, which the forward pass chose after `history` or
    /// which is chosen here from logits; returns the new text and how the answer goes on.
    /// Waits for a grammar's mask that is not ready, but at most for `patience`.
    pub(crate) fn step(
        &mut self,
        source: Source<'_>,
        history: &[Token],
        context: usize,
        codec: &Codec,
        patience: Duration,
    ) -> Result<(Delta, Outcome), ApiError> {
        let mut delta = Delta::default();
        if self.max_tokens == Some(0) {
            return Ok((delta, Outcome::Done(Finish::Length)));
        }
        if let Some(masks) = &mut self.masks
            && !masks.ready(patience)?
        {
            return Ok((delta, Outcome::Later));
        }
        let token = match source {
            Source::Pass(token) => token,
            Source::Logits(logits) => self.choose(logits, history, codec)?,
        };
        if codec.is_end(token) || self.stop_tokens.contains(&token) {
            if self.score {
                delta.logprobs.extend(self.logprob(source, token));
            }
            self.transcript.finish(false, &mut delta.text);
            return Ok((delta, Outcome::Done(self.natural_end())));
        }
        let complete = match &mut self.masks {
            Some(masks) => masks.push(token)?,
            None => false,
        };
        self.counts.completion += 1;
        if self.transcript.is_content(token) {
            delta.logprobs.extend(self.logprob(source, token));
        }
        if self.transcript.channel() == Channel::Reasoning {
            self.counts.reasoning += 1;
        }
        if self.transcript.push(token, &mut delta.text)?.is_some() {
            return Ok((delta, Outcome::Done(Finish::Stop)));
        }
        let full = self.max_tokens.is_some_and(|n| self.counts.completion >= n);
        let finish = match (complete, full || history.len() >= context) {
            (true, _) => self.natural_end(),
            (_, true) => Finish::Length,
            _ => return Ok((delta, Outcome::Next(token))),
        };
        let cut = finish == Finish::Length;
        self.transcript.finish(cut, &mut delta.text);
        Ok((delta, Outcome::Done(finish)))
    }

    /// Chooses an answer's next token on the host, among those that the grammar's mask
    /// allows.
    fn choose(
        &mut self,
        logits: &[f32],
        history: &[Token],
        codec: &Codec,
    ) -> Result<Token, ApiError> {
        let allowed = self.masks.as_ref().and_then(Masks::mask);
        match (allowed, self.reasoned_enough()) {
            (Some(mask), Some(end)) if mask.is_allowed(end) => Ok(end),
            _ => {
                let allowed = allowed.map(|mask| mask.as_slice());
                let longer = self.without_ends(allowed, logits.len(), codec);
                let allowed = longer.as_deref().or(allowed);
                Ok(self.sampler.sample_among(logits, history, allowed)?)
            }
        }
    }

    /// Returns the token that ends the reasoning if the answer has used up its reasoning
    /// tokens; `None` if the reasoning may go on.
    fn reasoned_enough(&self) -> Option<Token> {
        let (most, end) = self.reasoning?;
        let enough =
            self.transcript.channel() == Channel::Reasoning && self.counts.reasoning >= most;
        enough.then_some(end)
    }

    /// Returns the mask `allowed` without the tokens that end an answer, while the answer
    /// is below its least length. `None` if it is long enough, or if no token would be
    /// left.
    fn without_ends(
        &self,
        allowed: Option<&[u32]>,
        vocab: usize,
        codec: &Codec,
    ) -> Option<Vec<u32>> {
        if self.counts.completion >= self.min_tokens {
            return None;
        }
        let all = || vec![u32::MAX; vocab.div_ceil(32)];
        let mut words = allowed.map_or_else(all, <[u32]>::to_vec);
        let own = codec.tokenizer().into_iter().flat_map(|t| t.eog().iter());
        for end in own.chain(self.stop_tokens.iter().copied()) {
            if let Some(word) = words.get_mut(end as usize / 32) {
                *word &= !(1 << (end % 32));
            }
        }
        words.iter().any(|&word| word != 0).then_some(words)
    }

    /// Returns why a complete answer ends: for its tool calls if it has any, or else
    /// because the model stopped.
    fn natural_end(&self) -> Finish {
        match self.transcript.calls() {
            0 => Finish::Stop,
            _ => Finish::ToolCalls,
        }
    }

    fn logprob(&self, source: Source<'_>, token: Token) -> Option<TokenLogProb> {
        let (Source::Logits(logits), Some(top)) = (source, self.logprobs) else {
            return None;
        };
        let all = LogProbs::new(logits);
        Some(TokenLogProb {
            token,
            logprob: all.of(token)?,
            top: all.top(top),
        })
    }
}
