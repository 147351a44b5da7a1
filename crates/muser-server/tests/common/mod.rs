//! A server in this process and a client of some lines.
#![allow(dead_code, reason = "each test file uses its part")]

use muser_cpu::{Cpu, CpuOptions};
use muser_engine::gguf::Gguf;
use muser_engine::{Lane, Model};
use muser_server::{Limits, Options, Server, UnknownFields};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

pub(crate) const NANO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/glimmer-nano-2-q4_k_m.gguf"
);

fn load(threads: usize, lane: Lane) -> Arc<Model<Cpu>> {
    load_as(CpuOptions {
        threads: Some(threads),
        lane,
        ..CpuOptions::default()
    })
}

pub(crate) fn load_as(options: CpuOptions) -> Arc<Model<Cpu>> {
    let gguf = Gguf::open(Path::new(NANO)).unwrap();
    Arc::new(Model::load(&gguf, Arc::new(Cpu::open(options).unwrap())).unwrap())
}

static ONE: LazyLock<Arc<Model<Cpu>>> = LazyLock::new(|| load(1, Lane::Strict));
static TWO: LazyLock<Arc<Model<Cpu>>> = LazyLock::new(|| load(2, Lane::Strict));

/// The trained model, on one thread or two.
pub(crate) fn model(threads: usize) -> Arc<Model<Cpu>> {
    match threads {
        1 => ONE.clone(),
        _ => TWO.clone(),
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        context: 512,
        cache_bytes: 64 << 20,
        grace: Duration::from_secs(10),
        // However slow the machine is that tests.
        grammar: muser_server::GrammarLimits {
            time: Duration::from_secs(60),
            mask_time: Duration::from_secs(60),
            ..muser_server::GrammarLimits::default()
        },
        ..Limits::default()
    }
}

/// A server that ends with the test.
pub(crate) struct Running {
    server: Option<Server>,
    pub(crate) address: SocketAddr,
}

impl Running {
    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

/// A server on one thread, without keys.
pub(crate) fn start_as(limits: Limits, unknown_fields: UnknownFields, name: &str) -> Running {
    let server = Server::start(
        model(1),
        Options {
            unknown_fields,
            model_name: name.to_owned(),
            ..options(limits, &[])
        },
    );
    running(server.unwrap())
}

fn options(limits: Limits, keys: &[&str]) -> Options {
    Options {
        limits,
        api_keys: keys.iter().map(|k| (*k).to_owned()).collect(),
        grammar_worker: Some(vec![env!("CARGO_BIN_EXE_grammar-worker").into()]),
        ..Options::new(([127, 0, 0, 1], 0).into(), "nano")
    }
}

fn running(server: Server) -> Running {
    Running {
        address: server.address(),
        server: Some(server),
    }
}

pub(crate) fn start_with(threads: usize, limits: Limits, keys: &[&str]) -> Running {
    running(Server::start(model(threads), options(limits, keys)).unwrap())
}

pub(crate) fn start_of(model: Arc<Model<Cpu>>, limits: Limits) -> Running {
    running(Server::start(model, options(limits, &[])).unwrap())
}

pub(crate) fn start() -> Running {
    start_with(1, limits(), &[])
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The JSON of a 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The events of a stream, which has to end as it should.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert!(self.head.contains("text/event-stream"), "{}", self.head);
        let lines = self.body.lines().filter_map(|l| l.strip_prefix("data: "));
        let mut events: Vec<&str> = lines.collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events
            .into_iter()
            .map(|e| serde_json::from_str(e).unwrap())
            .collect()
    }
}

/// Sends a request whole and reads the answer to its end.
pub(crate) fn send(address: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    read(stream)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

pub(crate) fn head(method: &str, path: &str, headers: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
         Content-Length: {length}\r\n\r\n"
    )
}

pub(crate) const JSON: &str = "Content-Type: application/json\r\n";

pub(crate) fn read(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "cut off: {head}");
    }
    let head = head.to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        loop {
            let mut size = String::new();
            if reader.read_line(&mut size).unwrap() == 0 {
                break;
            }
            let n = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; n + 2];
            reader.read_exact(&mut chunk).unwrap();
            body.extend_from_slice(&chunk[..n]);
            if n == 0 {
                break;
            }
        }
    } else {
        reader.read_to_end(&mut body).unwrap();
    }
    Reply {
        status,
        head,
        body: String::from_utf8(body).unwrap(),
    }
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    raw(address, path, &body.to_string())
}

pub(crate) fn raw(address: SocketAddr, path: &str, body: &str) -> Reply {
    let head = head("POST", path, JSON, body.len());
    send(address, format!("{head}{body}").as_bytes())
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, head("GET", path, "", 0).as_bytes())
}

pub(crate) fn complete(address: SocketAddr, body: Value) -> Reply {
    post(address, "/v1/completions", &body)
}

pub(crate) fn chat(address: SocketAddr, body: Value) -> Reply {
    post(address, "/v1/chat/completions", &body)
}

pub(crate) fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// The refusal's field, which the message names too.
pub(crate) fn refused(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.body);
    let error = &reply.json()["error"];
    for key in ["message", "type", "param", "code"] {
        assert!(error.get(key).is_some(), "{key} in {error}");
    }
    let param = error["param"].as_str().unwrap_or_default().to_owned();
    assert!(
        error["message"].as_str().unwrap().contains(&param),
        "{error}"
    );
    param
}

pub(crate) fn still_works(s: &Running) {
    // Drawn with a random seed, the first token could be the model's end.
    let body = json!({"prompt": "Once", "max_tokens": 2, "ignore_eos": true});
    let one = complete(s.address, body).ok();
    assert_eq!(one["usage"]["completion_tokens"], 2);
}

pub(crate) fn metric(s: &Running, name: &str) -> f64 {
    let text = get(s.address, "/metrics").body;
    let line = text.lines().find(|l| l.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn busy_slots(s: &Running) -> usize {
    let slots = get(s.address, "/slots").ok();
    let slots = slots.as_array().unwrap();
    slots.iter().filter(|s| s["is_processing"] == true).count()
}

/// A request that runs until the context is full, if nobody ends it.
pub(crate) fn endless(stream: bool) -> Value {
    json!({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": stream})
}

pub(crate) fn open(s: &Running, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = connect(s.address);
    let head = head("POST", "/v1/completions", JSON, body.len());
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    stream
}

/// [`open`], with next to no room for what is not read.
pub(crate) fn open_deaf(s: &Running, body: &Value) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let stream = runtime.unwrap().block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(s.address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let body = body.to_string();
    let head = head("POST", "/v1/completions", JSON, body.len());
    (&stream)
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    stream
}

/// The word for programs in a refusal.
pub(crate) fn code(reply: &Reply) -> String {
    let code = &reply.json()["error"]["code"];
    code.as_str().unwrap_or("").to_owned()
}
