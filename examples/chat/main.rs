//! Talks with a model, on a terminal or in a pipe.
//!
//! ```text
//! cargo run --release --example chat
//! ```
//!
//! A line is a message; one that ends in a backslash goes on in the next, and lines between two of `"""` are one message.
//! Ctrl-C stops the answer, and the program where there is none. `/help` tells the commands.

#[path = "../common/choice.rs"]
mod choice;
#[path = "../common/command.rs"]
mod command;
#[path = "../common/mod.rs"]
mod common;
mod interrupt;
#[path = "../common/sampling.rs"]
mod sampling;
mod store;

use clap::Parser;
use command::{Bar, note};
use common::Wish;
use kiln::Model;
use kiln::chat::Chat;
use kiln::model::{End, GenerateOptions};
use kiln::text::{ChatMessage, ChatOptions, StopStrings};
use std::error::Error;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
/clear          forgets the conversation
/save FILE      writes it to a file
/load FILE      goes on with the one in a file
/system TEXT    says how the model is to answer
/set            shows the settings
/set NAME VALUE changes one
/quit           ends, as the end of the input does
";

/// Talks with a Qwen model.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The model, a GGUF file; the demo model where none is given
    #[arg(long)]
    model: Option<PathBuf>,
    /// How the model is to answer
    #[arg(long)]
    system: Option<String>,
    /// The most tokens of an answer
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    /// Positions of the conversation; all that the model was trained for where not given
    #[arg(long)]
    capacity: Option<u32>,
    /// Whether a model that can thinks before it answers
    #[arg(long)]
    thinking: Option<bool>,
    /// Text that ends an answer and is left out of it; may be given several times
    #[arg(long)]
    stop: Vec<String>,
    #[command(flatten)]
    choice: sampling::Choice,
    /// cuda, emulator or auto (KILN_DEVICE where not given)
    #[arg(long)]
    device: Option<Wish>,
    #[command(flatten)]
    ways: choice::Ways,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    command::main(run)
}

fn run(arguments: &Arguments) -> Outcome<()> {
    let file = choice::model_file(arguments.model.as_deref())?;
    let (baked, path) = (file.baked()?, file.path().to_owned());
    arguments.choice.sampling().check(file.shape().vocab)?;
    let stop = StopStrings::new(arguments.stop.iter())?;
    let picked = common::pick(arguments.device)?;
    let mut bar = Bar::new("loading");
    let model = Model::load(&picked.device, baked, file, |progress| bar.show(progress.done, progress.total))?;
    bar.clear();
    let options = arguments.ways.options(picked.emulated, None).with_capacity(arguments.capacity);
    let chat = Chat::new(&model, options).map_err(command::at(&path))?.with_stop(stop);
    let mut chat = chat.with_options(ChatOptions::default().with_thinking(arguments.thinking));
    if let Some(system) = &arguments.system {
        chat = chat.with_system(system);
    }
    interrupt::watch();
    Talk { chat, choice: arguments.choice.clone(), tokens: arguments.tokens, device: picked.to_string() }.go_on()
}

/// A conversation and its settings.
struct Talk {
    chat: Chat,
    choice: sampling::Choice,
    tokens: usize,
    device: String,
}

impl Talk {
    fn go_on(mut self) -> Outcome<()> {
        let asks = std::io::stdin().is_terminal();
        if asks {
            note(format_args!("{}; /help tells the commands\n", self.device));
        }
        while let Some(input) = message(asks)? {
            let outcome = match input.trim() {
                "" => continue,
                "/quit" | "/exit" => break,
                command if command.starts_with('/') => self.command(command),
                _ => self.say(&input),
            };
            if let Err(error) = outcome {
                if error.downcast_ref::<std::io::Error>().is_some() {
                    return Err(error);
                }
                // The conversation is as it was before.
                note(format_args!("error: {error}\n"));
            }
        }
        Ok(())
    }

    fn say(&mut self, input: &str) -> Outcome<()> {
        let options = GenerateOptions::new(self.tokens).with_sampling(self.choice.sampling());
        let (cancelled, mut out) = (interrupt::Answering::begin(), std::io::stdout().lock());
        let mut answer = self.chat.say(input, options)?;
        let cancel = answer.cancel_handle();
        for piece in answer.by_ref() {
            out.write_all(piece?.as_bytes())?;
            out.flush()?;
            if cancelled.asked() {
                cancel.cancel();
            }
        }
        writeln!(out)?;
        match answer.end() {
            Some(End::Cancelled) => note("[stopped]\n"),
            Some(End::Length) => note("[the limit of tokens]\n"),
            Some(End::ContextFull) => note("[the context is full: /clear forgets the conversation]\n"),
            _ => {}
        }
        Ok(())
    }

    fn command(&mut self, input: &str) -> Outcome<()> {
        let (command, rest) = input.split_once(char::is_whitespace).unwrap_or((input, ""));
        let rest = rest.trim();
        match command {
            "/help" => note(HELP),
            "/clear" => self.chat.clear(),
            "/save" => store::save(file(rest)?, self.chat.messages())?,
            "/load" => {
                let messages = store::load(file(rest)?)?;
                note(format_args!("{} messages\n", messages.len()));
                self.chat.set_messages(messages);
            }
            "/system" => {
                let mut messages = self.chat.messages().to_vec();
                messages.retain(|message| message.role != "system");
                if !rest.is_empty() {
                    messages.insert(0, ChatMessage::new("system", rest));
                }
                self.chat.set_messages(messages);
            }
            "/set" => self.set(rest)?,
            other => return Err(format!("`{other}` is no command; /help tells them").into()),
        }
        Ok(())
    }

    fn set(&mut self, rest: &str) -> Outcome<()> {
        let Some((name, value)) = rest.split_once(char::is_whitespace) else {
            let sampling = self.choice.sampling();
            note(format_args!(
                "tokens {}, temperature {}, top-k {}, top-p {}, min-p {}, typical-p {}, repetition-penalty {}, seed {}\n",
                self.tokens,
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                sampling.min_p,
                sampling.typical_p,
                sampling.repetition_penalty,
                self.choice.seed.map_or("by the clock".to_owned(), |seed| seed.to_string()),
            ));
            return Ok(());
        };
        let (value, mut choice) = (value.trim(), self.choice.clone());
        match name {
            "tokens" => self.tokens = value.parse()?,
            "temperature" => choice.temperature = value.parse()?,
            "top-k" => choice.top_k = value.parse()?,
            "top-p" => choice.top_p = value.parse()?,
            "min-p" => choice.min_p = value.parse()?,
            "typical-p" => choice.typical_p = value.parse()?,
            "repetition-penalty" => choice.repetition_penalty = value.parse()?,
            "seed" => choice.seed = Some(value.parse()?),
            other => return Err(format!("`{other}` is no setting; /set shows them").into()),
        }
        choice.sampling().check(self.chat.session().model().shape().vocab)?;
        self.choice = choice;
        Ok(())
    }
}

fn file(name: &str) -> Outcome<&Path> {
    if name.is_empty() { Err("the command needs a file".into()) } else { Ok(Path::new(name)) }
}

/// The next message, of one line or several; `None` at the end of the input.
fn message(asks: bool) -> Outcome<Option<String>> {
    let (mut message, mut quoted, mut lines) = (String::new(), false, 0);
    loop {
        if asks {
            note(if lines == 0 { "> " } else { ". " });
        }
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(Some(message).filter(|_| lines > 0));
        }
        lines += 1;
        let line = line.trim_end_matches(['\n', '\r']);
        if line.trim() == "\"\"\"" {
            quoted = !quoted;
            if !quoted {
                return Ok(Some(message));
            }
            continue;
        }
        let (text, goes_on) = match line.strip_suffix('\\') {
            Some(text) if !quoted => (text, true),
            _ => (line, quoted),
        };
        message.push_str(text);
        if !goes_on {
            return Ok(Some(message));
        }
        message.push('\n');
    }
}
