//! Serves a Qwen model by OpenAI's protocol: on the GPU where there is one, else in kiln's emulator.
//!
//! ```text
//! cargo run --release -p kiln-server
//! curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
//!     -d '{"messages": [{"role": "user", "content": "What is ownership?"}]}'
//! ```
//!
//! `config` is the command line, `serve` connections, `routes` what is asked of them, `api` the protocol's objects. The
//! `engine` has the model: requests wait in its queue for one of a few threads, which send their answers' text back.

mod api;
#[path = "../../common/choice.rs"]
mod choice;
#[path = "../../common/command.rs"]
mod command;
#[path = "../../common/mod.rs"]
mod common;
mod config;
mod engine;
mod key;
mod metrics;
mod patient;
mod routes;
mod serve;
mod sse;

use command::{Bar, note};
use config::Arguments;
use engine::Engine;
use kiln::Model;
use kiln::model::ModelFile;
use std::error::Error;
use std::net::TcpListener;
use std::process::ExitCode;

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    arguments.check()?;
    let path = arguments.model();
    let file = ModelFile::open(&path)?;
    let baked = file.baked()?;
    let picked = common::pick(arguments.device)?;
    // Before the model is loaded: an address that is taken is said at once.
    let listener = TcpListener::bind(arguments.listen).map_err(|error| format!("{}: {error}", arguments.listen))?;
    let address = listener.local_addr()?;
    let mut bar = Bar::new("loading");
    let model = Model::load(&picked.device, baked, file, |progress| bar.show(progress.done, progress.total))?;
    bar.clear();
    let engine = Engine::start(model, arguments.settings(&path, picked.emulated)).map_err(command::at(&path))?;
    if !address.ip().is_loopback() && arguments.api_key.is_none() {
        note("note: whoever reaches this address may ask; --api-key, or KILN_API_KEY, keeps others out\n");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    note(format_args!("device: {picked}\nlistening on http://{address}\n"));
    runtime.block_on(serve::serve(listener, engine, arguments))?;
    // What still works on an answer that was cancelled ends with the process.
    Ok(())
}
