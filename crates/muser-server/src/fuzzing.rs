//! Entry points of the fuzz targets into the parts that read requests. Not part of
//! the crate's interface: only with the feature `fuzzing`.

use crate::Server;
use crate::api;
use crate::fields::Fields;
use crate::limits::json;
use crate::limits::work::Work;
use crate::options::UnknownFields;
use serde_json::{Value, json};

/// Parses a request's body as each of the routes does, up to the request that it would
/// queue. Returns whether any of them accepts it.
pub fn request(server: &Server, body: &[u8]) -> bool {
    let app = &server.app;
    let work = Work::unbounded();
    let read = |unknown| {
        json::check(body, &app.limits.json, &work)?;
        Fields::body(body, unknown)
    };
    let mut taken = false;
    for unknown in [UnknownFields::Refuse, UnknownFields::Ignore] {
        taken |= read(unknown).is_ok_and(|f| api::chat::parse(app, &work, f).is_ok());
        taken |= read(unknown).is_ok_and(|f| api::completions::parse(app, &work, f).is_ok());
        taken |= read(unknown).is_ok_and(|f| api::embeddings::parse(app, &work, f).is_ok());
    }
    taken
}

/// Parses a request whose answer has to match this JSON schema, and one whose tool call
/// has to, and compiles their grammars in this process. Returns whether either is
/// accepted.
///
/// # Panics
/// No runtime can be made.
pub fn schema(server: &Server, schema: &[u8]) -> bool {
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else {
        return false;
    };
    let messages = json!([{"role": "user", "content": "x"}]);
    let form = json!({"messages": messages, "response_format":
        {"type": "json_schema", "json_schema": {"schema": schema}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let call = json!({"messages": messages, "tools": [tool], "tool_choice": "required"});
    let form = compiled(server, &form);
    compiled(server, &call) || form
}

fn compiled(server: &Server, request: &Value) -> bool {
    let (app, work, body) = (&server.app, Work::unbounded(), request.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime of this thread alone");
    let fields = json::check(body.as_bytes(), &app.limits.json, &work)
        .and_then(|_| Fields::body(body.as_bytes(), UnknownFields::Refuse));
    let parsed = fields.and_then(|f| api::chat::parse(app, &work, f));
    let done = parsed.map(|p| runtime.block_on(api::chat::compiled(app, &work, p)));
    done.is_ok_and(|compiled| compiled.is_ok())
}
