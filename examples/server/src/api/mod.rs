//! OpenAI's protocol: `request` is what clients send, `reply` what they get, `error` what they get instead.

mod error;
mod reply;
mod request;

pub(crate) use error::ApiError;
pub(crate) use reply::{Answer, Ask, seconds, usage};
pub(crate) use request::{Kind, Request};
