//! The log of `muser serve`: lines to standard error that never block the thread that logs
//! them.
//!
//! Standard error can be a pipe whose reader stalls, a full disk, or closed. So lines go
//! through a bounded channel to a thread of their own; lines that do not fit or cannot
//! be written are lost and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// The most log lines that may wait in the channel to be written.
const LINES: usize = 4096;
/// How long the program, when it ends, waits for its last log lines to be written.
const LAST: Duration = Duration::from_millis(200);

/// The log of `muser serve`: makes a writer for each line that the `tracing` subscriber
/// logs, and sends the lines through a channel to the thread that writes them.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    lines: SyncSender<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

/// A guard that, when dropped, waits until the log lines so far are written, 200 ms at
/// most.
#[derive(Debug)]
pub(crate) struct Flush {
    lines: SyncSender<Vec<u8>>,
    done: Receiver<()>,
}

impl Log {
    /// Starts the log's thread, which writes lines to `out`. Lines that are lost are counted
    /// in `dropped`.
    pub(crate) fn start(
        mut out: impl Write + Send + 'static,
        dropped: Arc<AtomicU64>,
    ) -> io::Result<(Self, Flush)> {
        let (lines, inbox) = sync_channel::<Vec<u8>>(LINES);
        let (told, done) = sync_channel(1);
        let lost = dropped.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || {
                for line in inbox {
                    // An empty line is sent by a dropped `Flush`: all lines before it are
                    // written.
                    if line.is_empty() {
                        let _ = told.try_send(());
                    } else if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })?;
        let flush = Flush {
            lines: lines.clone(),
            done,
        };
        Ok((Self { lines, dropped }, flush))
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        if self.lines.try_send(Vec::new()).is_ok() {
            // Lines that are not written by then are not waited for.
            let _ = self.done.recv_timeout(LAST);
        }
    }
}

/// One log line while it is being written; dropping it sends it to the log's thread, or
/// counts it as lost if the channel is full.
#[derive(Debug)]
pub(crate) struct Line<'l> {
    log: &'l Log,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() && self.log.lines.try_send(text).is_err() {
            self.log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'l> MakeWriter<'l> for Log {
    type Writer = Line<'l>;

    fn make_writer(&'l self) -> Line<'l> {
        Line {
            log: self,
            text: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A test's output whose writes block until the test lets go of it, and then fail.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Err(io::Error::other("full"))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_or_broken_output_loses_lines_and_holds_up_nobody() {
        let (release, held) = channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let (log, flush) = Log::start(Stuck(held), dropped.clone()).unwrap();
        let all = LINES as u64 + 100;
        for _ in 0..all {
            log.make_writer().write_all(b"line\n").unwrap();
        }
        // One line may be with the writer, `LINES` are in the channel, the rest are lost.
        assert!(dropped.load(Ordering::Relaxed) >= 99);
        drop(flush);
        drop(release);
        let (log, _) = (log.clone(), drop(log));
        while dropped.load(Ordering::Relaxed) < all {
            std::thread::yield_now();
        }
        drop(log);
    }
}
