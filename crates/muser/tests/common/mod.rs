//! Starts the program and looks at what it says.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// A call of the program, with nothing on its standard input.
pub(crate) fn muser(args: &[&str]) -> Call {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muser"));
    command.args(args).env_remove("MUSER_MODEL");
    Call {
        command,
        stdin: Vec::new(),
    }
}

pub(crate) struct Call {
    command: Command,
    stdin: Vec<u8>,
}

impl Call {
    pub(crate) fn stdin(self, text: &str) -> Self {
        self.stdin_bytes(text.as_bytes())
    }

    pub(crate) fn stdin_bytes(mut self, bytes: &[u8]) -> Self {
        self.stdin = bytes.to_owned();
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn output(mut self) -> Output {
        let piped = self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
        // A program that refuses does not read.
        let _ = child.stdin.take().unwrap().write_all(&self.stdin);
        child.wait_with_output().unwrap()
    }

    /// The output of a call that must succeed.
    pub(crate) fn ok(self) -> Output {
        let name = format!("{:?}", self.command);
        let out = self.output();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{name}: {}: {stderr}", out.status);
        out
    }

    /// The standard error of a call that must fail with this code.
    pub(crate) fn fails(self, code: i32) -> String {
        let name = format!("{:?}", self.command);
        let out = self.output();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{name}: {stderr}");
        assert!(stderr.starts_with("error: "), "{name}: {stderr}");
        assert!(!stderr.contains("panicked"), "{name}: {stderr}");
        stderr
    }
}

pub(crate) fn text(out: &Output) -> String {
    String::from_utf8(out.stdout.clone()).unwrap()
}

/// A row of the embedded model's logits.
pub(crate) fn nano_f32_row(bytes: &[u8], row: usize) -> Vec<f32> {
    let row = &bytes[row * 4096 * 4..][..4096 * 4];
    let values = row.as_chunks::<4>().0.iter();
    values.map(|&b| f32::from_le_bytes(b)).collect()
}
