//! What can be asked for.

use crate::api::{Answer, ApiError, Ask, Kind, Request, seconds, usage};
use crate::config::Arguments;
use crate::engine::{Engine, Event, Job, Refused};
use crate::{key, sse};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// What every route knows.
#[derive(Clone)]
pub(crate) struct Served {
    engine: Arc<Engine>,
    key: Option<Arc<str>>,
    max_body: usize,
    body_time: Duration,
}

/// All routes.
pub(crate) fn router(engine: Arc<Engine>, arguments: &Arguments) -> Router {
    let key = arguments.api_key.as_deref().map(Arc::from);
    let served = Served { engine, key, max_body: arguments.max_body, body_time: arguments.body() };
    let no_route = |uri: Uri| async move { ApiError::no_route(uri.path()) };
    let no_method = |method: Method, uri: Uri| async move { ApiError::no_method(method.as_str(), uri.path()) };
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(served.clone(), watch))
        .with_state(served)
}

/// Asks for the key, and counts responses.
async fn watch(State(served): State<Served>, request: HttpRequest, next: Next) -> Response {
    let is_open = served.key.as_ref().is_none_or(|key| key::is_right(request.headers(), key));
    let response = match is_open || request.uri().path() == "/health" {
        true => next.run(request).await,
        false => ApiError::wrong_key().into_response(),
    };
    served.engine.metrics.responded(response.status().as_u16());
    response
}

async fn chat(State(served): State<Served>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    answer(served, Kind::Chat, headers, body).await
}

async fn completion(State(served): State<Served>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    answer(served, Kind::Text, headers, body).await
}

async fn answer(served: Served, kind: Kind, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let engine = &served.engine;
    let request = Request::parse(&served.read(&headers, body).await?)?;
    let name = &engine.settings.name;
    if let Some(asked) = request.model.as_ref().filter(|asked| *asked != name) {
        return Err(ApiError::no_model(asked, name));
    }
    let streams = request.stream == Some(true);
    let tells_usage = request.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true));
    let (prompt, wish) = request.into_wish(kind, engine.settings.max_tokens, engine.vocab())?;
    let ask = Ask::new(kind, name, wish.logprobs.is_some(), streams && tells_usage);
    let (sender, mut events) = mpsc::unbounded_channel();
    engine.queue.put(Job { prompt, wish, events: sender }).map_err(|refused| match refused {
        Refused::Full(waiting) => ApiError::queue_full(waiting, 1 + (waiting / engine.settings.workers) as u64),
        Refused::Closed => ApiError::ending(),
    })?;
    // A client that leaves while it waits drops this, and with it the channel's end.
    let (prompt, cached) = match events.recv().await {
        Some(Event::Begun { prompt, cached }) => (prompt, cached),
        Some(Event::Failed(error)) => return Err(error),
        Some(Event::Text(_) | Event::Ended(..)) | None => return Err(ApiError::ending()),
    };
    if streams {
        return Ok(sse::response(ask, events, prompt, cached));
    }
    let mut answer = Answer::default();
    loop {
        match events.recv().await {
            Some(Event::Begun { .. }) => {}
            Some(Event::Text(piece)) => answer.push(piece),
            Some(Event::Ended(finish, tokens)) => {
                return Ok(json_response(&answer.whole(&ask, finish, usage(prompt, cached, tokens))));
            }
            Some(Event::Failed(error)) => return Err(error),
            None => return Err(ApiError::ending()),
        }
    }
}

impl Served {
    /// The body, if it is JSON, of the size that is allowed, and comes in time.
    async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
        // A page in a browser can send other types to this address without asking.
        let ty = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !ty.split(';').next().is_some_and(|ty| ty.trim().eq_ignore_ascii_case("application/json")) {
            return Err(ApiError::no_json());
        }
        if hyper::body::Body::size_hint(&body).lower() > self.max_body as u64 {
            return Err(ApiError::too_large(self.max_body));
        }
        timeout(self.body_time, self.collect(body)).await.map_err(|_| ApiError::too_slow())?
    }

    async fn collect(&self, mut body: Body) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(ApiError::malformed)?;
            let data: Bytes = frame.into_data().unwrap_or_default();
            if bytes.len() + data.len() > self.max_body {
                return Err(ApiError::too_large(self.max_body));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    fn model(&self) -> Value {
        let (name, created) = (&self.engine.settings.name, seconds(self.engine.since));
        json!({"id": name, "object": "model", "created": created, "owned_by": "kiln", "max_model_len": self.engine.capacity()})
    }
}

fn json_response(value: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn models(State(served): State<Served>) -> Response {
    json_response(&json!({"object": "list", "data": [served.model()]}))
}

async fn model(State(served): State<Served>, Path(name): Path<String>) -> Result<Response, ApiError> {
    match name == served.engine.settings.name {
        true => Ok(json_response(&served.model())),
        false => Err(ApiError::no_model(&name, &served.engine.settings.name)),
    }
}

async fn health(State(served): State<Served>) -> Response {
    match served.engine.is_well() {
        true => json_response(&json!({"status": "ok"})),
        false => (StatusCode::SERVICE_UNAVAILABLE, json_response(&json!({"status": "unavailable"}))).into_response(),
    }
}

async fn metrics(State(served): State<Served>) -> Response {
    let engine = &served.engine;
    let text = engine.metrics.text(engine.queue.len(), engine.kept());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
