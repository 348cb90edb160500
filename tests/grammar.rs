//! Answers in a given form: whatever the schema and whatever the model wants, the text is JSON of it.

#[path = "common/mod.rs"]
mod common;

use kiln::Model;
use kiln::grammar::{Grammar, Grammars};
use kiln::model::{
    Constraint, End, GenerateOptions, ModelFile, PathChoice, Sampler, Sampling, SessionOptions, TokenSet,
};
use kiln::text::{Special, Tokenizer};
use kiln_emulator::{Checks, DeviceConfig};
use kiln_testing::random::Random;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// No text of a schema made here has more tokens.
const MOST: usize = 1000;

fn demo() -> ModelFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/demo.Q4_K_M.gguf");
    ModelFile::open(path).expect("the demo model")
}

/// A schema whose texts are all finite.
fn schema(random: &mut Random, depth: u32) -> Value {
    let kinds = if depth == 0 { 8 } else { 12 };
    match random.below(kinds) {
        0 => json!({"type": "string", "minLength": random.below(2), "maxLength": 2 + random.below(6)}),
        1 => json!({"type": "string", "pattern": "^[a-c]{2,4}x?$"}),
        2 => json!({"enum": ["red", "a \"quoted\" word", 7, null]}),
        3 => {
            let least = i64::from(random.below(400)) - 200;
            json!({"type": "integer", "minimum": least, "maximum": least + i64::from(random.below(300))})
        }
        4 => json!({"type": "boolean"}),
        5 => json!({"type": ["null", "boolean"]}),
        6 => json!({"const": {"é": [1, {}]}}),
        7 => json!({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["none", "ü"]}]}),
        8 | 9 => {
            let least = random.below(2);
            json!({"type": "array", "items": schema(random, depth - 1), "minItems": least, "maxItems": least + random.below(3)})
        }
        _ => {
            let names = ["name", "size", "a key", "日本"];
            let properties: Map<String, Value> = names[..1 + random.below(4) as usize]
                .iter()
                .map(|name| ((*name).to_owned(), schema(random, depth - 1)))
                .collect();
            let required: Vec<_> = properties.keys().filter(|_| random.below(2) == 0).cloned().collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

/// Whether a value is one of a schema, of those made above.
fn is_of(value: &Value, schema: &Value) -> bool {
    let number = |name: &str| schema[name].as_i64();
    let within = |count: usize, least: &str, most: &str| {
        number(least).is_none_or(|least| count as i64 >= least) && number(most).is_none_or(|most| count as i64 <= most)
    };
    if let Some(choices) = schema["enum"].as_array() {
        return choices.contains(value);
    }
    if let Some(only) = schema.get("const") {
        return only == value;
    }
    if let Some(either) = schema["anyOf"].as_array() {
        return either.iter().any(|schema| is_of(value, schema));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        ty => vec![ty.as_str().expect("a type")],
    };
    match value {
        Value::Null => types.contains(&"null"),
        Value::Bool(_) => types.contains(&"boolean"),
        Value::Number(_) => {
            let (least, most) = (number("minimum").expect("one"), number("maximum").expect("one"));
            // -0 is an integer, which serde_json reads as a float.
            let found = value.as_i64().or((value.as_f64() == Some(0.0)).then_some(0));
            types == ["integer"] && found.is_some_and(|found| least <= found && found <= most)
        }
        Value::String(text) => {
            let letters = text.strip_suffix('x').unwrap_or(text);
            let is_pattern =
                (2..=4).contains(&letters.len()) && letters.bytes().all(|byte| (b'a'..=b'c').contains(&byte));
            types == ["string"]
                && (schema.get("pattern").is_none() || is_pattern)
                && within(text.chars().count(), "minLength", "maxLength")
        }
        Value::Array(items) => {
            let all = items.iter().all(|item| is_of(item, &schema["items"]));
            types == ["array"] && all && within(items.len(), "minItems", "maxItems")
        }
        Value::Object(fields) => {
            let known =
                fields.iter().all(|(name, value)| schema["properties"].get(name).is_some_and(|of| is_of(value, of)));
            let required = schema["required"].as_array().expect("a list");
            types == ["object"]
                && known
                && required.iter().all(|name| fields.contains_key(name.as_str().expect("a name")))
        }
    }
}

#[track_caller]
fn check(text: &str, schema: &Value) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text} of {schema}"));
    assert!(is_of(&value, schema), "{text} is not of {schema}");
}

/// A text by a model that wants anything.
fn drawn(tokenizer: &Tokenizer, mut grammar: Grammar, random: &mut Random, vocab: u32) -> String {
    let mut sampler = Sampler::new(Sampling::new(1.0, random.next()), vocab).expect("parameters");
    let mut ids = Vec::new();
    loop {
        let mut allowed = TokenSet::all(vocab);
        grammar.restrict(&mut allowed).expect("it goes on");
        let mut logits = random.floats(vocab as usize, 5.0);
        let id = sampler.choose_among(&mut logits, &ids, &allowed).expect("some are allowed");
        grammar.accept(id).expect("it was allowed");
        if tokenizer.is_end_of_generation(id) {
            return tokenizer.decode(&ids, Special::Parse);
        }
        ids.push(id);
        assert!(ids.len() < MOST, "{}", tokenizer.decode(&ids, Special::Parse));
    }
}

#[test]
fn random_tokens_make_json_of_random_schemas() {
    let file = demo();
    let tokenizer = Tokenizer::from_gguf(file.gguf()).expect("a tokenizer");
    let grammars = Grammars::new(&tokenizer).expect("it ends texts");
    let mut random = Random::fresh();
    for _ in 0..200 {
        let schema = schema(&mut random, 2);
        let grammar = grammars.json_schema(&schema.to_string()).expect("a schema");
        // More ids than the tokenizer has, as embeddings may.
        check(&drawn(&tokenizer, grammar, &mut random, tokenizer.vocab() + 50), &schema);
    }
}

#[test]
fn expressions_and_grammars_hold_and_what_is_none_is_an_error() {
    let file = demo();
    let tokenizer = Tokenizer::from_gguf(file.gguf()).expect("a tokenizer");
    let grammars = Grammars::new(&tokenizer).expect("it ends texts");
    let (vocab, mut random) = (tokenizer.vocab(), Random::fresh());
    for _ in 0..20 {
        let date = grammars.regex("20[0-9]{2}-(0[1-9]|1[0-2])").expect("an expression");
        let date = drawn(&tokenizer, date, &mut random, vocab);
        let (year, month) = date.split_once('-').expect("a dash");
        assert!(year.len() == 4 && year.starts_with("20") && matches!(month.parse(), Ok(1..=12)), "{date}");
        let sum = grammars.lark("start: one (\"+\" one){1,3}\none: /[1-9]/ | \"(\" /[1-9]/ \")\"").expect("a grammar");
        let sum = drawn(&tokenizer, sum, &mut random, vocab);
        let is_one = |one: &str| matches!(one.as_bytes(), [b'1'..=b'9'] | [b'(', b'1'..=b'9', b')']);
        assert!(sum.split('+').all(is_one) && (2..=4).contains(&sum.split('+').count()), "{sum}");
    }
    // An automaton of 2^40 states: what it takes is bounded, each step an answer or an error.
    let mut hostile = grammars.regex("(a|b)*a(a|b){40}c").expect("it is short");
    for step in 0..100 {
        let mut allowed = TokenSet::all(vocab);
        let Ok(()) = hostile.restrict(&mut allowed) else { break };
        let letters = (0..vocab).filter(|id| allowed.contains(*id)).collect::<Vec<_>>();
        hostile.accept(letters[step % letters.len()]).expect("it was allowed");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (what, outcome) in [
        ("no JSON", grammars.json_schema("{")),
        ("no type", grammars.json_schema(r#"{"type": "strong"}"#)),
        ("no text of it", grammars.json_schema(r#"{"type": "integer", "minimum": 3, "maximum": 2}"#)),
        ("deep", grammars.json_schema(&deep)),
        ("no expression", grammars.regex("(")),
        ("no rule", grammars.lark("start: other")),
    ] {
        let error = outcome.expect_err(what);
        assert!(matches!(&error, kiln::Error::Grammar { what } if what.len() > 3), "{what}: {error}");
    }
}

/// What is written against the compiler comes to an end, in a thread's own stack.
#[test]
fn hostile_grammars_are_answers_or_errors() {
    let file = demo();
    let tokenizer = Tokenizer::from_gguf(file.gguf()).expect("a tokenizer");
    let grammars = Grammars::new(&tokenizer).expect("it ends texts");
    let chain = |name: &str| {
        let rules = (0..4500).map(|rule| format!("{name}{rule}: {name}{}\n", rule + 1)).collect::<String>();
        format!("start: {name}0\n{rules}{name}4500: \"x\"\n")
    };
    let parts = vec![r##"{"$ref": "#"}"##; 200].join(", ");
    let made = [
        ("rules", grammars.lark(&chain("r"))),
        ("terminals", grammars.lark(&chain("T"))),
        ("parentheses", grammars.lark(&format!("start: {}", "(".repeat(60_000)))),
        ("too long", grammars.regex(&"a".repeat(1 << 20))),
        ("a circle", grammars.lark("start: other\nother: start")),
        ("a circle of terminals", grammars.lark("start: A\nA: B\nB: A")),
        ("parentheses", grammars.regex(&"(".repeat(60_000))),
        ("letters", grammars.regex(&"ab?".repeat(20_000))),
        ("either", grammars.regex(&"a|bc|".repeat(12_000))),
        ("repeats", grammars.regex("((((a{1,99}){1,99}){1,99}){1,99}){1,99}")),
        ("itself", grammars.json_schema(r##"{"$ref": "#"}"##)),
        ("itself and more", grammars.json_schema(r##"{"allOf": [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}]}"##)),
        ("often", grammars.json_schema(&format!(r#"{{"anyOf": [{parts}]}}"#))),
        ("elsewhere", grammars.json_schema(r#"{"$ref": "https://example.com/schema"}"#)),
        ("many", grammars.json_schema(&json!({"enum": (0..9000).collect::<Vec<_>>()}).to_string())),
        ("long", grammars.json_schema(r#"{"type": "array", "minItems": 1000000000}"#)),
        ("longer", grammars.json_schema(r#"{"type": "string", "minLength": 1000000000}"#)),
    ];
    for (what, outcome) in made {
        match outcome.and_then(|mut grammar| grammar.restrict(&mut TokenSet::all(tokenizer.vocab()))) {
            Ok(()) | Err(kiln::Error::Grammar { .. }) => {}
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

#[test]
#[ignore = "leaves a thread at work for a minute; .ci/long runs it in a release build"]
fn a_compilation_that_takes_long_is_not_waited_for() {
    let tokenizer = Tokenizer::from_gguf(demo().gguf()).expect("a tokenizer");
    let grammars = Grammars::new(&tokenizer).expect("it ends texts");
    let parts = vec![r##"{"$ref": "#"}"##; 4000].join(", ");
    let schema = format!(r#"{{"anyOf": [{parts}]}}"#);
    for _ in 0..8 {
        let begin = Instant::now();
        let error = grammars.json_schema(&schema).expect_err("it takes minutes");
        assert!(error.to_string().contains("more than 5s") && begin.elapsed() < Duration::from_secs(20), "{error}");
    }
    let error = grammars.regex("a").expect_err("eight are at work");
    assert!(error.to_string().contains("try again later"), "{error}");
}

/// A grammar whose time is noted.
#[derive(Debug)]
struct Timed(Grammar, Arc<Mutex<Vec<Duration>>>);

impl Constraint for Timed {
    fn restrict(&mut self, allowed: &mut TokenSet) -> kiln::Result<()> {
        let begin = Instant::now();
        let outcome = self.0.restrict(allowed);
        self.1.lock().expect("no panic").push(begin.elapsed());
        outcome
    }

    fn accept(&mut self, id: u32) -> kiln::Result<()> {
        self.0.accept(id)
    }
}

/// So many random schemas on the demo model, and the times of their masks.
fn on_the_demo_model(count: u64, depth: u32) -> Vec<Duration> {
    let device = common::device_with(DeviceConfig { checks: Checks::NONE, ..DeviceConfig::default() });
    let file = demo();
    let tokenizer = Tokenizer::from_gguf(file.gguf()).expect("a tokenizer");
    let baked = file.baked().expect("it is baked by default");
    let model = Model::load(&device, baked, file, |_| {}).expect("it loads");
    let grammars = Grammars::new(&tokenizer).expect("it ends texts");
    let options = SessionOptions::default().with_path(PathChoice::Stream).with_capacity(1024);
    let mut session = model.session(options).expect("a session");
    let (mut random, times) = (Random::fresh(), Arc::default());
    for seed in 0..count {
        let schema = schema(&mut random, depth);
        session.truncate(0);
        session.append(&tokenizer.encode("A crate as JSON: ", Special::Plain)).expect("it fits");
        let grammar = Timed(grammars.json_schema(&schema.to_string()).expect("a schema"), Arc::clone(&times));
        let temperature = if seed % 2 == 0 { 0.0 } else { 1.0 };
        let options = GenerateOptions::new(MOST).with_sampling(Sampling::new(temperature, seed));
        let mut stream = session.text(&tokenizer, options).with_constraint(grammar);
        let text: String = stream.by_ref().collect::<kiln::Result<_>>().expect("it generates");
        assert!(matches!(stream.end(), Some(End::StopId(_))), "{:?}: {text} of {schema}", stream.end());
        check(&text, &schema);
    }
    Arc::try_unwrap(times).expect("the grammars are gone").into_inner().expect("no panic")
}

#[test]
fn the_demo_model_writes_json_of_random_schemas() {
    on_the_demo_model(4, 1);
}

#[test]
#[ignore = "minutes in a debug build; .ci/long runs it in a release build"]
fn the_demo_model_writes_json_of_200_random_schemas() {
    let mut times = on_the_demo_model(200, 2);
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!("{} masks: median {:?}, of 99 % at most {:?}, longest {:?}", times.len(), at(50), at(99), at(100));
}
