//! Connections, and how long each may take.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::{State, router};
use crate::tls::Tls;

/// The largest body that is read: a request of a hundred long descriptors is a tenth of it.
const LARGEST_BODY: usize = 64 * 1_024;

/// The largest head. The smallest that hyper can be told is 8 KiB.
const LARGEST_HEAD: usize = 16 * 1_024;

const MOST_HEADERS: usize = 64;

/// Probes, a few scrapers and a few people need a dozen; beyond this, newcomers wait to be accepted.
const MOST_CONNECTIONS: usize = 512;

/// How long a head may take, and how long a connection may lie idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// After this a connection ends with its next answer, or [`LAST_ANSWER`] later: a client that does not
/// read keeps its place no longer than that.
const OLDEST_CONNECTION: Duration = Duration::from_secs(300);

/// How long answers may still take once a connection, or the server, is to end.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// Serves the port until `shutdown`, then lets the answers under way finish; over TLS with certificates.
pub async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let router = router(state).layer(DefaultBodyLimit::max(LARGEST_BODY));
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    // Each connection holds a receiver: it hears when to end, and the sender when all have.
    let (end, _) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut shutdown => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, end, tls) = (router.clone(), end.subscribe(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => connection(stream, router, end).await,
                        Some(tls) => match timeout(HEAD_TIMEOUT, tls.http().accept(stream)).await {
                            Ok(Ok(stream)) => connection(stream, router, end).await,
                            broken => tracing::debug!(?broken, "no TLS handshake on the HTTP port"),
                        },
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Most likely no file descriptor is left; the next moment there may be one.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let _ = end.send(());
    end.closed().await;
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    mut end: watch::Receiver<()>,
) {
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MOST_HEADERS)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    let served = tokio::select! {
        served = &mut connection => Ok(served),
        _ = end.changed() => Err(()),
        () = tokio::time::sleep(OLDEST_CONNECTION) => Err(()),
    };
    let served = match served {
        Ok(served) => served,
        Err(()) => {
            connection.as_mut().graceful_shutdown();
            let Ok(served) = timeout(LAST_ANSWER, connection).await else {
                tracing::debug!("an HTTP connection was cut while answering");
                return;
            };
            served
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "an HTTP connection broke");
    }
}
