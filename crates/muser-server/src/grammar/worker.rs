//! The worker process that compiles grammars on trial for a server.
//!
//! It reads frames from standard input and answers with frames on standard output. A
//! frame is a length (four bytes, little-endian) and as many bytes. The first frame
//! holds the limits, the second the model's vocabulary, and every further one a
//! grammar, which is answered with one frame: a byte for the verdict, then the reason
//! of a refusal. A failure ends this process, and the server starts another.

use super::vocabulary::{Vocabulary, probe};
use crate::limits::GrammarLimits;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The most bytes of one frame between a server and its worker process.
const MOST: usize = 1 << 28;

/// The first byte of a worker's answer once it is ready for grammars; the next three
/// stand for the verdicts on a grammar.
pub(super) const READY: u8 = 0;
pub(super) const FITS: u8 = 1;
pub(super) const REFUSED: u8 = 2;
pub(super) const TOO_LONG: u8 = 3;

/// How often the worker process checks the CPU time that compiling a grammar has taken.
const TICK: Duration = Duration::from_millis(20);

/// Returns the CPU time of this process. A grammar's time limit is counted in it, so
/// that a busy machine accepts the same grammars as an idle one.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Reads one frame of what a server and its worker process send each other (a length in
/// four bytes, then as many bytes); `None` at the end of the input.
pub(super) fn read_frame(from: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let length = u32::from_le_bytes(head) as usize;
    if length > MOST {
        return Err(Error::new(ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}

/// Writes one frame of what a server and its worker process send each other (a length
/// in four bytes, then as many bytes) and flushes.
pub(super) fn write_frame(to: &mut impl Write, frame: &[u8]) -> Result<()> {
    let length = u32::try_from(frame.len());
    let length = length.map_err(|_| Error::new(ErrorKind::InvalidData, "a frame is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(frame)?;
    to.flush()
}

/// Encodes the limits of memory, stack and time as the first frame that a worker
/// process gets.
pub(super) fn settings(limits: &GrammarLimits) -> Vec<u8> {
    let millis = u64::try_from(limits.time.as_millis()).unwrap_or(u64::MAX);
    [limits.memory, limits.stack as u64, millis]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect()
}

/// Runs a worker process: compiles grammars for a server until the server closes the
/// standard input.
///
/// A program whose server uses workers calls this when it is started with the command
/// line in [`crate::Options::grammar_worker`].
///
/// # Errors
/// Standard input or output, or what came there.
pub fn grammar_worker() -> Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let invalid = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let first = read_frame(&mut input)?.ok_or_else(|| invalid("no limits came"))?;
    let numbers: Vec<u64> = first
        .as_chunks::<8>()
        .0
        .iter()
        .map(|c| u64::from_le_bytes(*c))
        .collect();
    let [memory, stack, millis] = numbers[..] else {
        return Err(invalid("the limits are not three numbers"));
    };
    let time = Duration::from_millis(millis);
    // Some systems cannot limit memory: there the limits of time and stack still hold.
    let limit = |resource, most| {
        let (current, maximum) = (Some(most), Some(most));
        setrlimit(resource, Rlimit { current, maximum })
    };
    let _ = limit(Resource::As, memory);
    let _ = limit(Resource::Core, 0);
    let vocabulary = read_frame(&mut input)?.ok_or_else(|| invalid("no vocabulary came"))?;
    let vocabulary = Vocabulary::from_bytes(&vocabulary);
    let vocabulary = vocabulary.ok_or_else(|| invalid("the vocabulary is cut off"))?;
    let factory = vocabulary.factory().map_err(|e| invalid(&e))?;
    write_frame(&mut output, &[READY])?;
    let stack = usize::try_from(stack).unwrap_or(usize::MAX);
    let (jobs, inbox) = channel::<String>();
    let (outbox, results) = channel();
    std::thread::Builder::new()
        .stack_size(stack)
        .spawn(move || {
            for lark in inbox {
                if outbox.send(probe(&factory, &lark)).is_err() {
                    return;
                }
            }
        })?;
    while let Some(frame) = read_frame(&mut input)? {
        let lark = String::from_utf8(frame).map_err(|_| invalid("a grammar is not UTF-8"))?;
        let gone = || invalid("the thread that compiles is gone");
        let start = cpu_time();
        jobs.send(lark).map_err(|_| gone())?;
        let result = loop {
            let result = results.recv_timeout(TICK);
            if cpu_time().saturating_sub(start) > time {
                write_frame(&mut output, &[TOO_LONG])?;
                // Exiting also ends the compilation that is still running.
                std::process::exit(0);
            }
            match result {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        };
        match result {
            Ok(()) => write_frame(&mut output, &[FITS])?,
            Err(reason) => write_frame(&mut output, &[&[REFUSED], reason.as_bytes()].concat())?,
        }
    }
    Ok(())
}
