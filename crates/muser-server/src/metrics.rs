//! The server's metrics (counters, gauges, histograms) and their text form.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The labels under which a finished request is counted: its route and its HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Route {
    /// The pattern of the request's route, never text that a client wrote.
    pub(crate) route: &'static str,
    pub(crate) status: u16,
}

/// The server's metrics, which HTTP handlers and the scheduler update.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests: Family<Route, Counter>,
    pub(crate) prompt_tokens: Counter,
    pub(crate) cached_tokens: Counter,
    pub(crate) completion_tokens: Counter,
    pub(crate) cache_hits: Counter,
    pub(crate) cache_misses: Counter,
    pub(crate) cache_bytes: Gauge,
    pub(crate) cancelled: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) unread: Counter,
    pub(crate) parked: Counter,
    pub(crate) failed: Counter,
    pub(crate) passes: Counter,
    pub(crate) weight_bytes: Counter,
    pub(crate) busy_seconds: Counter<f64, AtomicU64>,
    pub(crate) streaming: Gauge<f64, AtomicU64>,
    pub(crate) waiting: Gauge,
    pub(crate) running: Gauge,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) rows: Histogram,
    pub(crate) memory_bytes: Gauge,
    log_lost: Counter,
    log_dropped: Option<Arc<AtomicU64>>,
}

/// Makes a histogram of times whose bucket bounds double, from 0.1 ms to almost a minute.
fn seconds() -> Histogram {
    Histogram::new((0..20).map(|i| 1e-4 * f64::from(1u32 << i)))
}

impl Metrics {
    /// Creates the server's metrics at zero; `log_dropped` is the log's own counter of
    /// the lines that it lost.
    pub(crate) fn new(log_dropped: Option<Arc<AtomicU64>>) -> Self {
        let mut all = Self {
            registry: Registry::with_prefix("muser"),
            requests: Family::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            cache_bytes: Gauge::default(),
            cancelled: Counter::default(),
            timed_out: Counter::default(),
            unread: Counter::default(),
            parked: Counter::default(),
            memory_bytes: Gauge::default(),
            log_lost: Counter::default(),
            log_dropped,
            failed: Counter::default(),
            passes: Counter::default(),
            weight_bytes: Counter::default(),
            busy_seconds: Counter::default(),
            streaming: Gauge::default(),
            waiting: Gauge::default(),
            running: Gauge::default(),
            first_token: seconds(),
            between_tokens: seconds(),
            rows: Histogram::new((0..10).map(|i| f64::from(1u32 << i))),
        };
        all.register();
        all
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("requests", "Requests answered", self.requests.clone());
        let counters = [
            ("prompt_tokens", "Tokens of prompts", &self.prompt_tokens),
            (
                "cached_tokens",
                "Prompt tokens not evaluated again",
                &self.cached_tokens,
            ),
            (
                "completion_tokens",
                "Tokens sampled",
                &self.completion_tokens,
            ),
            (
                "cache_hits",
                "Prompts that found a prefix",
                &self.cache_hits,
            ),
            (
                "cache_misses",
                "Prompts that found none",
                &self.cache_misses,
            ),
            (
                "cancelled",
                "Answers whose client went away",
                &self.cancelled,
            ),
            ("timed_out", "Answers whose time was up", &self.timed_out),
            (
                "unread",
                "Answers ended because their client did not read",
                &self.unread,
            ),
            (
                "parked",
                "Times that an answer gave its slot away before its end",
                &self.parked,
            ),
            (
                "log_lines_lost",
                "Lines of the log that could not be written",
                &self.log_lost,
            ),
            ("failed", "Answers that failed", &self.failed),
            ("passes", "Forward passes", &self.passes),
        ];
        for (name, help, counter) in counters {
            r.register(name, help, counter.clone());
        }
        let weights = ("weight", "Bytes of weights read by forward passes");
        r.register_with_unit(weights.0, weights.1, Unit::Bytes, self.weight_bytes.clone());
        let busy = self.busy_seconds.clone();
        r.register_with_unit("busy", "Time in forward passes", Unit::Seconds, busy);
        let (name, help) = (
            "streaming_gbps",
            "Weights read, GB a second, in the last pass",
        );
        r.register(name, help, self.streaming.clone());
        r.register("waiting", "Answers in the queue", self.waiting.clone());
        r.register("running", "Answers in slots", self.running.clone());
        let cache = self.cache_bytes.clone();
        r.register_with_unit("cache", "The prefix cache's size", Unit::Bytes, cache);
        let memory = self.memory_bytes.clone();
        let help = "Memory that requests and unfinished answers claim";
        r.register_with_unit("memory", help, Unit::Bytes, memory);
        let first = ("time_to_first_token", "From request to first token");
        r.register_with_unit(first.0, first.1, Unit::Seconds, self.first_token.clone());
        let between = ("time_between_tokens", "From a token to the next");
        r.register_with_unit(
            between.0,
            between.1,
            Unit::Seconds,
            self.between_tokens.clone(),
        );
        r.register("pass_rows", "Rows of a forward pass", self.rows.clone());
    }

    /// Writes all the server's metrics in the text form of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        if let Some(lost) = &self.log_dropped {
            self.log_lost.inc_by(lost.swap(0, Ordering::Relaxed));
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
