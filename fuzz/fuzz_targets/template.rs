//! Any template over any conversation renders within its bounds or is refused.
//!
//! The template is what comes before the first byte 0, what follows is a JSON
//! array of messages, or the text of one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muser_text::{ChatTemplate, Message, RenderOptions};

fuzz_target!(|data: &[u8]| {
    let (source, rest) = match data.iter().position(|&b| b == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &b"hello"[..]),
    };
    let source = String::from_utf8_lossy(source);
    let Ok(template) = ChatTemplate::new(&source, "<s>", "</s>") else {
        return;
    };
    let messages = serde_json::from_slice::<Vec<Message>>(rest).unwrap_or_else(|_| {
        vec![Message {
            role: "user".to_owned(),
            content: String::from_utf8_lossy(rest).into_owned(),
            ..Message::default()
        }]
    });
    let options = || RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    // The clock stands still: what is rendered twice is the same.
    let template = template.at(1_700_000_000);
    let first = template.render(&messages, options());
    let again = template.render(&messages, options());
    assert_eq!(first.ok(), again.ok());
});
