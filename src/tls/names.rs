//! Which of the callers that an authority vouches for may call.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use webpki::EndEntityCert;

/// A name that a caller's certificate may have: a DNS name, `*.` and the rest of one, or a URI such as
/// a SPIFFE id. The star stands for one label, as in certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// A DNS name, in lower case.
    Dns(String),
    /// What follows the first label of a DNS name, with its dot.
    Below(String),
    /// A URI, letter by letter.
    Uri(String),
}

/// A certificate that an authority vouches for, of somebody who may not call.
#[derive(Debug)]
pub struct NotListed {
    /// Its names. They are chosen by whoever asked for the certificate.
    pub names: Vec<String>,
}

/// Asks for a name on the list, of callers that an authority vouches for.
#[derive(Debug)]
pub(super) struct Listed {
    vouched: Arc<dyn ClientCertVerifier>,
    names: Vec<ClientName>,
}

// === impl ClientName ===

impl FromStr for ClientName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let printable = text.bytes().all(|b| b.is_ascii_graphic() && b != b',');
        if text.is_empty() || !printable {
            return Err("expected a DNS name or a URI".into());
        }
        if text.contains("://") {
            if text.contains('*') {
                return Err("a URI is listed letter by letter, without `*`".into());
            }
            return Ok(Self::Uri(text.into()));
        }
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !rest.split('.').all(label) {
            return Err("expected a DNS name, perhaps with a leading `*.`, or a URI".into());
        }
        let rest = rest.to_ascii_lowercase();
        Ok(if below {
            Self::Below(format!(".{rest}"))
        } else {
            Self::Dns(rest)
        })
    }
}

impl ClientName {
    /// A name of the certificate with a star of its own is nobody's: it says what may be called, not who calls.
    fn is_dns(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        match self {
            Self::Dns(listed) => name == *listed,
            Self::Below(listed) => name
                .strip_suffix(listed.as_str())
                .is_some_and(|label| !label.is_empty() && label != "*" && !label.contains('.')),
            Self::Uri(_) => false,
        }
    }

    fn is_uri(&self, name: &str) -> bool {
        matches!(self, Self::Uri(listed) if listed == name)
    }
}

// === impl NotListed ===

impl fmt::Display for NotListed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no name of the certificate is on the list")
    }
}

impl std::error::Error for NotListed {}

// === impl Listed ===

impl Listed {
    pub(super) fn new(vouched: Arc<dyn ClientCertVerifier>, names: Vec<ClientName>) -> Self {
        Self { vouched, names }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let certificate = EndEntityCert::try_from(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let listed = certificate
            .valid_dns_names()
            .any(|name| self.names.iter().any(|listed| listed.is_dns(name)))
            || certificate
                .valid_uri_names()
                .any(|name| self.names.iter().any(|listed| listed.is_uri(name)));
        if listed {
            return Ok(());
        }
        let names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
        let refused = NotListed {
            names: names.map(str::to_owned).collect(),
        };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(
            Arc::new(refused),
        ))))
    }
}

impl ClientCertVerifier for Listed {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.vouched.verify_client_cert(certificate, intermediates, now)?;
        self.check(certificate)?;
        Ok(verified)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.vouched.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.vouched.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.vouched.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.vouched.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ClientName {
        text.parse().unwrap()
    }

    #[test]
    fn a_dns_name_is_listed_whole_or_below_a_star() {
        assert!(name("edge.example.com").is_dns("Edge.Example.COM"));
        assert!(!name("edge.example.com").is_dns("a.edge.example.com"));
        assert!(!name("edge.example.com").is_dns("xedge.example.com"));
        assert!(name("*.Example.com").is_dns("edge.example.com"));
        for other in [
            "example.com",
            ".example.com",
            "a.b.example.com",
            "edgeexample.com",
            "*.example.com",
        ] {
            assert!(!name("*.example.com").is_dns(other), "{other}");
        }
    }

    #[test]
    fn a_uri_is_compared_letter_by_letter() {
        let gateway = name("spiffe://cluster.local/ns/edge/sa/gateway");
        assert!(gateway.is_uri("spiffe://cluster.local/ns/edge/sa/gateway"));
        assert!(!gateway.is_uri("spiffe://cluster.local/ns/edge/sa/Gateway"));
        assert!(!gateway.is_uri("spiffe://cluster.local/ns/edge/sa/gateway2"));
        assert!(!gateway.is_dns("spiffe://cluster.local/ns/edge/sa/gateway"));
        assert!(!name("cluster.local").is_uri("cluster.local"));
    }

    #[test]
    fn what_can_match_nothing_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a..b",
            "a.*.b",
            "a b",
            "x/y",
            "spiffe://x/*",
            "é.example",
        ] {
            assert!(text.parse::<ClientName>().is_err(), "{text}");
        }
    }
}
