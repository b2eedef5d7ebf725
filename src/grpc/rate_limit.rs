//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use tonic::codegen::http::{self, HeaderMap};
use tonic::{Code, Status};

use super::backlog::Backlog;
use super::call::{self, Reply};
use super::complaints::{Complaints, LONGEST, escape};
use super::decode;
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::answer::{Answer, answer};
use crate::clock::{Clock, Stopwatch};
use crate::engine::descriptor::Request;
use crate::engine::policy::Policy;
use crate::engine::resolve::{Malformed, Resolved};
use crate::limiter::{Decided, Limiter, LimiterError};
use crate::store::Store;
use crate::telemetry::{Metrics, Origin, Traces};

/// Answers Envoy.
pub struct RateLimits<S, C> {
    limiter: Arc<Limiter<S, C>>,
    metrics: Arc<Metrics>,
    complaints: Arc<Complaints<C>>,
    traces: Traces,
    backlog: Arc<Backlog>,
}

impl<S, C> Clone for RateLimits<S, C> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            metrics: Arc::clone(&self.metrics),
            complaints: Arc::clone(&self.complaints),
            traces: self.traces.clone(),
            backlog: Arc::clone(&self.backlog),
        }
    }
}

impl<S: Store, C: Clock + Clone> RateLimits<S, C> {
    /// The service over a limiter.
    pub fn new(limiter: Arc<Limiter<S, C>>, metrics: Arc<Metrics>) -> Self {
        let complaints = Arc::new(Complaints::new(limiter.clock().clone()));
        Self {
            limiter,
            metrics,
            complaints,
            traces: Traces::default(),
            backlog: Arc::default(),
        }
    }

    /// The same, with a span for each decision that Envoy traces.
    pub fn traced(self, traces: Traces) -> Self {
        Self { traces, ..self }
    }
}

impl<S: Store, C: Clock> RateLimits<S, C> {
    /// What its callers' configurations get wrong.
    pub(super) fn complaints(&self) -> &Arc<Complaints<C>> {
        &self.complaints
    }

    /// Decides one request, within `deadline` from now if there is one.
    ///
    /// # Errors
    /// A gRPC error when there is no answer: Envoy takes a default message for permission.
    pub async fn decide(
        &self,
        message: &RateLimitRequest,
        deadline: Option<Duration>,
    ) -> Result<RateLimitResponse, Status> {
        let policy = self.limiter.policy();
        self.answer(&policy, &message.into(), Stopwatch::start(), deadline, None)
            .await
            .map_err(|error| status(&error))
    }

    /// The answer in the form that is wanted, a message or its bytes.
    async fn answer<'r, A: for<'a> From<Answer<'a>>>(
        &self,
        policy: &'r Policy,
        request: &Request<'r>,
        watch: Stopwatch,
        deadline: Option<Duration>,
        headers: Option<&HeaderMap>,
    ) -> Result<A, LimiterError> {
        let span = self.traces.decision(|| headers.map(origin).unwrap_or_default());
        let deadline =
            deadline.map(|deadline| self.backlog.left(self.limiter.clock(), deadline, watch.elapsed()));
        let mut resolved = Resolved::default();
        let deciding = self.limiter.decide(policy, request, deadline, &mut resolved);
        let decided = match &span {
            None => deciding.await,
            // Boxed, so that calls that are not traced have no room for it.
            Some(span) => Box::pin(span.around(deciding)).await,
        };
        match decided {
            Ok(Decided { domain, decision }) => {
                self.metrics
                    .record(request, domain, &resolved, &decision, watch.elapsed());
                if let Some(span) = span {
                    span.decided(domain, &resolved, &decision);
                }
                // Clients refused together are told to come back apart.
                let spread = 0.1 + 0.1 * fastrand::f64();
                Ok(answer(domain, &resolved, &decision, spread).into())
            }
            Err(error) => {
                let domain = policy.domains.get(request.domain).map(|domain| &**domain);
                self.metrics
                    .record_failure(domain, malformed(&error), watch.elapsed());
                if let Some(span) = span {
                    span.failed(domain, reason(&error));
                }
                Err(error)
            }
        }
    }

    /// Says in the log what nobody sees in Envoy, which lets such requests pass.
    fn complain(&self, error: &LimiterError, peer: Option<SocketAddr>, headers: &HeaderMap) {
        let id = || request_id(headers);
        match error {
            LimiterError::NoDomain => self.complaints.no_domain(peer, id),
            LimiterError::NoDescriptors(domain) => self.complaints.no_descriptors(domain, peer, id),
            LimiterError::NoPolicy | LimiterError::Late | LimiterError::Store(_) => {}
        }
    }
}

impl<S: Store, C: Clock> RateLimits<S, C> {
    /// Answers a call that came when the stopwatch was started.
    pub(super) async fn call(
        self: Arc<Self>,
        headers: HeaderMap,
        mut body: Incoming,
        peer: Option<SocketAddr>,
        watch: Stopwatch,
    ) -> Result<http::Response<Reply>, Infallible> {
        let bytes = match call::message(&mut body).await {
            Ok(bytes) => bytes,
            Err(status) => return Ok(self.unreadable(status, peer, watch)),
        };
        let (policy, mut mended) = (self.limiter.policy(), Vec::new());
        let request = match decode::request(&bytes, &mut mended) {
            Ok(request) => request,
            Err(error) => {
                let status = Status::internal(format!("no RateLimitRequest: {error}"));
                return Ok(self.unreadable(status, peer, watch));
            }
        };
        let answer = self.answer(&policy, &request, watch, deadline(&headers), Some(&headers));
        Ok(match answer.await {
            Ok(encoded) => call::response(encoded),
            Err(error) => {
                self.complain(&error, peer, &headers);
                status(&error).into_http()
            }
        })
    }
}

impl<S: Store, C: Clock> RateLimits<S, C> {
    /// The answer to what is no request. Nobody hears it where the caller has left.
    fn unreadable(
        &self,
        status: Status,
        peer: Option<SocketAddr>,
        watch: Stopwatch,
    ) -> http::Response<Reply> {
        if status.code() != Code::Cancelled {
            self.metrics
                .record_failure(None, Some(Malformed::Unreadable), watch.elapsed());
            self.complaints.unreadable(status.message(), peer);
        }
        status.into_http()
    }
}

/// What was wrong with a request that was not decided, unless the fault was ours.
fn malformed(error: &LimiterError) -> Option<Malformed> {
    match error {
        LimiterError::NoDomain => Some(Malformed::NoDomain),
        LimiterError::NoDescriptors(_) => Some(Malformed::NoDescriptors),
        LimiterError::NoPolicy | LimiterError::Late | LimiterError::Store(_) => None,
    }
}

/// The one place where a failure becomes a wire status. Envoy treats all codes alike (it fails open or
/// closed by its own setting); they differ for the people who read its logs.
fn status(error: &LimiterError) -> Status {
    let code = match error {
        // The caller's configuration is wrong; sending it again does not help.
        LimiterError::NoDomain | LimiterError::NoDescriptors(_) => Code::InvalidArgument,
        LimiterError::Late => Code::DeadlineExceeded,
        // Passing states of this replica: another one, or a later call, may answer.
        LimiterError::NoPolicy | LimiterError::Store(_) => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// Why there was no decision, without what a caller sent.
fn reason(error: &LimiterError) -> &'static str {
    match error {
        LimiterError::NoDomain => "no domain",
        LimiterError::NoDescriptors(_) => "no descriptors",
        LimiterError::NoPolicy => "no policy is in force",
        LimiterError::Late => "it had waited too long",
        LimiterError::Store(_) => "the store gave no answer",
    }
}

/// Where a call comes from, as Envoy says it when it traces.
fn origin(headers: &HeaderMap) -> Origin<'_> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    Origin {
        traceparent: text("traceparent"),
        tracestate: text("tracestate"),
        request_id: request_id(headers),
    }
}

/// The id of the request that Envoy asks about, if it is set to send it, escaped and cut.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?;
    Some(escape(&String::from_utf8_lossy(id.as_bytes()), LONGEST))
}

/// The caller's `grpc-timeout`: at most eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let n: u32 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(u64::from(n) * 3_600),
        "M" => Duration::from_secs(u64::from(n) * 60),
        "S" => Duration::from_secs(n.into()),
        "m" => Duration::from_millis(n.into()),
        "u" => Duration::from_micros(n.into()),
        "n" => Duration::from_nanos(n.into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwap;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::limit::Unit;
    use crate::engine::time::Micros;
    use crate::store::memory::Memory;
    use crate::support::policy::{NOON, bucket, domain, policy, request};

    #[tokio::test]
    async fn what_waited_too_long_is_neither_decided_nor_charged() {
        let clock = ManualClock::at(NOON);
        let limits = vec![bucket("tenant", 10, 10, Unit::Hour)];
        let policy = Arc::new(policy([domain([(&[("tenant", None)], limits)])]));
        let in_force = Arc::new(ArcSwap::from(Arc::clone(&policy)));
        let limiter = Limiter::new(Memory::new(clock.clone(), 1_000), clock.clone(), in_force, false);
        let service = RateLimits::new(
            Arc::new(limiter),
            Arc::new(Metrics::new(&mut Registry::default(), false)),
        );
        let request = request(&[&[("tenant", "acme")]]);
        let mut left = 10;
        // From the second on the queue stands.
        for (waited, decided) in [(15, true), (15, false), (8, true), (30, false)] {
            let watch = Stopwatch::started(Duration::from_secs(waited));
            let deadline = Some(Duration::from_secs(20));
            let answer = service.answer(&policy, &request, watch, deadline, None).await;
            let answer: Result<RateLimitResponse, LimiterError> = answer;
            clock.advance(Micros::from_secs(21));
            if decided {
                left -= 1;
                assert_eq!(answer.unwrap().statuses[0].limit_remaining, left, "{waited}");
            } else {
                assert!(matches!(answer, Err(LimiterError::Late)), "{waited}");
            }
        }
    }

    #[test]
    fn the_callers_timeout_is_read_in_every_unit() {
        for (text, wanted) in [
            ("20m", Some(Duration::from_millis(20))),
            ("1H", Some(Duration::from_secs(3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("4u", Some(Duration::from_micros(4))),
            ("5n", Some(Duration::from_nanos(5))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("123456789m", None),
            ("m", None),
            ("", None),
            ("20", None),
            ("-1m", None),
            ("20x", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(deadline(&headers), wanted, "{text}");
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }
}
