//! What a caller's configuration gets wrong, in the log: once a minute for each kind.
//!
//! Envoy hides these by failing open, and sends them with every request. The metrics count them all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;
use crate::engine::time::{Micros, Timestamp};

/// For how long one line speaks for all that follow.
const PAUSE: Micros = Micros::from_secs(60);

/// How much of what a caller chose is shown.
const LONGEST: usize = 64;

/// Says that the requests of a caller cannot be right.
#[derive(Debug)]
pub(super) struct Complaints<C> {
    clock: C,
    no_domain: Pause,
    no_descriptors: Pause,
    old_protocol: Pause,
}

/// When it was last spoken, in microseconds; 0 is never.
#[derive(Debug, Default)]
struct Pause(AtomicU64);

impl<C: Clock> Complaints<C> {
    pub(super) fn new(clock: C) -> Self {
        Self {
            clock,
            no_domain: Pause::default(),
            no_descriptors: Pause::default(),
            old_protocol: Pause::default(),
        }
    }

    /// A request has no domain.
    pub(super) fn no_domain(&self, peer: Option<SocketAddr>) {
        if self.no_domain.is_over(self.clock.now()) {
            let peer = shown(peer);
            tracing::warn!(
                peer,
                "requests without a domain: set `domain` of Envoy's rate limit filter"
            );
        }
    }

    /// A request has no descriptors.
    pub(super) fn no_descriptors(&self, domain: &str, peer: Option<SocketAddr>) {
        if self.no_descriptors.is_over(self.clock.now()) {
            let (domain, peer) = (escape(domain), shown(peer));
            tracing::warn!(
                domain,
                peer,
                "requests without descriptors: no action of Envoy's `rate_limits` made one"
            );
        }
    }

    /// A call uses a protocol that Envoy has left.
    pub(super) fn old_protocol(&self, path: &str, peer: Option<SocketAddr>) {
        if self.old_protocol.is_over(self.clock.now()) {
            let (path, peer) = (escape(path), shown(peer));
            tracing::warn!(
                path,
                peer,
                "calls of an old protocol: set transport_api_version: V3 in Envoy's rate_limit_service"
            );
        }
    }
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

fn escape(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let next = c.escape_default();
        if shown.len() + next.len() > LONGEST {
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
        assert_eq!(escape("api"), "api");
        assert_eq!(
            escape("a\n\u{1b}[31mé\u{202e}"),
            "a\\n\\u{1b}[31m\\u{e9}\\u{202e}"
        );
        let long = escape(&"x".repeat(1_000));
        assert_eq!(long, format!("{}~", "x".repeat(LONGEST)));
        assert!(escape(&"\u{202e}".repeat(1_000)).len() <= LONGEST + 1);
    }
}
