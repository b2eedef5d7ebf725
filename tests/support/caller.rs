//! Callers of the gRPC port over TLS, right and wrong ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use cota::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Somebody who speaks TLS.
#[derive(Clone)]
pub(crate) struct Caller {
    config: Arc<ClientConfig>,
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Caller {
    /// A caller who trusts that authority, and shows that certificate.
    pub(crate) fn new(address: SocketAddr, ca: &Path, shows: Option<&(PathBuf, PathBuf)>) -> Self {
        Self::speaking(address, ca, shows, &[b"h2"], tokio_rustls::rustls::ALL_VERSIONS)
    }

    /// The same with protocols and versions of TLS.
    pub(crate) fn speaking(
        address: SocketAddr,
        ca: &Path,
        shows: Option<&(PathBuf, PathBuf)>,
        protocols: &[&[u8]],
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shows {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
                config
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
                    .unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Self {
            config: Arc::new(config),
            address,
            connections: Arc::default(),
        }
    }

    /// A connection of its own. In TLS 1.3 it stands before the server has seen the certificate.
    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::clone(&self.config))
            .connect(name, stream)
            .await
    }

    /// What the server shows to whoever connects now.
    pub(crate) async fn is_shown(&self) -> CertificateDer<'static> {
        let stream = self.connect().await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        shown.into_owned()
    }

    /// How often it has connected.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// A channel for calls, connected at the first.
    pub(crate) fn channel(&self) -> Channel {
        let caller = self.clone();
        let connector = tower::service_fn(move |_| {
            let caller = caller.clone();
            async move { caller.connect().await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost")
            .timeout(Duration::from_secs(20))
            .connect_with_connector_lazy(connector)
    }

    /// One call on a connection of its own.
    pub(crate) async fn call(&self, message: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        call(self.channel(), message).await
    }
}

/// One call on that channel.
pub(crate) async fn call(channel: Channel, message: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let mut client = RateLimitServiceClient::new(channel);
    client
        .should_rate_limit(message)
        .await
        .map(tonic::Response::into_inner)
}
