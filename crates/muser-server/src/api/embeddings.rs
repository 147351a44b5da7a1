//! `/v1/embeddings`: the last token's state, of length one.

use super::App;
use super::body::fields;
use super::params::{check_lengths, prompts};
use crate::error::{ApiError, json_response};
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

pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    let (shared, work) = (app.clone(), body.work.clone());
    let (request, base64) = body.read(move |work, f| parse(&shared, work, f)).await?;
    let inputs = request.units();
    let mut events = app.handle.submit(request, work, true)?;
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
                    *place = normalized(&state);
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

fn parse(app: &App, work: &Work, mut f: Fields) -> Result<(Request, bool), ApiError> {
    app.check_model(f.string("model")?.as_deref())?;
    f.string("user")?;
    let input = f.require("input")?;
    let base64 = match f.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let reason = format!("expected \"float\" or \"base64\", found {other:?}");
            return Err(ApiError::field("encoding_format", reason));
        }
    };
    let dimensions = f.count("dimensions", 1, i64::from(u32::MAX))?;
    if dimensions.is_some_and(|n| n != app.hidden) {
        let reason = format!("this model's embeddings have {}", app.hidden);
        return Err(ApiError::field("dimensions", reason));
    }
    f.finish()?;
    let prompts = prompts(app, work, "input", input)?;
    check_lengths(app, "input", &prompts, false)?;
    let request = Request {
        prompts,
        task: Task::Embed,
        cache: false,
        deadline: work.deadline(),
    };
    Ok((request, base64))
}

/// The vector of length one; the sum of squares in f64, ascending.
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
