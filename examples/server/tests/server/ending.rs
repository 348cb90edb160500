//! The end of a server.

use crate::client::{Reply, Server};
use serde_json::json;
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn an_answer_ends_before_the_server_does() {
    let mut server = Server::start(&["--workers", "1", "--grace-seconds", "200"]);
    let ask = json!({"messages": [{"role": "user", "content": "The"}], "max_tokens": 12, "stream": true}).to_string();
    let mut running = server.send(CHAT, ask.as_bytes());
    running.read_exact(&mut [0; 100]).expect("it streams");
    let waiting = server.send(CHAT, ask.as_bytes());
    server.until("kiln_requests_waiting", |waiting| waiting == 1.0);
    server.terminate();
    // Who waits is told, who is answered gets all of it, and nobody else gets in.
    let refused = Reply::read(waiting);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("shutting_down")));
    assert!(TcpStream::connect(server.address).is_err());
    let mut rest = String::new();
    running.read_to_string(&mut rest).expect("it streams");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(server.exit_code(Duration::from_secs(20)), Some(0));
}

#[test]
fn answers_that_take_too_long_are_ended() {
    let mut server = Server::start(&["--grace-seconds", "0.2"]);
    let long = json!({"messages": [{"role": "user", "content": "The"}], "logit_bias": {"2042": -100}, "stream": true});
    let mut running = server.send(CHAT, long.to_string().as_bytes());
    running.read_exact(&mut [0; 100]).expect("it streams");
    // An idle connection holds nothing up.
    let _idle = server.connect();
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(20)), Some(0));
    let mut rest = String::new();
    running.read_to_string(&mut rest).expect("it streams");
    assert!(rest.contains("shutting_down") && !rest.contains("[DONE]"), "{rest}");
}
