//! Writes a model's answer to standard output while it is generated.

use crate::{interrupt, output};
use muser_engine::Event;
use std::io::{self, IsTerminal as _, Stdout, Write};
use std::sync::atomic::Ordering;

/// The form in which a model's generated answer is written to standard output: text or
/// token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Show the answer's text, and on a terminal the model's reasoning before it, dimmed.
    Text,
    /// Show the answer's token ids, separated by commas.
    Ids,
    Nothing,
}

/// A writer of a model's generated answer, piece by piece. After a failed write it writes
/// nothing more and raises the interrupt flag, which stops the generation.
pub(crate) struct Answer<W> {
    out: W,
    terminal: bool,
    show: Show,
    /// Whether any piece of the model's answer was written yet.
    begun: bool,
    /// Whether the last piece written was the model's reasoning and not the answer's
    /// text.
    reasoning: bool,
    ends_line: bool,
    error: Option<io::Error>,
}

impl Answer<Stdout> {
    /// Makes a writer of a model's answer to standard output.
    pub(crate) fn new(show: Show) -> Self {
        let out = io::stdout();
        Self::to(show, out.is_terminal(), out)
    }
}

impl<W: Write> Answer<W> {
    fn to(show: Show, terminal: bool, out: W) -> Self {
        Self {
            out,
            terminal,
            show,
            begun: false,
            reasoning: false,
            ends_line: false,
            error: None,
        }
    }

    /// Writes what an event of the generation (a token, text or reasoning) adds to the
    /// shown form of the answer: text or token ids.
    pub(crate) fn event(&mut self, event: Event<'_>) {
        match (event, self.show) {
            (Event::Token(id), Show::Ids) => {
                let comma = if self.begun { "," } else { "" };
                self.write(&format!("{comma}{id}"), false);
            }
            (Event::Text(text), Show::Text) => {
                if std::mem::take(&mut self.reasoning) {
                    self.end_line();
                }
                self.write(text, false);
            }
            (Event::Reasoning(text), Show::Text) if self.terminal => {
                self.reasoning = true;
                self.write(text, true);
            }
            (Event::Token(_) | Event::Text(_) | Event::Reasoning(_), _) => {}
        }
    }

    /// Completes the output of a model's answer: ends its last line, if that is open.
    ///
    /// # Errors
    /// The first write that failed.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.end_line();
        self.error.map_or(Ok(()), Err)
    }

    fn end_line(&mut self) {
        if self.begun && !self.ends_line {
            self.write("\n", false);
        }
    }

    fn write(&mut self, text: &str, dim: bool) {
        if self.error.is_some() {
            return;
        }
        let text = match self.terminal {
            true => &output::lines(text),
            false => text,
        };
        let written = match dim {
            true => write!(self.out, "\u{1b}[2m{text}\u{1b}[22m"),
            false => self.out.write_all(text.as_bytes()),
        };
        if let Err(error) = written.and_then(|()| self.out.flush()) {
            self.error = Some(error);
            interrupt::FLAG.store(true, Ordering::Relaxed);
        }
        self.begun = true;
        self.ends_line = text.ends_with('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(show: Show, terminal: bool) -> String {
        let mut out = Vec::new();
        let mut answer = Answer::to(show, terminal, &mut out);
        for event in [
            Event::Token(4),
            Event::Reasoning("Hm,\u{1b}"),
            Event::Token(5),
            Event::Text("Yes."),
        ] {
            answer.event(event);
        }
        answer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn reasoning_is_for_terminals() {
        let dim = "\u{1b}[2mHm,\\u{1b}\u{1b}[22m";
        assert_eq!(written(Show::Text, true), format!("{dim}\nYes.\n"));
        assert_eq!(written(Show::Text, false), "Yes.\n");
        assert_eq!(written(Show::Ids, true), "4,5\n");
        assert_eq!(written(Show::Nothing, true), "");
    }
}
