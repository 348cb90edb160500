//! Connections: accepted up to a number, held to their times, and ended on SIGTERM.

use crate::api::ApiError;
use crate::config::Arguments;
use crate::engine::{Engine, Event};
use crate::patient::Patient;
use crate::{note, routes};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// What a request's head may have.
const HEADERS: usize = 64;
const HEAD_BYTES: usize = 64 << 10;
/// Behind the time for answers: for clients to be told that theirs was ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Before accepting is tried again, where the system had no room.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until SIGTERM or SIGINT, and then until answers have ended, or their time is over.
pub(crate) async fn serve(
    listener: std::net::TcpListener,
    engine: Arc<Engine>,
    arguments: &Arguments,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let router = routes::router(engine.clone(), arguments);
    let (room, graceful) = (Arc::new(Semaphore::new(arguments.connections)), GracefulShutdown::new());
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(arguments.head()).max_headers(HEADERS).max_buf_size(HEAD_BYTES);
    let mut told = std::pin::pin!(told_to_end()?);
    loop {
        let accepted = tokio::select! {
            _ = &mut told => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                note(format_args!("a connection was not accepted: {error}\n"));
                sleep(PAUSE).await;
                continue;
            }
        };
        // Text is sent as it comes, a little at a time.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(Patient::new(stream, arguments.stall()));
        let connection = graceful.watch(http.serve_connection(io, TowerToHyperService::new(router.clone())));
        let engine = engine.clone();
        tokio::spawn(async move {
            let _counted = engine.metrics.connections.enter();
            // What a client does wrong ends its own connection.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    note("ending: no more requests are taken\n");
    for job in engine.queue.close() {
        let _ = job.events.send(Event::Failed(ApiError::ending()));
    }
    let mut ended = std::pin::pin!(graceful.shutdown());
    if timeout(arguments.grace(), &mut ended).await.is_err() {
        engine.cancel_all();
        let _ = timeout(LAST_WORDS, ended).await;
    }
    Ok(())
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

/// Comes when the process is told to end.
#[cfg(unix)]
fn told_to_end() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Comes when the process is told to end.
#[cfg(not(unix))]
fn told_to_end() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
