//! Opens the model file that the command line names, or the embedded one, and loads the
//! model or its tokenizer.

use crate::backend::{self, Device};
use crate::cli::Common;
use crate::embedded;
use crate::exit::{BadModel, Usage};
use muser_engine::{Model, Session};
use muser_gguf::Gguf;
use muser_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A loaded model, and the time that loading took.
pub(crate) struct Loaded {
    /// The model's name in messages: its file's path, or words for the embedded model.
    pub(crate) path: String,
    /// The loaded model: its weights and, if the file has one, its tokenizer.
    pub(crate) model: Arc<Model<Device>>,
    /// The backend that the model's weights are bound to.
    pub(crate) device: Arc<Device>,
    /// The time that it took to open the model file and load it, without the start of the
    /// backend's threads.
    pub(crate) time: Duration,
}

/// Loads the model that the command line names on the backend that it asks for.
pub(crate) fn model(common: &Common) -> anyhow::Result<Loaded> {
    let device = backend::open(common)?;
    let start = Instant::now();
    let (path, gguf) = file(common.model.as_deref())?;
    let model = match Model::load(&gguf, device.clone()) {
        Ok(model) => Arc::new(model),
        Err(e) => return Err(bad(path, e)),
    };
    Ok(Loaded {
        path,
        model,
        device,
        time: start.elapsed(),
    })
}

/// Starts a session (one token sequence with its KV cache) over a model, for at most
/// `context` positions; for `None`, as many as the model's own context has.
pub(crate) fn session(
    model: &Arc<Model<Device>>,
    context: Option<usize>,
) -> anyhow::Result<Session<Device>> {
    Ok(Session::new(model.clone(), context)?)
}

/// Opens a GGUF file, or the embedded model if there is no path; returns the model's name
/// in messages, too.
pub(crate) fn file(path: Option<&Path>) -> anyhow::Result<(String, Gguf)> {
    let Some(path) = path else {
        let Some(bytes) = embedded::file() else {
            let without = "this build has no embedded model: give one with --model FILE";
            return Err(Usage(without.to_owned()).into());
        };
        let name = embedded::NAME.to_owned();
        return match Gguf::from_static(bytes) {
            Ok(gguf) => Ok((name, gguf)),
            Err(e) => Err(bad(name, e)),
        };
    };
    let name = path.display().to_string();
    match Gguf::open(path) {
        Ok(gguf) => Ok((name, gguf)),
        Err(e) => Err(bad(name, e)),
    }
}

/// Loads the tokenizer of the command line's model, without the weights.
pub(crate) fn tokenizer(common: &Common) -> anyhow::Result<Tokenizer> {
    let (path, gguf) = file(common.model.as_deref())?;
    let spec = match muser_engine::tokenizer_spec(&gguf) {
        Ok(spec) => spec.ok_or(muser_engine::Error::NoTokenizer)?,
        Err(e) => return Err(bad(path, e)),
    };
    Tokenizer::new(spec).map_err(|e| bad(path, e))
}

fn bad(path: String, source: impl Into<anyhow::Error>) -> anyhow::Error {
    BadModel {
        path,
        source: source.into(),
    }
    .into()
}
