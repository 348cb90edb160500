//! The tokenizer and chat template against what llama.cpp and Hugging Face give, and against hostile input.
#![cfg(feature = "text")]

use std::time::{Duration, Instant};

use kiln::text::{ChatMessage, ChatOptions, ChatTemplate, Special, TextError, Tokenizer};
use kiln_shape::Gguf;
use kiln_shape::gguf::{GgufWriter, Strings, Value};
use kiln_testing::json::Json;

fn demo() -> Gguf {
    Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf")).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(&demo()).unwrap()
}

fn expected() -> Json {
    Json::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokens.json"))
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

#[test]
fn ids_are_those_of_llama_cpp_and_hugging_face() {
    let (tokenizer, expected) = (tokenizer(), expected());
    let cases = expected.get("cases").list();
    assert!(cases.len() > 200);
    for case in cases {
        let text = case.get("text").str();
        assert_eq!(tokenizer.encode(text, Special::Plain), case.get("ids").ids(), "{text:?}");
        assert_eq!(tokenizer.encode(text, Special::Parse), case.get("ids_special").ids(), "{text:?} parsed");
    }
}

#[test]
fn text_is_not_normalised() {
    let (tokenizer, expected) = (tokenizer(), expected());
    for case in expected.get("not_nfc").list() {
        let text = case.get("text").str();
        assert_eq!(tokenizer.encode(text, Special::Plain), case.get("llama").ids(), "{text:?}");
        assert_ne!(case.get("llama"), case.get("tokenizers"), "{text:?} shows nothing");
    }
}

#[test]
fn chat_is_rendered_by_the_models_own_template() {
    let gguf = demo();
    let (tokenizer, expected) = (tokenizer(), expected());
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer).unwrap();
    for case in expected.get("chat").list() {
        let message = |m: &Json| ChatMessage::new(m.get("role").str(), m.get("content").str());
        let messages: Vec<ChatMessage> = case.get("messages").list().iter().map(message).collect();
        let text = template.render(&messages, &ChatOptions::default()).unwrap();
        assert_eq!(text, case.get("text").str());
        assert_eq!(tokenizer.encode(&text, Special::Parse), case.get("ids").ids());
    }
    let without = ChatOptions::default().with_generation_prompt(false);
    let turns = [ChatMessage::new("system", "Be short."), ChatMessage::new("user", "<b>&'\"")];
    assert_eq!(
        template.render(&turns, &without).unwrap(),
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n<b>&'\"<|im_end|>\n"
    );
}

#[test]
fn any_text_comes_back() {
    let tokenizer = tokenizer();
    let alphabet: Vec<char> =
        " \t\r\n\u{a0}\u{2003}\u{85}aZéßĹ\u{301}日本🦀👩‍👧½²Ⅷ٣09'sLL.,!?-_/<|im_end|>\0\u{7f}\u{feff}\u{10ffff}"
            .chars()
            .collect();
    let mut random = Random(5);
    for _ in 0..2000 {
        let text: String = (0..random.below(40)).map(|_| alphabet[random.below(alphabet.len())]).collect();
        for special in [Special::Plain, Special::Parse] {
            let ids = tokenizer.encode(&text, special);
            assert_eq!(tokenizer.decode(&ids, special), text);
        }
    }
}

#[test]
fn streamed_text_holds_whole_characters_only_and_is_the_text() {
    let tokenizer = tokenizer();
    let text = "naïve — 👩‍👩‍👧 日本語 🦀!";
    let mut decoder = tokenizer.decoder(Special::Plain);
    let mut streamed = String::new();
    for id in tokenizer.encode(text, Special::Plain) {
        decoder.push(id, &mut streamed);
        assert!(text.starts_with(&streamed), "{streamed:?}");
    }
    assert_eq!(streamed, text);
}

#[test]
fn bytes_that_are_no_character_are_replaced_as_soon_as_that_is_known() {
    let tokenizer = tokenizer();
    let byte = |wanted: u8| (0..tokenizer.vocab()).find(|&id| tokenizer.token_bytes(id).unwrap() == [wanted]).unwrap();
    let mut decoder = tokenizer.decoder(Special::Plain);
    let mut text = String::new();
    for (bytes, so_far) in [
        (&[0xe2, 0x82][..], ""),        // the beginning of €
        (b"a", "\u{fffd}a"),            // which it does not become
        (&[0xff], "\u{fffd}a\u{fffd}"), // never part of a character
        (&[0xf0, 0x9f, 0xa6], "\u{fffd}a\u{fffd}"),
        (&[0x80], "\u{fffd}a\u{fffd}🦀"),
    ] {
        bytes.iter().for_each(|&b| decoder.push(byte(b), &mut text));
        assert_eq!(text, so_far);
    }
    decoder.push(byte(0xc3), &mut text);
    decoder.finish(&mut text);
    assert!(text.ends_with("🦀\u{fffd}"));

    let lossy = String::from_utf8_lossy(&[0x80, 0xf1, b'x', 0xe2, 0x82, 0xc3, 0xa9]).into_owned();
    let ids: Vec<u32> = [0x80, 0xf1, b'x', 0xe2, 0x82, 0xc3, 0xa9].map(byte).into();
    assert_eq!(tokenizer.decode(&ids, Special::Plain), lossy);
}

#[test]
fn an_id_beyond_the_tokenizer_is_a_replacement_and_the_text_goes_on() {
    // A model's embedding may have more rows than its tokenizer has tokens.
    let tokenizer = tokenizer();
    let mut ids = tokenizer.encode("before 🦀", Special::Plain);
    ids.pop(); // the crab has lost a byte at least
    ids.extend([tokenizer.vocab(), u32::MAX]);
    ids.extend(tokenizer.encode(" behind", Special::Plain));
    let text = "before \u{fffd}\u{fffd}\u{fffd} behind";
    for special in [Special::Plain, Special::Parse] {
        assert_eq!(tokenizer.decode(&ids, special), text);
        let mut decoder = tokenizer.decoder(special);
        let mut streamed = String::new();
        ids.iter().for_each(|&id| decoder.push(id, &mut streamed));
        assert_eq!(streamed, text);
    }
}

#[test]
fn control_tokens_are_left_out_of_plain_text_and_ids_are_checked() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("a<|im_end|><think>b", Special::Parse);
    assert_eq!(ids.len(), 4);
    assert_eq!(tokenizer.decode(&ids, Special::Plain), "a<think>b");
    assert_eq!(tokenizer.decode(&ids, Special::Parse), "a<|im_end|><think>b");
    let spelled = tokenizer.encode("a<|im_end|>b", Special::Plain);
    assert!(spelled.iter().all(|id| !tokenizer.is_control(*id)), "{spelled:?}");
    assert_eq!(tokenizer.decode(&spelled, Special::Plain), "a<|im_end|>b");
    let error = tokenizer.token_bytes(2048).unwrap_err();
    assert_eq!(error.to_string(), "token 2048 is outside the vocabulary of 2048 tokens");
    assert_eq!(
        (tokenizer.eos(), tokenizer.bos(), tokenizer.end_of_generation()),
        (Some(2042), Some(2040), &[2040, 2042][..])
    );
    assert!(tokenizer.is_end_of_generation(2042) && !tokenizer.is_end_of_generation(2041));
}

#[test]
fn time_grows_with_the_text_whatever_it_is() {
    let tokenizer = tokenizer();
    let half = 1 << 16;
    for unit in ["a", " ", "\n", " \n", "ab", "th", "he", "é", "!", "1", "<", "<|im_end|>", "'", "\u{a0}", "日"] {
        let took = |len: usize| {
            let text = unit.repeat(len / unit.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, Special::Parse);
            let time = start.elapsed();
            assert_eq!(tokenizer.decode(&ids, Special::Parse), text);
            time
        };
        // A quadratic step takes four times as long for twice the text. A busy machine may upset a measurement or two.
        let linear = (0..4).any(|_| took(2 * half) < 3 * took(half) + Duration::from_millis(50));
        assert!(linear, "{unit:?}");
    }
}

/// A tokenizer section of 256 bytes and what else is given.
fn writer(more: &[(&str, i32)], merges: &[&str]) -> GgufWriter {
    let demo = demo();
    let bytes = demo.strings("tokenizer.ggml.tokens").unwrap();
    let texts = bytes.iter().take(256).chain(more.iter().map(|(text, _)| *text));
    let types: Vec<i32> = std::iter::repeat_n(1, 256).chain(more.iter().map(|(_, ty)| *ty)).collect();
    let mut writer = GgufWriter::new();
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "qwen2");
    writer.set("tokenizer.ggml.tokens", texts.collect::<Strings>());
    writer.set("tokenizer.ggml.token_type", types);
    writer.set("tokenizer.ggml.merges", merges.iter().collect::<Strings>());
    writer
}

fn build(writer: GgufWriter) -> Result<Tokenizer, TextError> {
    Tokenizer::from_gguf(&Gguf::from_bytes(&writer.start(Vec::new()).unwrap().finish().unwrap()).unwrap())
}

#[test]
fn a_tokenizer_that_is_not_understood_is_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut writer = writer(&[], &[]);
        writer.set(key, value);
        build(writer).unwrap_err().to_string()
    };
    let contains = |message: String, parts: &[&str]| {
        parts.iter().for_each(|part| assert!(message.contains(part), "{message}: no `{part}`"));
    };
    contains(with("tokenizer.ggml.model", "llama".into()), &["`llama`", "gpt2"]);
    contains(with("tokenizer.ggml.pre", "llama-bpe".into()), &["`llama-bpe`", "qwen2"]);
    contains(with("tokenizer.ggml.tokens", 1_u32.into()), &["tokenizer.ggml.tokens", "u32", "array of strings"]);
    contains(with("tokenizer.ggml.token_type", vec![1_i32].into()), &["1 entries for 256"]);
    contains(with("tokenizer.ggml.eos_token_id", 256_u32.into()), &["eos_token_id 256", "256 tokens"]);
    for rule in ["ab", "a ", " a", ""] {
        contains(with("tokenizer.ggml.merges", Strings::from_iter(["a b", rule]).into()), &["merge 1", "two parts"]);
    }
    let letters: Strings = ('a'..='z').map(String::from).collect();
    let mut few = writer(&[], &[]);
    few.set("tokenizer.ggml.tokens", letters);
    few.set("tokenizer.ggml.token_type", vec![1_i32; 26]);
    contains(build(few).unwrap_err().to_string(), &["no token for byte 0x00"]);
}

#[test]
fn merges_go_by_rank_then_from_left_to_right() {
    let tokens = [("ab", 1), ("bc", 1), ("abc", 1), ("aa", 1)];
    let tokenizer = build(writer(&tokens, &["b c", "a b", "a bc", "a a"])).unwrap();
    let texts = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text, Special::Plain);
        ids.iter().map(|&id| String::from_utf8(tokenizer.token_bytes(id).unwrap().into()).unwrap()).collect()
    };
    assert_eq!(texts("abc"), ["abc"]);
    assert_eq!(texts("abab"), ["ab", "ab"]);
    assert_eq!(texts("aaaaa"), ["aa", "aa", "a"]);
    assert_eq!(texts("aabcb"), ["a", "abc", "b"]);
}

/// A rule may lead to a text that is no token: it is then spelled in bytes, and rules go on from it.
#[test]
fn a_merge_that_is_no_token_is_spelled_or_merged_on() {
    let tokenizer = build(writer(&[("xyz", 1)], &["x y", "xy z"])).unwrap();
    let count = |text: &str| tokenizer.encode(text, Special::Plain).len();
    assert_eq!((count("xyz"), count("xy"), count("xyxyz")), (1, 2, 3));
}

#[test]
fn a_beginning_token_is_added_only_where_the_file_says_so() {
    for add in [false, true] {
        let mut writer = writer(&[("<s>", 3)], &[]);
        writer.set("tokenizer.ggml.bos_token_id", 256_u32);
        writer.set("tokenizer.ggml.add_bos_token", add);
        let ids = build(writer).unwrap().encode("a", Special::Plain);
        assert_eq!(ids.first() == Some(&256), add);
    }
}

#[test]
fn every_end_that_the_file_names_ends_a_generation() {
    let mut writer = writer(&[("<a>", 3), ("<b>", 3), ("<c>", 3)], &[]);
    writer.set("tokenizer.ggml.eos_token_id", 258_u32);
    writer.set("tokenizer.ggml.eot_token_id", 256_u32);
    assert_eq!(build(writer).unwrap().end_of_generation(), [256, 258]);
}

/// What the templates of Qwen2.5 and Qwen3 ask of Jinja.
#[test]
fn templates_written_for_python_work() {
    let messages = [
        ChatMessage::new("system", "S"),
        ChatMessage::new("user", "hello"),
        ChatMessage::new("assistant", "<think>\nhm\n</think>\n\nanswer"),
        ChatMessage::new("user", "<tool_response>x</tool_response>"),
    ];
    let render = |source: &str, options: &ChatOptions| {
        let template = ChatTemplate::new(source, "<s>".into(), "</s>".into())?;
        template.render(&messages, options)
    };
    let plain = ChatOptions::default();
    let cases = [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if tools %}t{% else %}none{% endif %}", "none"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{%- if messages[0].role == 'system' %}\n    {{- messages[0].content + '\\n\\n' }}\n{%- endif %}", "S\n\n"),
        (
            "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}\
          {% if ns.last < 0 and m.role == \"user\" and not(m.content.startswith('<tool') and m.content.endswith('e>')) %}\
          {% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}",
            "1",
        ),
        ("{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}", "answer"),
        ("{{ messages[2].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}", "hm"),
        ("{% if '</think>' in messages[2].content %}yes{% endif %}", "yes"),
        (
            "{% if messages[1].reasoning_content is string %}r{% endif %}{% if messages[1].tool_calls %}c{% endif %}-",
            "-",
        ),
        (
            "{% if messages[1].reasoning_content is defined and messages[1].reasoning_content is not none %}r{% endif %}-",
            "-",
        ),
        ("{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}-", "-"),
        (
            "{% for m in messages %}{% if loop.first or not loop.last and loop.index0 == 2 %}{{ loop.index }}{% endif %}{% endfor %}",
            "13",
        ),
        (
            "{{ {'b': [1, 2.5, true, none], 'a': '<é>\\n\"'} | tojson }}",
            "{\"b\": [1, 2.5, true, null], \"a\": \"<é>\\n\\\"\"}",
        ),
        (
            "{{ ' x '.strip() }}{{ 'xax'.strip('x') }}{{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ 'a b  c'.split()|length }}",
            "xaABab3",
        ),
        (
            "{{ 'a-b-c'.split('-', 1)[1] }}{{ 'aab'.replace('a', 'é').find('b') }}{{ 'x'.startswith(('y', 'x')) }}",
            "b-c2True",
        ),
        (
            "{% for k, v in {'k': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'k': 1}.get('z', 9) }}{{ messages[0].get('role') }}",
            "k19system",
        ),
        (
            "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('a') }}{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "aa01",
        ),
    ];
    for (source, text) in &cases {
        assert_eq!(render(source, &plain).unwrap(), *text, "{source}");
    }
    let off = ChatOptions::default().with_thinking(false);
    assert_eq!(
        render("{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}", &off).unwrap(),
        "off"
    );

    let called = ChatMessage::new("assistant", "").with_reasoning("why").with_tool_calls(r#"[{"name": "f"}]"#);
    let tools = ChatOptions::default().with_tools(r#"[{"type": "function"}]"#);
    let source = "{{ messages[0].reasoning_content }}{{ messages[0].tool_calls[0].name }}{{ tools[0].type }}";
    let template = ChatTemplate::new(source, String::new(), String::new()).unwrap();
    assert_eq!(template.render(&[called], &tools).unwrap(), "whyffunction");
    let broken = ChatMessage::new("assistant", "").with_tool_calls("[{");
    assert!(template.render(&[broken], &tools).unwrap_err().to_string().contains("JSON"));

    for (source, part) in [
        ("{% if %}", "chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'x'.swapcase() }}", "swapcase"),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
            "fuel",
        ),
    ] {
        let error = render(source, &plain).unwrap_err();
        assert!(matches!(error, TextError::Template { .. }));
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_damaged_tokenizer_section_is_an_error_or_works_but_never_panics() {
    let tokens = [("ab", 1), ("Ġa", 1), ("<|im_end|>", 3), ("<x>", 4), ("[PAD]", 5)];
    let mut writer = writer(&tokens, &["a b", "Ġ a", "ab Ġa"]);
    writer.set("tokenizer.ggml.eos_token_id", 258_u32);
    writer.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content.strip() }}{% endfor %}");
    let file = writer.start(Vec::new()).unwrap().finish().unwrap();
    let messages = [ChatMessage::new("user", " x ")];
    let mut random = Random(11);
    let mut built = 0;
    for _ in 0..3000 {
        let mut damaged = file.clone();
        for _ in 0..=random.below(6) {
            let at = random.below(damaged.len());
            damaged[at] = [b' ', 0, 1, 3, 0xff, b'{', b'a', random.below(256) as u8][random.below(8)];
        }
        let Ok(gguf) = Gguf::from_bytes(&damaged) else { continue };
        let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else { continue };
        built += 1;
        for special in [Special::Plain, Special::Parse] {
            let ids = tokenizer.encode("ab a <|im_end|><x> \u{85}é", special);
            assert!(ids.iter().all(|&id| id < tokenizer.vocab()));
            tokenizer.decode(&ids, special);
        }
        if let Ok(template) = ChatTemplate::from_gguf(&gguf, &tokenizer) {
            let _ = template.render(&messages, &ChatOptions::default());
        }
    }
    assert!(built > 100, "{built} of the damaged files were still a tokenizer");
}
