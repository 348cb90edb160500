//! Conversations with the demo model: what has run does not run again, and an answer is that of a session that begins anew.

use crate::text::model;
use kiln::Error;
use kiln::chat::Chat;
use kiln::model::{End, GenerateOptions, PathChoice, Sampling, SessionOptions};
use kiln::text::{ChatMessage, ChatOptions, ChatTemplate, Special, StopStrings};

const COUNT: usize = 6;

fn options() -> SessionOptions {
    SessionOptions::default().with_path(PathChoice::Stream).with_capacity(256)
}

fn text(chat: &mut Chat, said: &str) -> String {
    let sampling = Sampling::new(0.7, 2);
    let answer = chat.say(said, GenerateOptions::new(COUNT).with_sampling(sampling)).expect("it fits");
    answer.collect::<kiln::Result<String>>().expect("it generates")
}

#[test]
fn a_conversation_runs_only_what_is_new() {
    let (model, tokenizer) = model();
    let mut chat = Chat::new(&model, options()).expect("a template").with_system("Be brief.");
    let first = text(&mut chat, "What is a borrow?");
    let roles = |chat: &Chat| chat.messages().iter().map(|message| message.role.clone()).collect::<Vec<_>>();
    assert_eq!(roles(&chat), ["system", "user", "assistant"]);
    assert_eq!(chat.messages()[2].content, first);
    let (ran, held) = (chat.session().work().tokens, chat.session().tokens().to_vec());
    text(&mut chat, "And a move?");
    assert_eq!(chat.session().tokens()[..held.len()], held, "the answer stands as the model spelled it");
    let new = (chat.session().tokens().len() - held.len()) as u64;
    // The last token of the first answer had not run, that of the second has not.
    assert!(chat.session().work().tokens <= ran + new, "{} of {new} new ones", chat.session().work().tokens - ran);

    // The same messages in a session that begins anew.
    let messages = chat.messages()[..4].to_vec();
    let template = ChatTemplate::from_gguf(model.gguf(), &tokenizer).expect("a template");
    let prompt = template.render(&messages, &ChatOptions::default()).expect("it renders");
    let ids = tokenizer.encode(&prompt, Special::Parse);
    assert_eq!(tokenizer.decode(&chat.session().tokens()[..ids.len()], Special::Parse), prompt);
    let mut fresh = Chat::new(&model, options()).expect("a template");
    fresh.set_messages(messages);
    let greedy = |chat: &mut Chat| {
        let answer = chat.answer(GenerateOptions::new(COUNT)).expect("it fits");
        answer.collect::<kiln::Result<String>>().expect("it generates")
    };
    let anew = greedy(&mut fresh);
    chat.set_messages(fresh.messages()[..4].to_vec());
    let before = chat.session().work().tokens;
    assert_eq!(greedy(&mut chat), anew);
    assert!(chat.session().work().tokens - before < ids.len() as u64, "the prompt is there already");
    chat.clear();
    assert_eq!(roles(&chat), ["system"]);
}

#[test]
fn an_answer_that_is_cancelled_or_refused_loses_nothing() {
    let (model, _) = model();
    let mut chat = Chat::new(&model, options())
        .expect("a template")
        .with_stop(StopStrings::new(["never"]).expect("it is not empty"));
    let mut answer = chat.say("Go on.", GenerateOptions::new(100)).expect("it fits");
    answer.next().expect("text").expect("no fault");
    answer.cancel_handle().cancel();
    assert!(answer.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(answer.end(), Some(End::Cancelled));
    let so_far = answer.text().to_owned();
    drop(answer);
    assert_eq!(chat.messages().last(), Some(&ChatMessage::new("assistant", so_far)));

    let messages = chat.messages().to_vec();
    let tokens = chat.session().tokens().to_vec();
    let error = chat.say("long ".repeat(300), GenerateOptions::new(1)).err();
    assert!(matches!(error, Some(Error::ContextFull { .. })), "{error:?}");
    assert_eq!((chat.messages(), chat.session().tokens()), (&messages[..], &tokens[..]));
    assert!(!text(&mut chat, "Shorter.").is_empty());

    let source = "{{ raise_exception('no users here') }}";
    let template = ChatTemplate::new(source, String::new(), String::new()).expect("it is Jinja");
    let tokenizer = kiln::text::Tokenizer::from_gguf(model.gguf()).expect("a tokenizer");
    let mut refused = Chat::with_parts(model.session(options()).expect("a session"), tokenizer, template);
    let error = refused.say("Hello", GenerateOptions::new(1)).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("no users here")) && refused.messages().is_empty());
}
