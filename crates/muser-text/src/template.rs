//! Chat templates: messages to one prompt.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what the template knows.
    pub role: String,
    /// The text.
    #[serde(default)]
    pub content: String,
    /// What the model thought before it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls an assistant made, in the form the template expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<serde_json::Value>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool's or the speaker's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What else a template is told.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// End with the start of an assistant's message.
    pub add_generation_prompt: bool,
    /// Descriptions of the tools that the model may call.
    pub tools: Option<serde_json::Value>,
    /// Further variables; they hide the template's usual ones of the same name.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// A compiled chat template.
pub struct ChatTemplate {}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(_source: &str, _bos_text: &str, _eos_text: &str) -> Result<Self> {
        Err(Error::Template {
            line: None,
            reason: String::new(),
        })
    }

    /// The prompt.
    pub fn render(&self, _messages: &[Message], _opts: RenderOptions) -> Result<String> {
        Err(Error::Template {
            line: None,
            reason: String::new(),
        })
    }
}
