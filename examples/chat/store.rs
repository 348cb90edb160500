//! Conversations in files: a first line, then of each message its role and its bytes on a line, and the text.

use kiln::text::ChatMessage;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

const FIRST_LINE: &str = "kiln chat 1";
/// Far above every context.
const LONGEST: u64 = 1 << 28;

/// Writes a file beside the one that is named, and puts it in its place when it is whole.
pub(crate) fn save(path: &Path, messages: &[ChatMessage]) -> Result<(), String> {
    let mut bytes = format!("{FIRST_LINE}\n").into_bytes();
    for ChatMessage { role, content, .. } in messages {
        bytes.extend(format!("{role} {}\n{content}\n", content.len()).into_bytes());
    }
    let part = path.with_extension("part");
    let written = || {
        let mut file = fs::File::create(&part)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    written().map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a conversation.
pub(crate) fn load(path: &Path) -> Result<Vec<ChatMessage>, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let size = fs::metadata(path).map_err(|error| named(&error))?.len();
    if size > LONGEST {
        return Err(named(&"longer than any conversation"));
    }
    let text = fs::read_to_string(path).map_err(|error| named(&error))?;
    parse(&text).map_err(|error| named(&error))
}

fn parse(text: &str) -> Result<Vec<ChatMessage>, Box<dyn Error>> {
    let mut rest =
        text.strip_prefix(FIRST_LINE).and_then(|rest| rest.strip_prefix('\n')).ok_or("no conversation of kiln's")?;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let (head, body) = rest.split_once('\n').ok_or("a message without an end")?;
        let (role, length) = head.rsplit_once(' ').ok_or("a message without a length")?;
        let length: usize = length.parse()?;
        let content = body.get(..length).ok_or("a message shorter than it says")?;
        rest = body.get(length..).and_then(|rest| rest.strip_prefix('\n')).ok_or("a message longer than it says")?;
        messages.push(ChatMessage::new(role, content));
    }
    Ok(messages)
}
