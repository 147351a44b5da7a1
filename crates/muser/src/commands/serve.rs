//! `muser serve`: serves the model over HTTP, compatible with OpenAI's API.

mod bounds;

use crate::cli::Common;
use crate::exit::Usage;
use crate::load::{self, Loaded};
use crate::log::{Flush, Log};
use crate::{input, interrupt, output};
use anyhow::Context as _;
use bounds::{Bounds, seconds};
use clap::{Args, ValueEnum};
use muser_server::{Limits, Options, Server, StartError, TlsFiles, UnknownFields};
use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Serve the model over HTTP, compatible with OpenAI's API.
///
/// An answer depends on its request alone: not on what else runs, on the slots,
/// the prompt cache or streaming. Opened in a browser, the address shows a page to
/// chat with.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser serve
  muser --model FILE.gguf serve --port 9000 --slots 8 --ctx 16384
  muser serve --host 0.0.0.0 --api-key-file keys --tls-cert cert.pem --tls-key key.pem
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

SIGTERM or Ctrl-C accepts no more requests and lets running answers end; SIGHUP
reads the files of keys and certificate anew.
Logs go to standard error, without the text of prompts; MUSER_LOG filters them
(MUSER_LOG=debug). Lines that cannot be written at once are lost and counted in
/metrics.")]
pub(crate) struct ServeArgs {
    /// Address to listen on; one that other machines can reach needs API keys and a
    /// certificate
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080, value_name = "N")]
    port: u16,
    /// Number of answers that are computed at once (slots); further requests wait
    #[arg(long, default_value_t = 4, value_name = "N")]
    slots: usize,
    /// Size of the context of an answer with its prompt, in positions; without it, the
    /// model's, up to 8192
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Most requests of one client that may wait; further ones are refused with 429
    #[arg(long, default_value_t = 64, value_name = "N")]
    queue: usize,
    /// Memory of the prefix cache, the K/V states of earlier prompts, in MiB; 0 keeps none
    #[arg(long, default_value_t = 1024, value_name = "N")]
    cache_mib: u64,
    /// File of API keys, one a line (# begins a comment); each request has to carry one
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// File of the TLS certificate chain in PEM, for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File of the TLS certificate's private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The model's name in requests and answers; without it, the file's own
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    name: Option<String>,
    /// Name that a request's Host header may give when there are no API keys, beside
    /// localhost
    #[arg(long, value_name = "HOST", help_heading = "Who may ask")]
    allow_host: Vec<String>,
    /// Origin, such as `https://app.example`, whose web pages may send requests from a
    /// browser
    #[arg(long, value_name = "ORIGIN", help_heading = "Who may ask")]
    allow_origin: Vec<String>,
    /// Longest time that a request may take until its answer ends, in seconds, 1 to 86400
    #[arg(long, default_value_t = 600, value_name = "N", value_parser = seconds())]
    timeout: u64,
    /// Longest time that running answers may still take after SIGTERM, in seconds, 1 to
    /// 86400
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = seconds())]
    grace: u64,
    /// What to do with a request's fields that the server does not know
    #[arg(long, value_enum, default_value_t = Unknown::Refuse)]
    unknown_fields: Unknown,
    #[command(flatten)]
    bounds: Bounds,
    /// Format of the log lines
    #[arg(long, value_enum, default_value_t = LogForm::Text)]
    log: LogForm,
}

/// What to do with a request's fields that the server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Unknown {
    /// Refuse a request with an unknown field: status 400, with the field's name
    Refuse,
    /// Ignore unknown fields, as if they were not there
    Ignore,
}

/// The formats of the server's log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogForm {
    /// Log lines as text for people
    Text,
    /// One JSON object for each log line
    Json,
}

/// The default size of an answer's context in positions, if the model's is not smaller:
/// enough for a conversation, not for any document.
const CONTEXT: usize = 8192;

/// Runs `muser serve` with these arguments.
pub(crate) fn run(common: &Common, args: &ServeArgs) -> anyhow::Result<()> {
    let loaded = load::model(common)?;
    let dropped = Arc::new(AtomicU64::new(0));
    let options = options(args, &loaded, dropped.clone())?;
    let _flush = log(args.log, common.quiet, dropped)?;
    interrupt::set_mode(interrupt::Mode::Once);
    let scheme = if options.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let signals = Signals::new()?;
    let server = match Server::start(loaded.model.clone(), options) {
        Ok(server) => server,
        Err(
            e @ (StartError::Unprotected { .. }
            | StartError::Option { .. }
            | StartError::Tls { .. }),
        ) => return Err(Usage(e.to_string()).into()),
        Err(e) => return Err(e.into()),
    };
    let address = server.address();
    if let Err(error) = output::line(format_args!("listening on {scheme}://{address}")) {
        // Standard output is closed, so nobody reads the address: no reason not to serve.
        tracing::warn!(%error, %address, "listening; standard output is closed");
    }
    signals.wait(|| reload(&server, args.api_key_file.as_deref()));
    tracing::info!("shutting down: running answers end first");
    server.shutdown();
    Ok(())
}

/// Reads the files of API keys and certificate again, for a running server. If one of
/// them cannot be used, nothing changes.
fn reload(server: &Server, keys: Option<&Path>) {
    let keys = keys.map(self::keys).transpose();
    let done = keys.and_then(|keys| Ok(server.reload(keys)?));
    match done {
        Ok(()) => tracing::info!("keys and certificate are read anew"),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(error, "keys and certificate stay as they were");
        }
    }
}

fn options(
    args: &ServeArgs,
    loaded: &Loaded,
    log_dropped: Arc<AtomicU64>,
) -> anyhow::Result<Options> {
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let program = std::env::current_exe().context("the program's own file")?;
    let cache_bytes = bounds::bytes("cache-mib", args.cache_mib, 1 << 20)?;
    Ok(Options {
        address: SocketAddr::new(args.host, args.port),
        limits: Limits {
            slots: args.slots,
            context: args
                .ctx
                .unwrap_or_else(|| loaded.model.spec().context.min(CONTEXT)),
            queue: args.queue,
            cache_bytes,
            request_time: Duration::from_secs(args.timeout),
            grace: Duration::from_secs(args.grace),
            ..args.bounds.limits()?
        },
        allowed_hosts: args.allow_host.clone(),
        allowed_origins: args.allow_origin.clone(),
        log_dropped: Some(log_dropped),
        api_keys: args.api_key_file.as_deref().map_or(Ok(Vec::new()), keys)?,
        tls: tls.map(|(certificates, key)| TlsFiles { certificates, key }),
        model_name: args.name.clone().unwrap_or_else(|| name(loaded)),
        grammar_worker: Some(vec![program.into(), "grammar-worker".into()]),
        unknown_fields: match args.unknown_fields {
            Unknown::Refuse => UnknownFields::Refuse,
            Unknown::Ignore => UnknownFields::Ignore,
        },
    })
}

/// Returns the model's name in API requests and answers, as one lower-case word: the name
/// in the GGUF file's metadata, or the file's own name.
fn name(loaded: &Loaded) -> String {
    let own = match loaded.model.spec().name.as_str() {
        "" => Path::new(&loaded.path).file_stem().map_or_else(
            || "model".to_owned(),
            |stem| stem.to_string_lossy().into_owned(),
        ),
        own => own.to_owned(),
    };
    output::plain(&own)
        .to_lowercase()
        .replace(char::is_whitespace, "-")
}

/// Reads the API keys from a file. It must have one at least: without keys, the server
/// would be open to everybody.
fn keys(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = input::text(path, input::MOST_KEYS)?;
    let keys = key_lines(&text);
    if keys.is_empty() {
        return Err(Usage(format!("{}: expected a key, found none", path.display())).into());
    }
    Ok(keys)
}

/// Returns the API keys in a file's text: the lines that are neither empty nor comments,
/// without a byte order mark.
fn key_lines(text: &str) -> Vec<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// Starts the server's log on standard error. The returned guard has to live as long as
/// lines are logged.
fn log(form: LogForm, quiet: bool, dropped: Arc<AtomicU64>) -> anyhow::Result<Flush> {
    let default = if quiet { "error" } else { "info" };
    let filter = EnvFilter::try_from_env("MUSER_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let out = std::io::stderr();
    let ansi = out.is_terminal();
    let (log, flush) = Log::start(out, dropped).context("no thread for the log")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(ansi)
        .with_writer(log);
    // `try_init` fails if the process has a log subscriber already, which then stays.
    let _ = match form {
        LogForm::Text => builder.try_init(),
        LogForm::Json => builder.json().try_init(),
    };
    // A panic in a request is caught and answered with 500; its message goes the same way as
    // other log lines, not straight to a standard error that may be stuck.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let what = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(place, what, "a panic");
    }));
    Ok(flush)
}

/// The signals that end the server (SIGTERM) or have it read its files anew (SIGHUP).
/// Listening begins before the server starts, so that an early signal is not lost.
struct Signals {
    runtime: tokio::runtime::Runtime,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime to wait with")?;
        let guard = runtime.enter();
        let terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
        let hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be handled")?;
        drop(guard);
        Ok(Self {
            runtime,
            terminate,
            hangup,
        })
    }

    /// Waits until SIGTERM or Ctrl-C comes, which end the server; calls `reload` at each
    /// SIGHUP meanwhile.
    fn wait(mut self, mut reload: impl FnMut()) {
        self.runtime.block_on(async {
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            loop {
                tokio::select! {
                    _ = self.terminate.recv() => return,
                    _ = self.hangup.recv() => reload(),
                    _ = tick.tick() => {
                        if interrupt::raised() {
                            return;
                        }
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines_without_comments_and_marks() {
        let text = "\u{feff}first key of some\r\n\n  # a comment\n second key of some \n#third";
        assert_eq!(key_lines(text), ["first key of some", "second key of some"]);
        assert!(key_lines("\u{feff}#\n").is_empty());
    }
}
