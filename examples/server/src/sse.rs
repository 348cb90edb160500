//! Answers as streams of events, in the form that browsers call server-sent events.

use crate::api::{Ask, usage};
use crate::engine::Event;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::{Bytes, Frame};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::UnboundedReceiver;

/// A response that streams the events behind [`Event::Begun`].
pub(crate) fn response(ask: Ask, events: UnboundedReceiver<Event>, prompt: usize, cached: usize) -> Response {
    let begin = ask.opening();
    let body = Body::new(Stream { ask, events, prompt, cached, begin, ended: false });
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")], body).into_response()
}

/// The body. Where its client leaves it is dropped, which closes the channel, which ends the answer.
struct Stream {
    ask: Ask,
    events: UnboundedReceiver<Event>,
    prompt: usize,
    cached: usize,
    /// What comes before all events.
    begin: Option<Value>,
    ended: bool,
}

fn line(value: &Value) -> String {
    format!("data: {value}\n\n")
}

impl Stream {
    /// What an event looks like; empty for one that is not told.
    fn told(&mut self, event: Option<Event>) -> String {
        match event {
            Some(Event::Begun { .. }) => String::new(),
            Some(Event::Text(piece)) => line(&self.ask.piece(&piece)),
            Some(Event::Ended(finish, tokens)) => {
                self.ended = true;
                let mut text = line(&self.ask.closing(finish));
                if self.ask.usage {
                    text += &line(&self.ask.usage_chunk(usage(self.prompt, self.cached, tokens)));
                }
                text + "data: [DONE]\n\n"
            }
            Some(Event::Failed(error)) => {
                self.ended = true;
                line(&error.json())
            }
            None => {
                self.ended = true;
                line(&crate::api::ApiError::ending().json())
            }
        }
    }
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(begin) = self.begin.take() {
            return Poll::Ready(Some(Ok(Frame::data(line(&begin).into()))));
        }
        while !self.ended {
            let event = ready!(self.events.poll_recv(context));
            let text = self.told(event);
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
