//! `muser serve`: the model over HTTP.

use crate::cli::Common;
use crate::exit::Usage;
use crate::load::{self, Loaded};
use crate::{interrupt, output};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use muser_server::{Limits, Options, Server, StartError, TlsFiles};
use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Serve the model over HTTP, compatible with OpenAI's API.
///
/// Answers depend on their request alone: not on what else runs, on the slots,
/// the prompt cache or streaming. A page to chat with is at the address itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  muser serve
  muser --model FILE.gguf serve --port 9000 --slots 8 --ctx 16384
  muser serve --host 0.0.0.0 --api-key-file keys --tls-cert cert.pem --tls-key key.pem
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

SIGTERM or Ctrl-C accepts no more requests and lets running answers end.
Logs go to standard error, without the text of prompts; MUSER_LOG filters them
(MUSER_LOG=debug).")]
pub(crate) struct ServeArgs {
    /// Address to listen on; one that others can reach needs key and certificate
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080, value_name = "N")]
    port: u16,
    /// Answers computed at once; more wait
    #[arg(long, default_value_t = 4, value_name = "N")]
    slots: usize,
    /// Positions of an answer with its prompt; without it, up to 8192
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Answers that may wait; beyond, requests are refused with 429
    #[arg(long, default_value_t = 64, value_name = "N")]
    queue: usize,
    /// Memory of the prefix cache in MiB; 0 keeps none
    #[arg(long, default_value_t = 1024, value_name = "N")]
    cache_mib: u64,
    /// File of API keys, one a line; requests have to carry one
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Certificate chain in PEM, for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The model's name in requests and answers; without it, the file's own
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The longest that a request may take, in seconds
    #[arg(long, default_value_t = 600, value_name = "N")]
    timeout: u64,
    /// How long running answers may take after SIGTERM, in seconds
    #[arg(long, default_value_t = 30, value_name = "N")]
    grace: u64,
    /// Form of the logs
    #[arg(long, value_enum, default_value_t = LogForm::Text)]
    log: LogForm,
}

/// Forms of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogForm {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Context where none is asked for: what a conversation needs, not what a long
/// document could.
const CONTEXT: usize = 8192;

/// Does it.
pub(crate) fn run(common: &Common, args: &ServeArgs) -> anyhow::Result<()> {
    let loaded = load::model(common)?;
    let options = options(args, &loaded)?;
    log(args.log, common.quiet);
    interrupt::set_mode(interrupt::Mode::Once);
    let scheme = if options.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let server = match Server::start(loaded.model.clone(), options) {
        Ok(server) => server,
        Err(
            e @ (StartError::Unprotected { .. }
            | StartError::Option { .. }
            | StartError::Tls { .. }),
        ) => return Err(Usage(e.to_string()).into()),
        Err(e) => return Err(e.into()),
    };
    output::line(format_args!("listening on {scheme}://{}", server.address()))?;
    wait()?;
    tracing::info!("shutting down: running answers end first");
    server.shutdown();
    Ok(())
}

fn options(args: &ServeArgs, loaded: &Loaded) -> anyhow::Result<Options> {
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let cache_bytes = args.cache_mib.checked_mul(1 << 20);
    let cache_bytes = cache_bytes.ok_or_else(|| Usage("--cache-mib is too large".to_owned()))?;
    let program = std::env::current_exe().context("the program's own file")?;
    Ok(Options {
        address: SocketAddr::new(args.host, args.port),
        limits: Limits {
            slots: args.slots,
            context: args
                .ctx
                .unwrap_or_else(|| loaded.model.config().context.min(CONTEXT)),
            queue: args.queue,
            cache_bytes,
            request_time: Duration::from_secs(args.timeout),
            grace: Duration::from_secs(args.grace),
            ..Limits::default()
        },
        api_keys: args.api_key_file.as_deref().map_or(Ok(Vec::new()), keys)?,
        tls: tls.map(|(certificates, key)| TlsFiles { certificates, key }),
        model_name: args.name.clone().unwrap_or_else(|| name(loaded)),
        grammar_worker: Some(vec![program.into(), "grammar-worker".into()]),
    })
}

/// The model's name as a word: what the file calls itself, or the file's name.
fn name(loaded: &Loaded) -> String {
    let own = match loaded.model.config().name.as_str() {
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

/// Keys of a file; at least one, or it would open the server to everybody.
fn keys(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(Usage(format!("{}: expected a key, found none", path.display())).into());
    }
    Ok(keys)
}

fn log(form: LogForm, quiet: bool) {
    let default = if quiet { "error" } else { "info" };
    let filter = EnvFilter::try_from_env("MUSER_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // A second subscriber is none: the first one goes on.
    let _ = match form {
        LogForm::Text => builder.try_init(),
        LogForm::Json => builder.json().try_init(),
    };
}

/// Until SIGTERM or Ctrl-C.
fn wait() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime to wait with")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = tick.tick() => {
                    if interrupt::raised() {
                        return Ok(());
                    }
                }
            }
        }
    })
}
