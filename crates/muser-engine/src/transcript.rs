//! Turns the tokens of one answer into its text, reasoning and tool calls.

use crate::stop::StopMatcher;
use crate::{Codec, Error, Token};
use muser_text::StreamDecoder;
use muser_text::chat::{Channel, Delta, Reader};

/// Turns the tokens of one answer into text: decodes them, takes the answer apart by
/// its chat format, and searches the content for stop strings.
///
/// The command line and the server write answers through this type, so that both
/// show the same text for the same tokens.
#[derive(Debug)]
pub struct Transcript {
    /// Decodes the answer's tokens; `None` for a model without a tokenizer, whose
    /// tokens have no text.
    decoder: Option<StreamDecoder>,
    reader: Reader,
    stop: StopMatcher,
    /// Whether a stop string ended the answer.
    stopped: bool,
}

impl Transcript {
    /// Makes the transcript of an answer, at the answer's beginning. With
    /// `show_special`, control tokens that have no meaning in the chat format appear in
    /// the text.
    ///
    /// # Errors
    /// A stop string that [`StopMatcher::new`] refuses; any stop string for a
    /// model without a tokenizer.
    pub fn new(
        codec: &Codec,
        reader: Reader,
        stop: &[String],
        show_special: bool,
    ) -> Result<Self, Error> {
        let tokenizer = match codec.tokenizer() {
            Err(error) if !stop.is_empty() => return Err(error),
            tokenizer => tokenizer.ok(),
        };
        Ok(Self {
            decoder: tokenizer.map(|t| StreamDecoder::new(t, show_special)),
            reader,
            stop: StopMatcher::new(stop)?,
            stopped: false,
        })
    }

    /// Adds a token of the answer: `out` gets the text that is final with it. Returns
    /// the stop string that ends the answer, if one does; nothing follows then.
    ///
    /// # Errors
    /// A token beyond the vocabulary.
    pub fn push(&mut self, token: Token, out: &mut Delta) -> Result<Option<String>, Error> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(None);
        };
        let tokenizer = decoder.tokenizer();
        let mark = tokenizer.token_text(token).filter(|text| {
            let is_control = tokenizer.is_control(token);
            is_control && self.reader.is_mark(text)
        });
        let mut read = Delta::default();
        let Some(mark) = mark.map(str::to_owned) else {
            self.reader.text(&decoder.push(token)?, &mut read);
            return Ok(self.pass(read, out));
        };
        self.reader.text(&decoder.finish(), &mut read);
        let was = self.reader.channel();
        self.reader.mark(&mark, &mut read);
        let stop = self.pass(read, out);
        if was == Channel::Content && self.reader.channel() != was && stop.is_none() {
            // A stop string that began before a control token of the format cannot go
            // on behind it.
            out.content += &self.stop.finish();
        }
        Ok(stop)
    }

    /// Ends the answer, which is complete or was `cut` off: `out` gets the text that
    /// was held back, but nothing after a stop string.
    pub fn finish(&mut self, cut: bool, out: &mut Delta) {
        if self.stopped {
            return;
        }
        let mut read = Delta::default();
        if let Some(decoder) = &mut self.decoder {
            self.reader.text(&decoder.finish(), &mut read);
        }
        self.reader.finish(cut, &mut read);
        if self.pass(read, out).is_none() {
            out.content += &self.stop.finish();
        }
    }

    /// Passes on what the chat format's reader found: reasoning and tool calls as they
    /// are, content through the search for stop strings. Returns the stop string found,
    /// if any.
    fn pass(&mut self, read: Delta, out: &mut Delta) -> Option<String> {
        out.reasoning += &read.reasoning;
        out.calls.extend(read.calls);
        if read.content.is_empty() {
            return None;
        }
        let (shown, stop) = self.stop.push(&read.content);
        out.content += &shown;
        self.stopped |= stop.is_some();
        stop
    }

    /// Returns the channel (header, content, reasoning, call) that the next token's
    /// text belongs to.
    pub fn channel(&self) -> Channel {
        self.reader.channel()
    }

    /// Returns the number of tool calls begun in the answer so far.
    pub fn calls(&self) -> usize {
        self.reader.calls()
    }

    /// Returns whether a token that comes now is a part of the answer's content, and
    /// not of a header, reasoning or a tool call.
    pub fn is_content(&self, token: Token) -> bool {
        let tokenizer = self.decoder.as_ref().map(StreamDecoder::tokenizer);
        let is_control = tokenizer.is_some_and(|t| t.is_control(token));
        self.reader.is_content(is_control)
    }
}
