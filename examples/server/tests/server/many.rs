//! Many clients at once.

use crate::client::Server;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const CLIENTS: usize = 50;
/// Requests that differ in prompt, seed and form; each is two clients'.
const KINDS: usize = 25;

/// A client's request.
fn ask(client: usize) -> Value {
    let client = client % KINDS;
    let words = ["ownership", "borrowing", "a trait", "a crate", "memory", "a thread", "licences"];
    let said = format!("What is {}? {client}", words[client % words.len()]);
    json!({
        "messages": [{"role": "user", "content": said}], "max_tokens": 2 + client % 4, "seed": client,
        "temperature": if client.is_multiple_of(3) { 0.0 } else { 1.2 }, "stream": client % 2 == 1,
    })
}

fn text(server: &Server, client: usize) -> String {
    let reply = server.post("/v1/chat/completions", ask(client).to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    if (client % KINDS).is_multiple_of(2) {
        return reply.json()["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    }
    let (events, mut text) = (reply.events(), String::new());
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).expect("JSON");
        text += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    text
}

#[test]
fn fifty_clients_at_once_get_the_texts_they_get_alone() {
    let alone = {
        let server = Server::start(&["--workers", "1", "--sessions", "0"]);
        (0..KINDS).map(|client| text(&server, client)).collect::<Vec<_>>()
    };
    let server = Server::start(&["--workers", "4"]);
    let together: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let server = &server;
                    move || text(server, client)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("it is answered")).collect()
    });
    assert_eq!(together, [&alone[..], &alone].concat());
    assert!(alone.iter().collect::<BTreeSet<_>>().len() > KINDS / 2, "texts that were mixed would show: {alone:?}");
    server.until("kiln_requests_running", |running| running == 0.0);
    assert_eq!(server.metric("kiln_answer_seconds_count"), CLIENTS as f64);
    assert_eq!((server.metric("kiln_requests_waiting"), server.metric("kiln_answers_failed_total")), (0.0, 0.0));
}

#[test]
fn more_than_the_queue_holds_are_told_to_come_again() {
    let server = Server::start(&["--workers", "1", "--queue", "1"]);
    let long = json!({"messages": [{"role": "user", "content": "The"}], "logit_bias": {"2042": -100}, "stream": true});
    let long = long.to_string();
    // One is answered, one waits.
    let first = server.send("/v1/chat/completions", long.as_bytes());
    server.until("kiln_requests_running", |running| running == 1.0);
    let second = server.send("/v1/chat/completions", long.as_bytes());
    server.until("kiln_requests_waiting", |waiting| waiting == 1.0);
    let third = server.post("/v1/chat/completions", &long);
    assert_eq!((third.status, &third.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(third.head.contains("retry-after: 2\r\n"), "{}", third.head);
    // Who waits and leaves takes no room, and who is answered and leaves takes no time.
    drop(second);
    server.until("kiln_requests_waiting", |waiting| waiting == 0.0);
    drop(first);
    let short = json!({"messages": [{"role": "user", "content": "The"}], "max_tokens": 1}).to_string();
    assert_eq!(server.post("/v1/chat/completions", short).status, 200);
    assert_eq!(server.metric("kiln_answers_cancelled_total"), 1.0);
}
