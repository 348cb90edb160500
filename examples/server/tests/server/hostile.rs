//! Requests that mean no good: each is refused in its own time, and the next client is answered.

use crate::client::{Reply, Server, head};
use serde_json::json;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";

fn answers(server: &Server) {
    let ask = json!({"messages": [{"role": "user", "content": "The"}], "max_tokens": 1});
    assert_eq!(server.post(CHAT, ask.to_string()).status, 200);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let server = Server::start(&[]);
    let valid = json!({"messages": [{"role": "user", "content": "The"}]}).to_string();
    let utf8 = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}";
    let lone = br#"{"messages": [{"role": "user", "content": "\ud800"}]}"#;
    let deep = |open: &str| format!("{{\"messages\": [{{\"role\": \"user\", \"content\": {}", open.repeat(100_000));
    let deep_other = format!("{{\"other\": {}", "[".repeat(500_000));
    let (lists, maps) = (deep("["), deep("{\"a\":"));
    let bodies: [&[u8]; 11] = [
        b"",
        b"null",
        b"[]",
        b"\0\0\0",
        &valid.as_bytes()[..valid.len() - 2],
        &[valid.as_bytes(), b"{}"].concat(),
        utf8,
        lone,
        lists.as_bytes(),
        maps.as_bytes(),
        deep_other.as_bytes(),
    ];
    for body in bodies {
        let reply = server.post(CHAT, body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")), "{shown}");
    }
    let other = format!("POST {CHAT} HTTP/1.1\r\nHost: k\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}");
    assert_eq!(server.raw(other.as_bytes()).status, 415);
    answers(&server);
}

#[test]
fn bodies_that_are_too_large_are_not_read() {
    let server = Server::start(&["--max-body", "10000"]);
    let mut announced = server.connect();
    announced.write_all(&head(CHAT, 1 << 40)).expect("it listens");
    assert_eq!(Reply::read(announced).status, 413);
    // Announced by nothing: in chunks, one after the other.
    let mut chunks = server.connect();
    let begin = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    chunks.write_all(begin.as_bytes()).expect("it listens");
    for _ in 0..11 {
        let _ = chunks.write_all(format!("3e8\r\n{}\r\n", " ".repeat(1000)).as_bytes());
    }
    let reply = Reply::read(chunks);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("request_too_large")));
    let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "X-Header: y\r\n".repeat(1000));
    assert!(matches!(server.raw(many.as_bytes()).status, 400 | 431));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    assert!(matches!(server.raw(long.as_bytes()).status, 0 | 400 | 414 | 431));
    answers(&server);
}

#[test]
fn clients_that_are_too_slow_are_not_waited_for() {
    let server = Server::start(&["--head-seconds", "0.4", "--body-seconds", "0.4", "--connections", "40"]);
    let begin = Instant::now();
    // A head that comes a byte at a time, by more clients than there is room for beside others.
    let mut slow: Vec<_> = (0..30).map(|_| server.connect()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /hea").expect("it listens"));
    // A body that never comes, and one that never ends.
    let mut body = server.connect();
    body.write_all(&head(CHAT, 100)).expect("it listens");
    let mut part = server.connect();
    part.write_all(&head(CHAT, 100)).and_then(|()| part.write_all(b"{\"mess")).expect("it listens");
    for stream in [body, part] {
        let reply = Reply::read(stream);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (408, &json!("request_timeout")));
    }
    // One that was answered, and asks nothing more.
    let mut idle = server.connect();
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: k\r\n\r\n").expect("it listens");
    for stream in slow.iter_mut().chain([&mut idle]) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    server.until("kiln_connections", |connections| connections == 1.0);
    answers(&server);
}

#[test]
fn what_is_not_there_is_said_and_what_is_no_http_ends() {
    let server = Server::start(&[]);
    for (method, path, status) in [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/v1/models/%ff%00", 400),
    ] {
        let reply = server.raw(format!("{method} {path} HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n").as_bytes());
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        if status != 400 {
            assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        }
    }
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"] {
        assert!(matches!(server.raw(bytes).status, 0 | 400), "{bytes:?}");
    }
    let smuggled = format!("POST {CHAT} HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello");
    assert_eq!(server.raw(smuggled.as_bytes()).status, 400);
    answers(&server);
}

#[test]
fn a_client_that_leaves_takes_its_answer_with_it() {
    let server = Server::start(&["--workers", "1"]);
    for (left, streams) in [(1.0, true), (2.0, false)] {
        let long = json!({
            "messages": [{"role": "user", "content": "The"}], "logit_bias": {"2042": -100}, "stream": streams,
        });
        let mut stream = server.send(CHAT, long.to_string().as_bytes());
        server.until("kiln_requests_running", |running| running == 1.0);
        if streams {
            let mut some = [0; 100];
            stream.read_exact(&mut some).expect("it streams");
        }
        drop(stream);
        server.until("kiln_answers_cancelled_total", |cancelled| cancelled == left);
        server.until("kiln_requests_running", |running| running == 0.0);
    }
    assert!(server.metric("kiln_generated_tokens_total") < 500.0, "of thousands that were asked for");
    answers(&server);
}
