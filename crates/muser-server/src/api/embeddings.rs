//! The route `/v1/embeddings`: returns the model's state at each input's last token,
//! scaled to length one.

use super::App;
use super::body::fields;
use super::params::{check_lengths, prompts};
use crate::error::{ApiError, json_response, shown};
use crate::fields::Fields;
use crate::limits::work::Work;
use crate::scheduler::{Counts, Event, Request, Task};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;

/// The most inputs of a request for embeddings, as many as OpenAI takes.
const MOST_INPUTS: usize = 2048;

/// A parsed request for embeddings, and in which form (numbers or base64) and length to
/// send them.
pub(crate) struct Parsed {
    request: Request,
    base64: bool,
    /// How many values of each embedding are kept, from its first one on.
    dimensions: usize,
}

pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    let (shared, work) = (app.clone(), body.work.clone());
    let parsed = body.read(move |work, f| parse(&shared, work, f)).await?;
    let (base64, dimensions) = (parsed.base64, parsed.dimensions);
    let inputs = parsed.request.units();
    let mut events = app.handle.submit(parsed.request, work, true)?;
    let mut states = vec![Vec::new(); inputs];
    let mut counts = Counts::default();
    for _ in 0..inputs {
        match events.next().await? {
            Event::State {
                choice,
                state,
                counts: more,
            } => {
                counts += more;
                if let Some(place) = states.get_mut(choice) {
                    let kept = state.get(..dimensions).unwrap_or(&state);
                    *place = normalized(kept);
                }
            }
            Event::Delta { .. } | Event::Done { .. } => {
                return Err(ApiError::closing());
            }
        }
    }
    let data = states.iter().enumerate().map(|(i, state)| {
        let embedding = match base64 {
            true => {
                let bytes: Vec<u8> = state.iter().flat_map(|v| v.to_le_bytes()).collect();
                Value::from(BASE64_STANDARD.encode(bytes))
            }
            false => json!(state),
        };
        json!({"object": "embedding", "index": i, "embedding": embedding})
    });
    let answer = json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": app.model,
        "usage": {"prompt_tokens": counts.prompt, "total_tokens": counts.prompt},
    });
    Ok(json_response(StatusCode::OK, &answer))
}

pub(crate) fn parse(app: &App, work: &Work, mut f: Fields) -> Result<Parsed, ApiError> {
    app.check_model(f.string("model")?.as_deref())?;
    f.string("user")?;
    let input = f.require("input")?;
    let base64 = match f.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let found = shown(other);
            let reason = format!("expected \"float\" or \"base64\", found {found:?}");
            return Err(ApiError::field("encoding_format", reason));
        }
    };
    let hidden = app.hidden;
    let dimensions = f.count("dimensions", 1, hidden as i64)?;
    f.finish()?;
    if let Value::Array(items) = &input
        && items.len() > MOST_INPUTS
        && !items.iter().all(Value::is_number)
    {
        let reason = format!(
            "expected at most {MOST_INPUTS} inputs, found {}",
            items.len()
        );
        return Err(ApiError::field("input", reason));
    }
    let inputs = prompts(app, work, "input", input)?;
    check_lengths(app, "input", &inputs, false)?;
    let request = Request {
        prompts: inputs,
        task: Task::Embed,
        cache: false,
        deadline: work.deadline(),
    };
    Ok(Parsed {
        request,
        base64,
        dimensions: dimensions.unwrap_or(hidden),
    })
}

/// Returns an embedding scaled to length one. The squares are summed in f64, from the
/// first value to the last.
fn normalized(state: &[f32]) -> Vec<f32> {
    let squares = state.iter().map(|&v| f64::from(v) * f64::from(v));
    let length = squares.fold(0.0, |sum, v| sum + v).sqrt();
    if length == 0.0 {
        return state.to_vec();
    }
    state
        .iter()
        .map(|&v| (f64::from(v) / length) as f32)
        .collect()
}
