//! How we and the store prove to each other who we are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Files in PEM form; all are read again whenever a connection is made.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Who may vouch for the store; without it, the public authorities.
    pub ca: Option<PathBuf>,
    /// Our certificate and what leads from it to one that the store trusts.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum BadTls {
    /// A file that cannot be read, or is not what it should be.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate without its key, or the other way round.
    #[error("a certificate and its key must be given together")]
    Half,
    /// Certificate and key do not fit.
    #[error("the certificate cannot be used")]
    Unfit(#[source] tokio_rustls::rustls::Error),
}

impl TlsFiles {
    pub(super) fn read(&self) -> Result<Arc<ClientConfig>, BadTls> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|problem| fault(path, problem))?;
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(BadTls::Unfit)?
            .with_root_certificates(roots);
        let config = match (&self.cert, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => config
                .with_client_auth_cert(
                    certificates(cert)?,
                    PrivateKeyDer::from_pem_file(key).map_err(|problem| fault(key, problem))?,
                )
                .map_err(BadTls::Unfit)?,
            _ => return Err(BadTls::Half),
        };
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|problem| fault(path, problem))?;
    if certificates.is_empty() {
        return Err(fault(path, "no certificate in it"));
    }
    Ok(certificates)
}

fn fault(path: &Path, problem: impl ToString) -> BadTls {
    BadTls::File {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}
