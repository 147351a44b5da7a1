//! One answer on its way from tokens to text.

use crate::stop::StopMatcher;
use crate::{Codec, Error, Token};
use muser_text::StreamDecoder;
use muser_text::chat::{Channel, Delta, Reader};

/// Turns the tokens of one answer into text: decodes them, takes the answer apart
/// by its chat format, and searches the content for stop strings.
///
/// The command line and the server write answers through this type, so that both
/// show the same text for the same tokens.
#[derive(Debug)]
pub struct Transcript {
    /// `None` for a model without a tokenizer, whose tokens have no text.
    decoder: Option<StreamDecoder>,
    reader: Reader,
    stop: StopMatcher,
    /// Whether a stop string ended the answer.
    stopped: bool,
}

impl Transcript {
    /// A transcript at the beginning of an answer. With `show_special`, control
    /// tokens that are no marks of the format appear in the text.
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

    /// Adds a token: `out` gets the text that is final with it. Returns the stop
    /// string that ends the answer, if one does; nothing follows then.
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
            // No stop string goes on behind a mark.
            out.content += &self.stop.finish();
        }
        Ok(stop)
    }

    /// Ends the answer, which is complete or was `cut` off: `out` gets the text
    /// that was held back, but nothing after a stop string.
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

    /// Passes on a delta of the reader, its content through the search for stop
    /// strings.
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

    /// The channel of the next token's text.
    pub fn channel(&self) -> Channel {
        self.reader.channel()
    }

    /// The number of tool calls begun so far.
    pub fn calls(&self) -> usize {
        self.reader.calls()
    }

    /// Whether a token that comes now is a part of the content, and not of a
    /// header, reasoning or a call.
    pub fn is_content(&self, token: Token) -> bool {
        let tokenizer = self.decoder.as_ref().map(StreamDecoder::tokenizer);
        let is_control = tokenizer.is_some_and(|t| t.is_control(token));
        self.reader.is_content(is_control)
    }
}
