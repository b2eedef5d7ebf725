//! What a caller's configuration gets wrong, in the log: once a minute for each kind.
//!
//! Envoy hides these by failing open, and sends them with every request. The metrics count them all.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_rustls::rustls;

use super::socket::Instead;
use crate::clock::Clock;
use crate::engine::time::{Micros, Timestamp};
use crate::tls::NotListed;

/// For how long one line speaks for all that follow.
const PAUSE: Micros = Micros::from_secs(60);

/// How much of what a caller chose is shown.
pub(super) const LONGEST: usize = 64;

/// The same for what a certificate says: SPIFFE ids are long.
const LONGEST_NAMES: usize = 200;

/// Says what a caller does wrong.
#[derive(Debug)]
pub(super) struct Complaints<C> {
    clock: C,
    pauses: [Pause; KINDS],
}

/// What is told of on its own: each has its own pause.
#[derive(Clone, Copy, Debug)]
enum Kind {
    NoDomain,
    NoDescriptors,
    Unreadable,
    NotAccepted,
    OldProtocol,
    Http1,
    NotHttp2,
    TlsToPlain,
    PlainToTls,
    NoCertificate,
    UnknownAuthority,
    NotListed,
    BadCertificate,
    OursRefused,
    NothingInCommon,
}

const KINDS: usize = Kind::NothingInCommon as usize + 1;

/// When it was last spoken, in microseconds; 0 is never.
#[derive(Debug, Default)]
struct Pause(AtomicU64);

impl<C: Clock> Complaints<C> {
    pub(super) fn new(clock: C) -> Self {
        Self {
            clock,
            pauses: Default::default(),
        }
    }

    /// A request has no domain.
    pub(super) fn no_domain(&self, peer: Option<SocketAddr>, request_id: impl Fn() -> Option<String>) {
        if self.may_tell(Kind::NoDomain) {
            let peer = shown(peer);
            tracing::warn!(
                peer,
                request_id = request_id(),
                "requests without a domain: set `domain` of Envoy's rate limit filter"
            );
        }
    }

    /// A request has no descriptors.
    pub(super) fn no_descriptors(
        &self,
        domain: &str,
        peer: Option<SocketAddr>,
        request_id: impl Fn() -> Option<String>,
    ) {
        if self.may_tell(Kind::NoDescriptors) {
            let (domain, peer) = (escape(domain, LONGEST), shown(peer));
            tracing::warn!(
                domain,
                peer,
                request_id = request_id(),
                "requests without descriptors: no action of Envoy's `rate_limits` made one"
            );
        }
    }

    /// What came in a call is no request.
    pub(super) fn unreadable(&self, why: &str, peer: Option<SocketAddr>) {
        if self.may_tell(Kind::Unreadable) {
            let (why, peer) = (escape(why, LONGEST_NAMES), shown(peer));
            tracing::warn!(why, peer, "calls that bring no request: is it Envoy that calls?");
        }
    }

    /// A connection could not be accepted: most likely no file descriptor is left.
    pub(super) fn not_accepted(&self, error: &io::Error) {
        if self.may_tell(Kind::NotAccepted) {
            tracing::warn!(%error, "gRPC connections cannot be accepted");
        }
    }

    /// A call uses a protocol that Envoy has left.
    pub(super) fn old_protocol(&self, path: &str, peer: Option<SocketAddr>) {
        if self.may_tell(Kind::OldProtocol) {
            let (path, peer) = (escape(path, LONGEST), shown(peer));
            tracing::warn!(
                path,
                peer,
                "calls of an old protocol: set transport_api_version: V3 in Envoy's rate_limit_service"
            );
        }
    }

    /// A connection opens with something else than HTTP/2.
    pub(super) fn not_http2(&self, instead: Instead, over_tls: bool, peer: Option<SocketAddr>) {
        let (kind, remedy) = match instead {
            Instead::Http1 => (Kind::Http1, HTTP1),
            Instead::Tls if !over_tls => (Kind::TlsToPlain, TLS_TO_PLAIN),
            Instead::Tls | Instead::Unknown => (Kind::NotHttp2, NOT_HTTP2),
        };
        if self.may_tell(kind) {
            tracing::warn!(peer = shown(peer), "{remedy}");
        }
    }

    /// A handshake failed. A caller that only went away is not told of: probes of a port do.
    pub(super) fn handshake(&self, error: &io::Error, peer: SocketAddr) {
        let peer = peer.to_string();
        let Some((kind, remedy, names)) = error
            .get_ref()
            .and_then(|error| error.downcast_ref())
            .and_then(cause)
        else {
            tracing::debug!(%error, peer, "a TLS handshake broke");
            return;
        };
        if self.may_tell(kind) {
            let error = escape(&error.to_string(), LONGEST_NAMES);
            match names {
                Some(names) => tracing::warn!(names, peer, "{remedy}"),
                None => tracing::warn!(error, peer, "{remedy}"),
            }
        }
    }

    fn may_tell(&self, kind: Kind) -> bool {
        self.pauses[kind as usize].is_over(self.clock.now())
    }
}

const HTTP1: &str = "HTTP/1.1 on the gRPC port: set http2_protocol_options on Envoy's cluster for cota";
const NOT_HTTP2: &str = "neither HTTP/2 nor anything known on the gRPC port: it is for gRPC only";
const TLS_TO_PLAIN: &str = "TLS on the gRPC port, which is plain text: take transport_socket off Envoy's cluster for cota \
     (in a mesh: a DestinationRule with tls mode DISABLE), or start cota with --tls-cert";
const PLAIN_TO_TLS: &str =
    "plain text on the gRPC port, which is for TLS: set transport_socket on Envoy's cluster for cota";
const NO_CERTIFICATE: &str = "a caller without a client certificate: set tls_certificates in the transport_socket of Envoy's cluster for cota";
const UNKNOWN_AUTHORITY: &str = "a client certificate of an authority that --tls-client-ca does not have: another issuer, or not all of its certificates";
const NOT_LISTED: &str = "a client certificate with no name that --tls-client-names has";
const BAD_CERTIFICATE: &str = "a client certificate that cannot be accepted";
const OURS_REFUSED: &str = "a caller does not accept our certificate: compare validation_context and its names in Envoy's cluster for cota with --tls-cert";
const NOTHING_IN_COMMON: &str =
    "a caller has no TLS version or cipher in common with us: 1.2 and 1.3 are spoken";

/// What a failed handshake says of the caller's configuration: the remedy, and the names it came with.
fn cause(error: &rustls::Error) -> Option<(Kind, &'static str, Option<String>)> {
    use rustls::{CertificateError, Error};
    let (kind, remedy) = match error {
        Error::NoCertificatesPresented => (Kind::NoCertificate, NO_CERTIFICATE),
        // The second is what an authority looks like that was made anew under its old name.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            (Kind::UnknownAuthority, UNKNOWN_AUTHORITY)
        }
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            return match other.0.downcast_ref::<NotListed>() {
                Some(refused) => {
                    let names = match &*refused.names {
                        [] => "none".to_owned(),
                        names => escape(&names.join(" "), LONGEST_NAMES),
                    };
                    Some((Kind::NotListed, NOT_LISTED, Some(names)))
                }
                None => Some((Kind::BadCertificate, BAD_CERTIFICATE, None)),
            };
        }
        Error::InvalidCertificate(_) => (Kind::BadCertificate, BAD_CERTIFICATE),
        Error::InvalidMessage(_) => (Kind::PlainToTls, PLAIN_TO_TLS),
        Error::NoApplicationProtocol => (Kind::Http1, HTTP1),
        Error::AlertReceived(_) => (Kind::OursRefused, OURS_REFUSED),
        Error::PeerIncompatible(_) => (Kind::NothingInCommon, NOTHING_IN_COMMON),
        _ => return None,
    };
    Some((kind, remedy, None))
}

impl Pause {
    /// Whether something may be said, which starts the next pause.
    fn is_over(&self, now: Timestamp) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        // A clock set back ends the pause, too: otherwise it might last for years.
        let over = last == 0 || now.0 < last || now.0 - last >= PAUSE.0;
        // Whoever loses the race stays silent.
        over && self
            .0
            .compare_exchange(last, now.0.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

fn shown(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "unknown".into(), |peer| peer.to_string())
}

/// Text that a caller chose, for the log: escaped and cut.
pub(super) fn escape(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let next = c.escape_default();
        if shown.len() + next.len() > longest {
            shown.push('~');
            break;
        }
        shown.extend(next);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn one_line_a_minute() {
        let start = Timestamp(1_800_000_000_000_000);
        let clock = ManualClock::at(start);
        let pause = Pause::default();
        let may_speak = || pause.is_over(clock.now());

        assert!(may_speak());
        assert!(!may_speak());
        clock.advance(Micros(PAUSE.0 - 1));
        assert!(!may_speak());
        clock.advance(Micros(1));
        assert!(may_speak());
        assert!(!may_speak());
        clock.set(start);
        assert!(may_speak(), "a clock set back does not silence it");
        assert!(!may_speak());
    }

    #[test]
    fn many_at_once_are_one_line() {
        let pause = Pause::default();
        let now = Timestamp(1_800_000_000_000_000);
        let spoken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        spoken.fetch_add(pause.is_over(now).into(), Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(spoken.into_inner(), 1);
    }

    #[test]
    fn what_a_caller_chose_is_escaped_and_cut() {
        assert_eq!(escape("api", LONGEST), "api");
        assert_eq!(
            escape("a\n\u{1b}[31mé\u{202e}", LONGEST),
            "a\\n\\u{1b}[31m\\u{e9}\\u{202e}"
        );
        let long = escape(&"x".repeat(1_000), LONGEST);
        assert_eq!(long, format!("{}~", "x".repeat(LONGEST)));
        assert!(escape(&"\u{202e}".repeat(1_000), LONGEST).len() <= LONGEST + 1);
    }
}
