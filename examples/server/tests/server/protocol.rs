//! What the protocol has: answers whole and as streams, what they are told, and what is refused.

use crate::client::{Server, head};
use serde_json::{Value, json};
use std::io::Write;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn greedy(said: &str, tokens: u32) -> Value {
    json!({"messages": [{"role": "user", "content": said}], "max_tokens": tokens, "temperature": 0})
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

#[test]
fn a_chat_is_answered_whole_and_as_a_stream_and_its_prompt_is_kept() {
    let server = Server::start(&[]);
    let ask = greedy("What is ownership?", 8);
    let answer = server.chat(&ask);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("demo.Q4_K_M")));
    let (choice, usage) = (&answer["choices"][0], &answer["usage"]);
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("length"), &Value::Null));
    assert_eq!((&usage["completion_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]), (&json!(8), &json!(0)));

    // As a stream: a role, the same text in pieces, a reason, usage, an end.
    let stream = with(with(ask.clone(), "stream", json!(true)), "stream_options", json!({"include_usage": true}));
    let reply = server.post(CHAT, stream.to_string());
    assert!(reply.head.contains("content-type: text/event-stream"), "{}", reply.head);
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    let (last, chunks) = events.split_last().expect("chunks");
    let delta = |chunk: &Value| chunk["choices"][0]["delta"].clone();
    assert_eq!(delta(&chunks[0]), json!({"role": "assistant", "content": ""}));
    let text: String = chunks.iter().filter_map(|chunk| delta(chunk)["content"].as_str().map(str::to_owned)).collect();
    assert_eq!((text.as_str(), chunks.len() > 5), (content(&answer), true));
    assert_eq!(chunks[chunks.len() - 1]["choices"][0]["finish_reason"], "length");
    assert!(chunks.iter().all(|chunk| chunk["usage"] == Value::Null && chunk["object"] == "chat.completion.chunk"));
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(8)));

    // The parts of a message, and both names of a system's.
    let parts = json!([{"type": "text", "text": "What is "}, {"type": "text", "text": "ownership?"}]);
    let same = with(ask, "messages", json!([{"role": "user", "content": parts}]));
    assert_eq!(content(&server.chat(&same)), content(&answer));
}

#[test]
fn what_prompts_have_in_common_runs_once_and_does_not_show() {
    let server = Server::start(&["--sessions", "3"]);
    let system = "Say what a word of Rust means, in a sentence that a child would understand. ".repeat(12);
    let ask = |said: &str| {
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": said}]);
        with(greedy("", 5), "messages", messages)
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    let first = server.chat(&ask("What is a trait?"));
    assert_eq!(cached(&first), 0);
    // Another question behind the same beginning, by a fork, and then the first again, by what it left.
    let (second, again) = (server.chat(&ask("And a crate?")), server.chat(&ask("What is a trait?")));
    let prompt = first["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert!((128..prompt).contains(&cached(&second)), "{} of {prompt}", cached(&second));
    assert_eq!((cached(&again), content(&again)), (prompt - 1, content(&first)));
    assert!(server.metric("kiln_prompt_tokens_cached_total") > 256.0);
    let anew = Server::start(&["--sessions", "0"]);
    assert_eq!(content(&second), content(&anew.chat(&ask("And a crate?"))));
    // Others come and go, and none has more than its room.
    for said in ["One", "Two", "Three", "Four"] {
        server.chat(&greedy(said, 1));
    }
    server.until("kiln_requests_running", |running| running == 0.0);
    assert_eq!(server.metric("kiln_sessions_kept"), 3.0);
}

#[test]
fn text_ends_at_stop_strings_and_seeds_repeat_it() {
    let server = Server::start(&[]);
    let whole = server.chat(&greedy("The borrow checker", 10));
    let whole = content(&whole);
    let stop = whole.get(whole.len() / 2..whole.len() / 2 + 3).expect("plain letters");
    let answer = server.chat(&with(greedy("The borrow checker", 10), "stop", json!(["never there", stop])));
    let before = &whole[..whole.find(stop).expect("it is there")];
    assert_eq!((content(&answer), &answer["choices"][0]["finish_reason"]), (before, &json!("stop")));

    let drawn = |seed: Value| {
        let ask = with(with(greedy("The", 8), "temperature", json!(1.5)), "seed", seed);
        content(&server.chat(&ask)).to_owned()
    };
    let (first, second) = (drawn(json!(7)), drawn(json!(-8)));
    assert_eq!(drawn(json!(7)), first);
    assert_ne!(first, second);
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let server = Server::start(&[]);
    let formed = |format: Value| {
        let answer = server.chat(&with(greedy("A crate?", 60), "response_format", format));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        content(&answer).to_owned()
    };
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "stars"],
        "properties": {"name": {"type": "string", "maxLength": 8}, "stars": {"enum": [1, 2, 3]}},
    });
    let named = json!({"type": "json_schema", "json_schema": {"name": "crate", "strict": true, "schema": schema}});
    let object: Value = serde_json::from_str(&formed(named)).expect("JSON");
    assert!(object["name"].as_str().is_some_and(|name| name.chars().count() <= 8), "{object}");
    assert!(object["stars"].as_u64().is_some_and(|stars| (1..=3).contains(&stars)), "{object}");
    let version = formed(json!({"type": "regex", "pattern": "v[0-9]\\.[0-9]"}));
    let bytes = version.as_bytes();
    assert!(bytes.len() == 4 && bytes[0] == b'v' && bytes[2] == b'.', "{version}");
    let lark = formed(json!({"type": "lark", "grammar": "start: \"yes\" | \"no\""}));
    assert!(lark == "yes" || lark == "no", "{lark}");
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let server = Server::start(&[]);
    let ask = with(with(greedy("The", 6), "logprobs", json!(true)), "top_logprobs", json!(2));
    let answer = server.chat(&ask);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    let text: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
    assert_eq!((text.as_str(), tokens.len()), (content(&answer), 6));
    for token in &tokens {
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!((top.len(), &top[0]["token"]), (2, &token["token"]), "the likeliest is chosen");
        let (first, second) = (top[0]["logprob"].as_f64().expect("a number"), top[1]["logprob"].as_f64().expect("one"));
        assert!(first <= 0.0 && second <= first && first.exp() + second.exp() <= 1.0001, "{token}");
    }
    // The same in a stream, and none of what a stop string took away.
    let stop = with(ask, "stop", json!(tokens[3]["token"]));
    let reply = server.post(CHAT, with(stop.clone(), "stream", json!(true)).to_string());
    let (mut text, mut told) = (String::new(), String::new());
    for event in reply.events().iter().filter(|event| *event != "[DONE]") {
        let choice = serde_json::from_str::<Value>(event).expect("JSON")["choices"][0].clone();
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        let of_token = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        told.extend(of_token.iter().filter_map(|token| token["token"].as_str()));
    }
    assert_eq!(text, content(&server.chat(&stop)));
    assert_eq!(told, text);
}

#[test]
fn texts_are_completed_from_text_and_from_ids() {
    let server = Server::start(&["--name", "demo"]);
    let ask = |prompt: Value| {
        let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 1});
        let reply = server.post(TEXT, body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["choices"][0].clone()
    };
    let (text, ids) = (ask(json!("The borrow checker")), ask(json!([[438, 1245, 361]])));
    assert_eq!(text, ask(json!(["The borrow checker"])));
    for choice in [text, ids] {
        let tokens: String =
            choice["logprobs"]["tokens"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert_eq!(choice["text"].as_str(), Some(tokens.as_str()));
        assert_eq!(choice["logprobs"]["text_offset"][0], 0);
        assert_eq!(choice["logprobs"]["top_logprobs"][0].as_object().map(|top| top.len()), Some(1));
    }
}

#[test]
fn there_is_one_model_and_it_is_well() {
    let server = Server::start(&[]);
    let models = server.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("demo.Q4_K_M")));
    assert_eq!(server.get("/v1/models/demo.Q4_K_M").json(), models["data"][0]);
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    server.chat(&greedy("The", 2));
    server.until("kiln_requests_running", |running| running == 0.0);
    assert_eq!(server.metric("kiln_generated_tokens_total"), 2.0);
    assert_eq!(server.metric("kiln_answer_seconds_count"), 1.0);
    assert!(server.metric("kiln_http_responses_total{status=\"404\"}") >= 1.0);
}

#[test]
fn only_who_has_the_key_is_answered() {
    let server = Server::start(&["--api-key", "open sesame"]);
    let ask = |key: &str| {
        let bytes = format!("GET /v1/models HTTP/1.1\r\nHost: k\r\nConnection: close\r\n{key}\r\n");
        server.raw(bytes.as_bytes())
    };
    for wrong in ["", "Authorization: Bearer open\r\n", "Authorization: open sesame\r\n"] {
        let reply = ask(wrong);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (401, &json!("invalid_api_key")), "{wrong}");
    }
    assert_eq!(ask("Authorization: Bearer open sesame\r\n").status, 200);
    assert_eq!((server.get("/health").status, server.get("/metrics").status), (200, 401));
    // Who has no key has no body read.
    let mut stream = server.connect();
    stream.write_all(&head(CHAT, 1 << 30)).expect("it listens");
    assert_eq!(crate::client::Reply::read(stream).status, 401);
}

#[test]
fn what_is_wrong_is_named() {
    let server = Server::start(&["--max-tokens", "100", "--context", "64"]);
    let user = json!([{"role": "user", "content": "The"}]);
    let of = |name: &str, value: Value| with(json!({"messages": user}), name, value);
    let wrong = [
        (of("temperature", json!("hot")), "temperature"),
        (of("temperature", json!(-1)), "temperature"),
        (of("temperature", json!(1e39)), "temperature"),
        (of("top_p", json!(0)), "top_p"),
        (of("max_tokens", json!(0)), "max_tokens"),
        (of("max_tokens", json!(101)), "max_tokens"),
        (of("max_tokens", json!(-1)), "max_tokens"),
        (of("max_tokens", json!(1e300)), "max_tokens"),
        (of("stop", json!([""])), "stop"),
        (of("stop", json!(7)), "stop"),
        (of("seed", json!("x")), "seed"),
        (of("logit_bias", json!({"x": 1})), "logit_bias"),
        (of("logit_bias", json!({"99999": 1})), "token_id_of_a_bias_or_ban"),
        (of("top_logprobs", json!(3)), "top_logprobs"),
        (with(of("logprobs", json!(true)), "top_logprobs", json!(21)), "top_logprobs"),
        (of("stream", json!("yes")), "stream"),
        (of("n", json!(2)), "n"),
        (of("response_format", json!({"type": "xml"})), "response_format.type"),
        (of("response_format", json!({"type": "json_schema"})), "response_format.json_schema.schema"),
        (of("response_format", json!({"type": "json_schema", "json_schema": {"schema": 7}})), "response_format"),
        (of("response_format", json!({"type": "regex", "pattern": "("})), "response_format"),
        (of("response_format", json!({"type": "lark", "grammar": "start"})), "response_format"),
        (of("tools", json!([{"type": "function"}])), "tools"),
        (of("messages", json!([])), "messages"),
        (of("messages", json!({})), "messages"),
        (of("messages", json!([{"role": "judge", "content": "x"}])), "messages[0].role"),
        (of("messages", json!([{"content": "x"}])), "messages[0]"),
        (of("messages", json!([{"role": "user", "content": 7}])), "messages[0].content"),
        (of("messages", json!([{"role": "user", "content": [{"type": "image_url"}]}])), "messages[0].content"),
        (of("messages", json!([{"role": "user", "content": "word ".repeat(100)}])), "messages"),
        (of("messages", json!([{"role": "user", "content": "x".repeat(100_000)}])), "messages"),
    ];
    for (body, param) in wrong {
        let reply = server.post(CHAT, body.to_string());
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{}", reply.text());
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 8), "{error}");
    }
    let texts =
        [json!({}), json!({"prompt": ""}), json!({"prompt": []}), json!({"prompt": [70_000]}), json!({"prompt": {}})];
    for body in texts.into_iter().chain([json!({"prompt": ["a", "b"]}), json!({"prompt": "a", "logprobs": true})]) {
        assert_eq!(server.post(TEXT, body.to_string()).status, 400, "{body}");
    }
    let other = server.post(CHAT, of("model", json!("gpt-4")).to_string());
    assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("model_not_found")));
    // All that was the clients' fault, and none of it ran.
    assert_eq!((server.get("/health").status, server.metric("kiln_generated_tokens_total")), (200, 0.0));
}
