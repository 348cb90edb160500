//! The command line.

use crate::choice;
use crate::common::Wish;
use crate::engine::Settings;
use clap::Parser;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Serves a Qwen model by OpenAI's protocol.
#[derive(Parser, Clone)]
#[command(version)]
pub(crate) struct Arguments {
    /// The model, a GGUF file; the demo model where none is given
    #[arg(long)]
    model: Option<PathBuf>,
    /// The model's name in requests; the file's where none is given
    #[arg(long)]
    name: Option<String>,
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// A key that requests must have, as `Authorization: Bearer KEY`
    #[arg(long, env = "KILN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Answers that are generated at once, each by a thread
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Sessions that are kept for prompts that begin as theirs do
    #[arg(long, default_value_t = 8)]
    sessions: usize,
    /// Requests that wait for a thread; more are refused with status 429
    #[arg(long, default_value_t = 64)]
    queue: usize,
    /// Positions of a prompt and its answer; all that the model was trained for where not given
    #[arg(long)]
    context: Option<u32>,
    /// The most tokens of an answer
    #[arg(long, default_value_t = 4096)]
    max_tokens: usize,
    /// The most bytes of a request
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) max_body: usize,
    /// Connections at once; more wait to be accepted
    #[arg(long, default_value_t = 512)]
    pub(crate) connections: usize,
    /// Seconds that a client may take for a request's head, or between two requests
    #[arg(long, default_value_t = 10.0)]
    head_seconds: f64,
    /// Seconds that a client may take for a request's body
    #[arg(long, default_value_t = 30.0)]
    body_seconds: f64,
    /// Seconds that a client may take nothing of an answer that is there
    #[arg(long, default_value_t = 30.0)]
    stall_seconds: f64,
    /// Seconds that answers may take to end, once the server is told to
    #[arg(long, default_value_t = 10.0)]
    grace_seconds: f64,
    /// cuda, emulator or auto (KILN_DEVICE where not given)
    #[arg(long)]
    pub(crate) device: Option<Wish>,
    #[command(flatten)]
    ways: choice::Ways,
}

impl Arguments {
    /// Refuses numbers that cannot be.
    pub(crate) fn check(&self) -> Result<(), String> {
        let counts = [
            ("--workers", self.workers),
            ("--queue", self.queue),
            ("--max-tokens", self.max_tokens),
            ("--max-body", self.max_body),
            ("--connections", self.connections),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{name} 0 leaves nothing to serve; give at least 1"));
        }
        let seconds = [
            ("--head-seconds", self.head_seconds),
            ("--body-seconds", self.body_seconds),
            ("--stall-seconds", self.stall_seconds),
            ("--grace-seconds", self.grace_seconds),
        ];
        match seconds.iter().find(|(_, seconds)| !(0.001..=86400.0).contains(seconds)) {
            Some((name, found)) => Err(format!("{name} {found}; take 0.001 to 86400")),
            None if self.api_key.as_ref().is_some_and(String::is_empty) => Err("an empty key keeps nobody out".into()),
            None => Ok(()),
        }
    }

    /// The model's file.
    pub(crate) fn model(&self) -> PathBuf {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/demo.Q4_K_M.gguf");
        self.model.clone().unwrap_or_else(|| demo.into())
    }

    /// What the engine is told.
    pub(crate) fn settings(&self, model: &Path, emulated: bool) -> Settings {
        let stem = || model.file_stem().map_or("kiln".into(), |stem| stem.to_string_lossy().into_owned());
        Settings {
            name: self.name.clone().unwrap_or_else(stem),
            session: self.ways.options(emulated, None).with_capacity(self.context),
            workers: self.workers,
            sessions: self.sessions,
            queue: self.queue,
            max_tokens: self.max_tokens,
        }
    }

    pub(crate) fn head(&self) -> Duration {
        Duration::from_secs_f64(self.head_seconds)
    }

    pub(crate) fn body(&self) -> Duration {
        Duration::from_secs_f64(self.body_seconds)
    }

    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs_f64(self.stall_seconds)
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs_f64(self.grace_seconds)
    }
}
