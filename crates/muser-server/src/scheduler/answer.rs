//! One answer while it is written: from logits to tokens, text and its end.

use super::{Counts, Delta, Finish, Format, Generate, TokenLogProb};
use crate::atem::{Channel, Mark, Reader};
use crate::error::ApiError;
use crate::grammar::Masks;
use muser_engine::{Codec, Draw, LogProbs, Sampler, StopMatcher, Token};
use muser_text::StreamDecoder;
use std::time::Duration;

/// The state of one answer.
pub(crate) struct Answer {
    sampler: Sampler,
    /// `None` for a model without a tokenizer, which has tokens only.
    decoder: Option<StreamDecoder>,
    /// Takes messages apart; `None` where text is text.
    reader: Option<Reader>,
    stop: StopMatcher,
    /// What may be written, if that is not anything.
    masks: Option<Masks>,
    /// Tokens of reasoning after which a constrained answer has to begin, and
    /// the token that ends reasoning.
    reasoning: Option<(usize, Token)>,
    logprobs: Option<usize>,
    /// Whether the token that ends it has a log-probability too.
    score: bool,
    max_tokens: Option<usize>,
    min_tokens: usize,
    stop_tokens: Vec<Token>,
    counts: Counts,
    /// The mask of the choice that [`Answer::draw`] describes.
    allowed: Option<Vec<u32>>,
}

/// Where a step takes its token from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// The step chooses it from these logits.
    Logits(&'a [f32]),
    /// The pass chose it, by [`Answer::draw`].
    Pass(Token),
}

/// What comes after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Which tokens may come is not known yet: ask again.
    Later,
    /// The token goes through the model.
    Next(Token),
    /// The answer is complete.
    Done(Finish),
}

impl Answer {
    /// At its beginning; `choice` of the request's.
    pub(crate) fn new(
        generate: &Generate,
        codec: &Codec,
        vocab: usize,
        choice: u64,
    ) -> Result<Self, ApiError> {
        let tokenizer = codec.tokenizer();
        if !generate.stop.is_empty() {
            codec.tokenizer()?;
        }
        let mut sampling = generate.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(choice);
        if generate.ignore_end {
            let ends = tokenizer.iter().flat_map(|t| t.eog().iter());
            sampling
                .logit_bias
                .extend(ends.map(|t| (t, f32::NEG_INFINITY)));
        }
        let reader = match generate.format {
            Format::Plain => None,
            Format::Messages { tools } => Some(Reader::new(tools, generate.parameters.clone())),
        };
        let masks = generate.grammar.as_ref().map(Masks::new).transpose()?;
        let end = tokenizer.as_ref().ok().and_then(|t| t.id_of("<|eom|>"));
        let reasoning = generate.grammar.as_ref().zip(end).map(|(grammar, end)| {
            let half = generate.max_tokens.map_or(usize::MAX, |most| most / 2);
            (grammar.reasoning().min(half), end)
        });
        Ok(Self {
            sampler: Sampler::new(sampling, vocab)?,
            decoder: tokenizer
                .ok()
                .map(|t| StreamDecoder::new(t, generate.show_special)),
            reader,
            stop: StopMatcher::new(&generate.stop)?,
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

    /// How the pass itself can choose the next token, from logits of `vocab`
    /// tokens. `None` where the step needs the logits: for log-probabilities, or
    /// for a mask that may not be ready.
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

    /// What it took so far, but for the prompt.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes or chooses the next token after `history` and returns what it adds.
    /// Waits for a mask that is not ready, at most for `patience`.
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
            self.flush(&mut delta, false);
            return Ok((delta, Outcome::Done(self.natural_end())));
        }
        let complete = match &mut self.masks {
            Some(masks) => masks.push(token)?,
            None => false,
        };
        self.counts.completion += 1;
        if self.counts_as_content(token, codec) {
            delta.logprobs.extend(self.logprob(source, token));
        }
        if self.text(token, codec, &mut delta)? {
            return Ok((delta, Outcome::Done(Finish::Stop)));
        }
        let full = self.max_tokens.is_some_and(|n| self.counts.completion >= n);
        let finish = match (complete, full || history.len() >= context) {
            (true, _) => self.natural_end(),
            (_, true) => Finish::Length,
            _ => return Ok((delta, Outcome::Next(token))),
        };
        self.flush(&mut delta, finish == Finish::Length);
        Ok((delta, Outcome::Done(finish)))
    }

    /// Chooses the next token on the host, among those that the mask allows.
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

    /// The token that has to end the reasoning now, if so.
    fn reasoned_enough(&self) -> Option<Token> {
        let reader = self.reader.as_ref()?;
        let (most, end) = self.reasoning?;
        let enough = reader.channel() == Channel::Reasoning && self.counts.reasoning >= most;
        enough.then_some(end)
    }

    /// What may come next of an answer that is too short to end: `allowed`
    /// without what would end it. `None` where that rules out nothing, or all.
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

    fn natural_end(&self) -> Finish {
        match &self.reader {
            Some(reader) if reader.calls() > 0 => Finish::ToolCalls,
            _ => Finish::Stop,
        }
    }

    /// Whether log-probabilities of this token are wanted: those of the answer
    /// itself, not of headers, reasoning and calls.
    fn counts_as_content(&self, token: Token, codec: &Codec) -> bool {
        let control = codec.tokenizer().is_ok_and(|t| t.is_control(token));
        match &self.reader {
            None => true,
            Some(reader) => reader.channel() == Channel::Content && !control,
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

    /// Adds the token's text; whether a stop string ended the answer.
    fn text(&mut self, token: Token, codec: &Codec, delta: &mut Delta) -> Result<bool, ApiError> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(false);
        };
        let tokenizer = codec.tokenizer()?;
        let Some(reader) = &mut self.reader else {
            let text = decoder.push(token).map_err(muser_engine::Error::from)?;
            return Ok(self.content(&text, delta));
        };
        if reader.channel() == Channel::Reasoning {
            self.counts.reasoning += 1;
        }
        let control = tokenizer
            .is_control(token)
            .then(|| tokenizer.token_text(token));
        let mut raw = Delta::default();
        match control.flatten().and_then(Mark::of) {
            Some(mark) => {
                reader.text(&decoder.finish(), &mut raw);
                let was = reader.channel();
                reader.mark(mark, &mut raw);
                let left = was == Channel::Content && reader.channel() != was;
                let stopped = self.pass(raw, delta);
                if left && !stopped {
                    delta.content += &self.stop.finish();
                }
                Ok(stopped)
            }
            None => {
                let text = decoder.push(token).map_err(muser_engine::Error::from)?;
                reader.text(&text, &mut raw);
                Ok(self.pass(raw, delta))
            }
        }
    }

    /// What the reader gave, its content through the search for stop strings.
    fn pass(&mut self, raw: Delta, delta: &mut Delta) -> bool {
        delta.reasoning += &raw.reasoning;
        delta.calls.extend(raw.calls);
        self.content(&raw.content, delta)
    }

    fn content(&mut self, text: &str, delta: &mut Delta) -> bool {
        if text.is_empty() {
            return false;
        }
        let (shown, stop) = self.stop.push(text);
        delta.content += &shown;
        stop.is_some()
    }

    /// What was held back, now that nothing follows; `cut` off or complete.
    fn flush(&mut self, delta: &mut Delta, cut: bool) {
        let decoder = self.decoder.as_mut();
        let rest = decoder.map_or_else(String::new, StreamDecoder::finish);
        let stopped = match &mut self.reader {
            None => self.content(&rest, delta),
            Some(reader) => {
                let mut raw = Delta::default();
                reader.text(&rest, &mut raw);
                reader.finish(cut, &mut raw);
                self.pass(raw, delta)
            }
        };
        if !stopped {
            delta.content += &self.stop.finish();
        }
    }
}
