//! `muser chat`: a conversation with the model in a line editor.

use crate::answer::{Answer, Show};
use crate::backend::Device;
use crate::cli::Common;
use crate::lines::{Line, Lines};
use crate::load::{self, Loaded};
use crate::output::note;
use crate::sampling::SamplingArgs;
use crate::{interrupt, output};
use clap::Args;
use muser_engine::{GenerateOptions, Generation, Sampler, Session, StopReason, generate};
use muser_text::Message;
use std::path::PathBuf;

/// A conversation with the model, in a line editor with history.
///
/// Ctrl-C stops an answer, not the program; Ctrl-D or /quit ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
In the conversation:
  /reset      forget everything said so far
  /help       the commands
  /quit       end (or Ctrl-D)
  a line that ends with \\ goes on in the next one

Examples:
  muser chat
  muser chat --system \"You tell short stories.\" --temperature 0.5
  printf 'Hello\\n/quit\\n' | muser chat --quiet --seed 1

The history of the lines that you type is kept in $XDG_STATE_HOME/muser/chat_history
(--no-history keeps none).")]
pub(crate) struct ChatArgs {
    /// System message that begins the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Most tokens of an answer, those of the chat format's hidden header (about five)
    /// among them
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Size of the context in positions (tokens of the conversation); without it, the
    /// model's own
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Do not keep the history of the lines that you type
    #[arg(long)]
    no_history: bool,
    /// The sampling options: how each token is chosen.
    #[command(flatten)]
    sampling: SamplingArgs,
}

const HELP: &str = "\
/reset  forget everything said so far
/help   this
/quit   end (or Ctrl-D); Ctrl-C stops an answer
A line that ends with \\ goes on in the next one.";

/// Runs `muser chat` with these arguments.
pub(crate) fn run(common: &Common, args: &ChatArgs) -> anyhow::Result<()> {
    let loaded = load::model(common)?;
    let mut chat = Chat::new(&loaded, args)?;
    let history = if args.no_history {
        None
    } else {
        history_file()
    };
    let mut lines = Lines::open(history.as_deref())?;
    if !common.quiet {
        let seed = chat.sampler.params().seed;
        note(format_args!("{} · seed {seed} · /help", title(&loaded)));
    }
    interrupt::set_mode(interrupt::Mode::Always);
    let result = converse(&mut chat, &mut lines);
    if let Some(path) = &history
        && let Err(e) = lines.save(path)
    {
        note(format_args!(
            "the history is not kept: {}: {e}",
            path.display()
        ));
    }
    result
}

fn title(loaded: &Loaded) -> String {
    output::plain(match loaded.model.spec().name.as_str() {
        "" => &loaded.path,
        name => name,
    })
}

fn history_file() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("muser").join("chat_history"))
}

fn converse(chat: &mut Chat<'_>, lines: &mut Lines) -> anyhow::Result<()> {
    while let Some(line) = read(lines)? {
        match line.trim() {
            "" => (),
            "/quit" | "/exit" => break,
            "/reset" => chat.reset(),
            "/help" => output::line(format_args!("{HELP}"))?,
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                note(format_args!("{command}: no such command; /help lists them"));
            }
            _ => chat.answer(line)?,
        }
    }
    Ok(())
}

/// Reads one entry that the user types or pipes: a line, and the next one for as long as
/// a line ends with a backslash. Returns `None` at the end of input.
fn read(lines: &mut Lines) -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() { "> " } else { ". " };
        match lines.next(prompt)? {
            Line::Text(line) => match line.strip_suffix('\\') {
                Some(begun) => text = text + begun + "\n",
                None => return Ok(Some(text + &line)),
            },
            // Ctrl-C drops the entry, as in a shell.
            Line::Interrupted => text.clear(),
            // At the end of input, an entry is complete even if its last line ends with a
            // backslash.
            Line::End => return Ok(text.strip_suffix('\n').map(str::to_owned)),
            Line::NotText => {
                note(format_args!(
                    "error: this line is not UTF-8; it is forgotten"
                ));
                text.clear();
            }
        }
    }
}

struct Chat<'a> {
    loaded: &'a Loaded,
    session: Session<Device>,
    sampler: Sampler,
    options: GenerateOptions,
    messages: Vec<Message>,
    /// The number of system messages, which stay when `/reset` forgets the rest of the
    /// conversation.
    fixed: usize,
}

impl<'a> Chat<'a> {
    fn new(loaded: &'a Loaded, args: &ChatArgs) -> anyhow::Result<Self> {
        let model = &loaded.model;
        model.chat_template()?;
        let ends = model.tokenizer()?.eog().iter();
        let system = args
            .system
            .iter()
            .map(|text| message("system", text.clone()));
        let messages: Vec<Message> = system.collect();
        Ok(Self {
            loaded,
            session: load::session(model, args.context)?,
            sampler: args.sampling.sampler(model.spec().vocab, ends)?,
            options: GenerateOptions {
                max_tokens: args.max_tokens,
                stop: Vec::new(),
                format: model.format(),
            },
            fixed: messages.len(),
            messages,
        })
    }

    fn reset(&mut self) {
        self.messages.truncate(self.fixed);
        self.session.clear();
    }

    /// Answers one message of the user. If the engine refuses it, as when the context is
    /// full, prints why and forgets the message; the conversation goes on.
    fn answer(&mut self, text: String) -> anyhow::Result<()> {
        interrupt::set_mode(interrupt::Mode::Always);
        self.messages.push(message("user", text));
        match self.generate() {
            Ok(generation) => {
                if generation.reason == StopReason::Cancelled {
                    note(format_args!("(stopped)"));
                }
                let reasoning = generation.reasoning;
                self.messages.push(Message {
                    reasoning_content: Some(reasoning).filter(|text| !text.is_empty()),
                    ..message("assistant", generation.text)
                });
                Ok(())
            }
            Err(e) => {
                self.messages.pop();
                let Some(refusal) = e.downcast_ref::<muser_engine::Error>() else {
                    return Err(e);
                };
                note(format_args!("error: {refusal}"));
                if let muser_engine::Error::ContextFull { .. } = refusal {
                    note(format_args!(
                        "  your message is forgotten; /reset starts anew"
                    ));
                }
                Ok(())
            }
        }
    }

    /// Generates the model's answer to the conversation so far and writes it to standard
    /// output.
    fn generate(&mut self) -> anyhow::Result<Generation> {
        let prompt = self.loaded.model.chat_prompt(&self.messages)?;
        let mut answer = Answer::new(Show::Text);
        let (session, sampler) = (&mut self.session, &mut self.sampler);
        let result = generate(
            session,
            &prompt,
            sampler,
            &self.options,
            &interrupt::FLAG,
            &mut |event| answer.event(event),
        );
        answer.finish()?;
        let generation = result?;
        if let StopReason::ContextFull { needed, context } = generation.reason {
            return Err(muser_engine::Error::ContextFull { needed, context }.into());
        }
        Ok(generation)
    }
}

fn message(role: &str, content: String) -> Message {
    Message {
        role: role.to_owned(),
        content,
        ..Message::default()
    }
}
