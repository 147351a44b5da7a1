//! The route `/v1/chat/completions`: continues a conversation.

use super::App;
use super::body::fields;
use super::constraint::Constraint;
use super::history::conversation;
use super::params::{MOST_TOP, check_lengths, common, max_tokens};
use super::render::{Kind, Render, Shape};
use super::tools::{Choice, Tools};
use super::{compat, constraint, stream};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::{Draft, parameter_types};
use crate::limits::work::Work;
use crate::prompt;
use crate::scheduler::{Generate, Request, Task};
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;

pub(crate) struct Parsed {
    request: Request,
    /// The grammar, not yet compiled, that the answers have to match.
    draft: Option<Draft>,
    stream: Option<stream::Usage>,
    shape: Shape,
}

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let body = fields(&app, request).await?;
    let (shared, work) = (app.clone(), body.work.clone());
    let mut parsed = body.read(move |work, f| parse(&shared, work, f)).await?;
    constraint::admit(&app, &work, parsed.draft.take(), &mut parsed.request).await?;
    let choices = parsed.request.units();
    let whole = parsed.stream.is_none();
    let events = app.handle.submit(parsed.request, work, whole)?;
    let render = Render::new(app, Kind::Chat, choices, parsed.shape);
    match parsed.stream {
        Some(usage) => Ok(stream::response(render, events, usage)),
        None => render.whole(events).await,
    }
}

pub(crate) fn parse(app: &App, work: &Work, mut f: Fields) -> Result<Parsed, ApiError> {
    let common = common(app, work, &mut f)?;
    compat::chat(&mut f)?;
    let max_tokens = max_tokens(&mut f, 1)?.and_then(|most| most);
    let logprobs = f.flag("logprobs")?.unwrap_or(false);
    let top = f.count("top_logprobs", 0, MOST_TOP)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        let reason = "expected only together with logprobs: true";
        return Err(ApiError::field("top_logprobs", reason));
    }
    let tools = Tools::read(&mut f)?;
    tools.check(&app.limits.schema)?;
    let parallel = f.flag("parallel_tool_calls")?.unwrap_or(true) && !tools.old;
    let constraint = constraint::read(&mut f)?;
    let reasoning = f.flag("include_reasoning")?.unwrap_or(true);
    let (messages, options) = conversation(&mut f, &tools)?;
    f.finish()?;

    let effort = options.extra.get("reasoning_effort");
    let reason = effort.is_none_or(|e| e != "none");
    let draft = draft(app, &tools, constraint.as_ref(), parallel, reason)?;
    let bounds = app.text_bounds(work);
    let prompt = prompt::chat(&app.codec, messages, options, &bounds)?;
    let prompts = vec![prompt.tokens];
    check_lengths(app, "messages", &prompts, true)?;
    let shape = Shape {
        logprobs,
        hide_reasoning: !reasoning,
        must_call: tools.forced().is_some(),
        old_call: tools.old,
        ..Shape::default()
    };
    let may_call = !tools.all.is_empty() && tools.choice != Choice::None;
    let generate = Generate {
        max_tokens,
        logprobs: logprobs.then(|| top.unwrap_or(0)),
        format: app.codec.format(),
        tools: may_call.then(|| parameter_types(&tools.all, &app.limits.schema)),
        ..common.generate
    };
    Ok(Parsed {
        draft,
        request: Request {
            prompts,
            task: Task::Generate(Box::new(generate)),
            cache: common.cache,
            deadline: common.deadline,
        },
        stream: common.stream,
        shape,
    })
}

/// Compiles the grammar of a chat request, as the route `/v1/chat/completions` does
/// before it queues the request.
#[cfg(feature = "fuzzing")]
pub(crate) async fn compiled(app: &App, work: &Work, mut parsed: Parsed) -> Result<(), ApiError> {
    constraint::admit(app, work, parsed.draft.take(), &mut parsed.request).await
}

/// Returns the grammar that a chat's answer has to match, not yet compiled: the one for
/// tool calls if a call is required, since there is no answer in words then, or else the
/// one for the form that the request asks for.
fn draft(
    app: &App,
    tools: &Tools,
    constraint: Option<&Constraint>,
    parallel: bool,
    reason: bool,
) -> Result<Option<Draft>, ApiError> {
    match (tools.forced(), constraint) {
        (Some(forced), _) => {
            let forced: Vec<_> = forced.iter().map(|t| (tools.place(t), t)).collect();
            app.grammars()?.calls(&forced, parallel, reason).map(Some)
        }
        (None, Some(constraint)) => constraint.draft(app, true, reason).map(Some),
        (None, None) => Ok(None),
    }
}
