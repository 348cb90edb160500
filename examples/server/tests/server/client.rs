//! A server of the demo model on the emulator, and a client that speaks HTTP byte by byte.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// A server, killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// One with these arguments, ready to be asked.
    pub(crate) fn start(arguments: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln-server"));
        command
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("KILN_DEVICE", "emulator")
            .env_remove("KILN_API_KEY");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut said = String::new();
        let address = loop {
            let Some(Ok(line)) = lines.next() else { panic!("the server has ended: {said}") };
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.parse().expect("an address");
            }
            said += &line;
        };
        // What it says later would fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream
    }

    /// Sends these bytes, and reads until the server closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // A server that has heard enough may close before it has read all.
        let _ = stream.write_all(bytes);
        Reply::read(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n").as_bytes())
    }

    /// Asks by a body of JSON.
    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        Reply::read(self.send(path, body.as_ref()))
    }

    /// Asks, and leaves the reply unread.
    pub(crate) fn send(&self, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&head(path, body.len())).and_then(|()| stream.write_all(body)).expect("it listens");
        stream
    }

    /// Asks a chat.
    pub(crate) fn chat(&self, body: &Value) -> Value {
        let reply = self.post("/v1/chat/completions", body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// A line of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
    }

    /// Waits until a line of the metrics is as it should be.
    pub(crate) fn until(&self, name: &str, right: impl Fn(f64) -> bool) {
        let begin = Instant::now();
        while !right(self.metric(name)) {
            assert!(begin.elapsed() < PATIENCE, "{name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tells it to end.
    pub(crate) fn terminate(&self) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill runs");
        assert!(told.success());
    }

    /// Its exit code, which comes within a time.
    pub(crate) fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(begin.elapsed() < within, "it has not ended within {within:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The head of a request with a body of JSON.
pub(crate) fn head(path: &str, length: usize) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: k\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    head.into_bytes()
}

/// A reply, whole.
pub(crate) struct Reply {
    /// 0 where the server has closed without one.
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn read(mut stream: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A reset behind the reply is as good as an end.
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let is_chunked = head.contains("transfer-encoding: chunked");
        let body = if is_chunked { unchunked(&bytes[end..]) } else { bytes[end..].to_vec() };
        Reply { status, head, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The events of a stream, `[DONE]` included as it is.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        let events =
            text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("an event").to_owned());
        events.collect()
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = std::str::from_utf8(&rest[..line]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(length) = length.filter(|length| *length > 0 && rest.len() >= line + 4 + length) else { break };
        body.extend_from_slice(&rest[line + 2..line + 2 + length]);
        rest = &rest[line + 4 + length..];
    }
    body
}
