//! The certificates of our own ports: read, checked, and read again when they change.
//!
//! Connections keep what they began with, so a rotation cuts none of them; how long an old certificate
//! is still in use is bounded by their age. No session is ever resumed: a resumed one would not be asked
//! for its certificate again.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

mod names;

use names::Listed;
pub use names::{ClientName, NotListed};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// A certificate and its key are two files: what was just written is read once more after this.
const SETTLE: Duration = Duration::from_millis(200);

/// Files in PEM form, and who may call.
#[derive(Clone, Debug)]
pub struct Files {
    /// Our certificate, and what leads from it to one that callers trust.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who vouches for callers of the gRPC port; without it they are not asked for certificates.
    pub client_ca: Option<PathBuf>,
    /// The names of which a caller's certificate must have one; none: any will do.
    pub client_names: Vec<ClientName>,
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum BadCertificates {
    /// A file that cannot be read, or is not what it should be.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Certificate and key do not fit, or the authorities are none.
    #[error("the certificates cannot be used")]
    Unfit(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The certificates in force.
#[derive(Clone)]
pub struct Tls(Arc<ArcSwap<Ports>>);

/// What the two ports say in a handshake.
struct Ports {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

/// Reads the certificates again, for as long as it is polled.
pub struct Watch {
    files: Files,
    seen: Result<Contents, String>,
    in_force: Tls,
}

/// The text of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

// === impl Files ===

impl Files {
    /// The certificates as they are now, and what follows their changes.
    ///
    /// # Errors
    /// When they cannot be used.
    pub async fn read(self) -> Result<(Tls, Watch), BadCertificates> {
        let contents = self.contents().await?;
        let tls = Tls(Arc::new(ArcSwap::from_pointee(self.ports(&contents)?)));
        let watch = Watch {
            files: self,
            seen: Ok(contents),
            in_force: tls.clone(),
        };
        Ok((tls, watch))
    }

    async fn contents(&self) -> Result<Contents, BadCertificates> {
        Ok(Contents {
            cert: read(&self.cert).await?,
            key: read(&self.key).await?,
            client_ca: match &self.client_ca {
                Some(path) => Some(read(path).await?),
                None => None,
            },
        })
    }

    fn ports(&self, contents: &Contents) -> Result<Ports, BadCertificates> {
        let cert = certificates(&self.cert, &contents.cert)?;
        let key =
            PrivateKeyDer::from_pem_slice(&contents.key).map_err(|problem| fault(&self.key, problem))?;
        let clients = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(text)) => self.clients(path, text)?,
            _ => WebPkiClientVerifier::no_client_auth(),
        };
        let port = |clients, protocol: &[u8]| {
            let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_client_cert_verifier(clients)
                .with_single_cert(cert.clone(), key.clone_key())?;
            config.alpn_protocols = vec![protocol.into()];
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok(Arc::new(config))
        };
        let unfit = |problem: rustls::Error| BadCertificates::Unfit(problem.into());
        Ok(Ports {
            grpc: port(clients, b"h2").map_err(unfit)?,
            // The probes of a kubelet have no certificates.
            http: port(WebPkiClientVerifier::no_client_auth(), b"http/1.1").map_err(unfit)?,
        })
    }

    fn clients(&self, path: &Path, text: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, BadCertificates> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path, text)? {
            roots.add(certificate).map_err(|problem| fault(path, problem))?;
        }
        let provider = Arc::new(ring::default_provider());
        let vouched = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|problem| BadCertificates::Unfit(problem.into()))?;
        Ok(if self.client_names.is_empty() {
            vouched
        } else {
            Arc::new(Listed::new(vouched, self.client_names.clone()))
        })
    }
}

// === impl Tls ===

impl Tls {
    /// Shakes hands with the next caller of the gRPC port.
    pub fn grpc(&self) -> TlsAcceptor {
        Arc::clone(&self.0.load().grpc).into()
    }

    /// Shakes hands with the next caller of the HTTP port.
    pub fn http(&self) -> TlsAcceptor {
        Arc::clone(&self.0.load().http).into()
    }
}

// === impl Watch ===

impl Watch {
    /// Puts what has changed in force. What cannot be used is told of once, and what is in force stays.
    pub async fn follow(mut self) {
        loop {
            sleep(LOOK).await;
            let now = self.look().await;
            if now == self.seen {
                continue;
            }
            sleep(SETTLE).await;
            if self.look().await != now {
                continue;
            }
            let ports = match &now {
                Ok(contents) => self.files.ports(contents).map_err(|error| told(&error)),
                Err(error) => Err(error.clone()),
            };
            self.seen = now;
            match ports {
                Ok(ports) => {
                    self.in_force.0.store(Arc::new(ports));
                    tracing::info!("certificates read again");
                }
                Err(error) => {
                    tracing::error!(
                        error,
                        "the changed certificates cannot be used, those in force stay"
                    );
                }
            }
        }
    }

    async fn look(&self) -> Result<Contents, String> {
        self.files.contents().await.map_err(|error| told(&error))
    }
}

/// An error with its causes.
fn told(error: &BadCertificates) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

async fn read(path: &Path) -> Result<Vec<u8>, BadCertificates> {
    tokio::fs::read(path)
        .await
        .map_err(|problem| fault(path, problem))
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, BadCertificates> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let certificates = read.map_err(|problem| fault(path, problem))?;
    if certificates.is_empty() {
        return Err(fault(path, "no certificate in it"));
    }
    Ok(certificates)
}

fn fault(path: &Path, problem: impl Display) -> BadCertificates {
    BadCertificates::File {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
