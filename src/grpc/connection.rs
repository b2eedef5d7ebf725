//! The connections of the gRPC port: TLS, what they may speak, how long they last, how they end.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use super::arrival::{Arrival, Noted};
use super::call::{self, Reply};
use super::complaints::Complaints;
use super::rate_limit::RateLimits;
use super::socket::Socket;
use crate::clock::Clock;
use crate::gather::Gathering;
use crate::store::Store;
use crate::tls::Tls;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a caller that was told to leave may take to end its calls.
const GRACE: Duration = Duration::from_secs(60);

/// How many calls may be given up before we have seen them, as happens to those of Envoy while we stall; more
/// of them end the connection. h2's own bound of twenty is passed by a stall of a few milliseconds.
const MOST_GIVEN_UP: usize = 4_096;

/// What is said and done on each connection.
pub(super) struct Connections<S, C> {
    pub(super) service: Arc<RateLimits<S, C>>,
    /// All other methods.
    pub(super) routes: Routes,
    pub(super) tls: Option<Tls>,
    /// After this, more or less, a caller is told to connect anew.
    pub(super) age: Option<Duration>,
    pub(super) complaints: Arc<Complaints<C>>,
}

impl<S: Store, C: Clock> Connections<S, C> {
    /// Accepts connections until `shutdown`, then asks callers to leave and waits until they have.
    pub(super) async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let this = Arc::new(self);
        // Each connection holds a receiver: it hears when to end, and the sender when all have.
        let (end, _) = watch::channel(());
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    tokio::spawn(Arc::clone(&this).connection(stream, peer, end.subscribe()));
                }
                Err(error) => {
                    // The next moment it may work.
                    this.complaints.not_accepted(&error);
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(listener);
        let _ = end.send(());
        end.closed().await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, end: watch::Receiver<()>) {
        // Answers are small: Nagle's algorithm would hold them for an acknowledgement, 40 ms late.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a gRPC connection was closed at once");
            return;
        }
        let info = TcpConnectInfo {
            local_addr: stream.local_addr().ok(),
            remote_addr: Some(peer),
        };
        let Some(tls) = &self.tls else {
            return self.http2(stream, info, end).await;
        };
        match timeout(HANDSHAKE, tls.grpc().accept(stream)).await {
            Ok(Ok(stream)) => self.http2(stream, info, end).await,
            Ok(Err(error)) => self.complaints.handshake(&error, peer),
            Err(_) => tracing::debug!(%peer, "no TLS handshake within {HANDSHAKE:?}"),
        }
    }

    async fn http2(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        info: TcpConnectInfo,
        mut end: watch::Receiver<()>,
    ) {
        let (complaints, peer, over_tls) =
            (Arc::clone(&self.complaints), info.remote_addr, self.tls.is_some());
        let stream = Noted::new(stream);
        let arrival = stream.arrival();
        let socket = Socket::new(Gathering::new(stream), move |instead| {
            complaints.not_http2(instead, over_tls, peer);
        });
        let (this, age) = (Arc::clone(&self), self.age);
        let service = service_fn(move |request| this.answer(request, info.clone(), &arrival));
        let mut connection = pin!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                // All calls of an Envoy's worker come on one connection.
                .max_concurrent_streams(None)
                // Not for gRPC, and no need to look at the calendar for it.
                .auto_date_header(false)
                .max_pending_accept_reset_streams(MOST_GIVEN_UP)
                .serve_connection(TokioIo::new(socket), service)
        );
        let served = tokio::select! {
            served = &mut connection => Some(served),
            // An error here is an end, too: the server is gone.
            _ = end.changed() => None,
            () = aged(age) => None,
        };
        let served = match served {
            Some(served) => served,
            None => {
                connection.as_mut().graceful_shutdown();
                // A caller that never ends its last call keeps no place for ever.
                match timeout(GRACE, connection).await {
                    Ok(served) => served,
                    Err(_) => return tracing::debug!("a gRPC connection was cut"),
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a gRPC connection broke");
        }
    }

    fn answer(
        self: &Arc<Self>,
        mut request: http::Request<Incoming>,
        info: TcpConnectInfo,
        arrival: &Arrival,
    ) -> Answering {
        if request.uri().path() == call::METHOD {
            let (head, body) = request.into_parts();
            let service = Arc::clone(&self.service);
            return Box::pin(service.call(head.headers, body, info.remote_addr, arrival.watch()));
        }
        request.extensions_mut().insert(info);
        let answer = self.routes.clone().call(request);
        Box::pin(async { Ok(answer.await?.map(Reply::Other)) })
    }
}

/// A call being answered. Boxed, since it is moved about with the task that is made for it.
type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Reply>, Infallible>> + Send>>;

/// Resolves when a connection is old: callers that came together are told to go apart.
async fn aged(age: Option<Duration>) {
    match age {
        Some(age) => sleep(age.mul_f64(0.9 + 0.2 * fastrand::f64())).await,
        None => pending().await,
    }
}
