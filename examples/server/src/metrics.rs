//! Counts and times, in the text that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 10] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// All of them.
#[derive(Default)]
pub(crate) struct Metrics {
    responses: Mutex<BTreeMap<u16, u64>>,
    pub(crate) connections: Gauge,
    pub(crate) running: Gauge,
    pub(crate) prompt_tokens: Counter,
    pub(crate) cached_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) failures: Counter,
    pub(crate) first_token_seconds: Histogram,
    pub(crate) answer_seconds: Histogram,
}

/// A number that rises.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// The number of those who are in.
#[derive(Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    /// One more, until the guard is dropped.
    pub(crate) fn enter(&self) -> impl Drop + '_ {
        struct Inside<'a>(&'a AtomicU64);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        Inside(&self.0)
    }
}

/// Times, counted by their size.
#[derive(Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    microseconds: AtomicU64,
}

impl Histogram {
    pub(crate) fn note(&self, time: Duration) {
        if let Some(bucket) = BOUNDS.iter().position(|bound| time.as_secs_f64() <= *bound) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let (count, sum) = (self.count.load(Ordering::Relaxed), self.microseconds.load(Ordering::Relaxed));
        let _ = writeln!(
            out,
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {}\n{name}_count {count}",
            sum as f64 / 1e6
        );
    }
}

impl Metrics {
    /// Counts a response.
    pub(crate) fn responded(&self, status: u16) {
        *self.responses.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    /// The text, with the numbers of what the engine has.
    pub(crate) fn text(&self, waiting: usize, kept: usize) -> String {
        let mut out = String::new();
        let mut one = |name: &str, ty: &str, help: &str, value: &dyn Display| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {ty}\n{name} {value}");
        };
        let gauges = [
            ("kiln_connections", "Connections that are open.", self.connections.0.load(Ordering::Relaxed)),
            ("kiln_requests_running", "Answers that are generated.", self.running.0.load(Ordering::Relaxed)),
            ("kiln_requests_waiting", "Requests in the queue.", waiting as u64),
            ("kiln_sessions_kept", "Sessions kept for prompts that begin as theirs do.", kept as u64),
        ];
        for (name, help, value) in gauges {
            one(name, "gauge", help, &value);
        }
        let counters = [
            ("kiln_prompt_tokens_total", "Tokens of prompts.", &self.prompt_tokens),
            ("kiln_prompt_tokens_cached_total", "Tokens of prompts that had run before.", &self.cached_tokens),
            ("kiln_generated_tokens_total", "Tokens of answers.", &self.generated_tokens),
            ("kiln_answers_cancelled_total", "Answers whose clients left.", &self.cancelled),
            ("kiln_answers_failed_total", "Answers that failed for a reason of the server's.", &self.failures),
        ];
        for (name, help, counter) in counters {
            one(name, "counter", help, &counter.0.load(Ordering::Relaxed));
        }
        let name = "kiln_http_responses_total";
        let _ = writeln!(out, "# HELP {name} Responses by status.\n# TYPE {name} counter");
        for (status, count) in self.responses.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "{name}{{status=\"{status}\"}} {count}");
        }
        self.first_token_seconds.write(&mut out, "kiln_first_token_seconds", "Time to an answer's first token.");
        self.answer_seconds.write(&mut out, "kiln_answer_seconds", "Time of an answer.");
        out
    }
}
