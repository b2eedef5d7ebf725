//! Certificates of an authority that only one test trusts.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use tempfile::TempDir;

/// Two of one name would be taken for one another.
static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

/// An authority, with its certificate in `ca.pem` of a folder that goes with it.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let name = format!("authority {}", AUTHORITIES.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The files of a certificate for a host, and of its key.
    pub(crate) fn issue(&self, name: &str, host: &str) -> (PathBuf, PathBuf) {
        self.write(name, &self.sign(host, &[]))
    }

    /// The same for somebody who is called by URIs.
    pub(crate) fn issue_to(&self, name: &str, uris: &[&str]) -> (PathBuf, PathBuf) {
        self.write(name, &self.sign("localhost", uris))
    }

    /// A certificate for a host with these URIs, and its key, as text.
    pub(crate) fn sign(&self, host: &str, uris: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, host);
        let uris = uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn write(&self, name: &str, (certificate, key): &(String, String)) -> (PathBuf, PathBuf) {
        let files = (
            self.path(&format!("{name}.pem")),
            self.path(&format!("{name}.key")),
        );
        fs::write(&files.0, certificate).unwrap();
        fs::write(&files.1, key).unwrap();
        files
    }
}
