//! An OpenAI-compatible server over the engine.
#![forbid(unsafe_code)]
