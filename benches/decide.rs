//! What a decision costs without transport: resolve, decide in memory, build the answer, count it.

use std::sync::Arc;

use cota::answer::answer;
use cota::clock::{Clock as _, SystemClock};
use cota::config::{Source, load};
use cota::engine::budget::Outcome;
use cota::engine::decision::Decision;
use cota::engine::descriptor::{Descriptor, Entry, Request};
use cota::engine::key::BudgetKey;
use cota::engine::lease::Ask;
use cota::engine::policy::{Domain, Policy};
use cota::engine::resolve::{Resolved, resolve};
use cota::engine::time::{Micros, Timestamp};
use cota::grpc::decode;
use cota::grpc::encode::Encoded;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3 as wire;
use cota::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use cota::store::leased::{Central, Leased, NoAnswer};
use cota::store::memory::Memory;
use cota::store::redis::Return;
use cota::store::{Reply, Store, StoreError};
use cota::telemetry::Metrics;
use divan::{Bencher, black_box};
use prost::Message as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

const POLICY: &str = "
domain: bench
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: second, requests_per_unit: 1000000000, algorithm: ALGORITHM}
    descriptors:
      - key: credential
        rate_limit: {name: credential, unit: second, requests_per_unit: 1000000000, algorithm: ALGORITHM}
      - key: route
        value: GET /v1/search
        rate_limit: {name: search, unit: second, requests_per_unit: 1000000000, algorithm: ALGORITHM}
  - key: remote_address
    address: {}
    rate_limit: {name: address, unit: second, requests_per_unit: 1000000000, algorithm: ALGORITHM}
";

const ALGORITHMS: [&str; 3] = ["fixed_window", "sliding_window", "token_bucket"];

fn domain(algorithm: &str) -> Arc<Domain> {
    let text = POLICY.replace("ALGORITHM", algorithm);
    let loaded = load(
        &[Source {
            name: Arc::from("bench"),
            text,
        }],
        Timestamp(1),
    );
    let domain = loaded.domains.into_iter().find_map(|item| item.domain);
    domain.expect("the policy of the benchmark is good")
}

fn request<'a>(descriptors: usize) -> Request<'a> {
    let all: [&[(&str, &str)]; 4] = [
        &[("tenant", "acme")],
        &[("tenant", "acme"), ("credential", "key-1")],
        &[("tenant", "acme"), ("route", "GET /v1/search")],
        &[("remote_address", "198.51.100.7")],
    ];
    let descriptor = |entries: &&[(&'static str, &'static str)]| Descriptor {
        entries: entries.iter().map(|(key, value)| Entry { key, value }).collect(),
        ..Descriptor::default()
    };
    let descriptors = all[..descriptors].iter().map(descriptor).collect();
    Request {
        domain: "bench",
        descriptors,
        hits_addend: 0,
    }
}

#[divan::bench(args = [1, 4])]
fn resolve_only(bencher: Bencher<'_, '_>, descriptors: usize) {
    let (domain, request) = (domain("token_bucket"), request(descriptors));
    bencher.bench_local(|| {
        resolve(Some(black_box(&domain)), black_box(&request), false, Timestamp(1))
            .charges
            .len()
    });
}

#[divan::bench(args = ALGORITHMS)]
fn decide_four(bencher: Bencher<'_, '_>, algorithm: &str) {
    let (domain, request) = (domain(algorithm), request(4));
    let store = Memory::new(SystemClock, 1_000_000);
    bencher.bench_local(|| {
        let mut resolved = resolve(Some(&domain), black_box(&request), false, Timestamp(1));
        let decision = ready(store.decide(&mut resolved, Micros::ZERO)).expect("memory always answers");
        decision.verdicts.len()
    });
}

#[divan::bench(args = [1, 4])]
fn decide_and_answer(bencher: Bencher<'_, '_>, descriptors: usize) {
    let (domain, request) = (domain("token_bucket"), request(descriptors));
    let store = Memory::new(SystemClock, 1_000_000);
    bencher.bench_local(|| {
        let mut resolved = resolve(Some(&domain), black_box(&request), false, Timestamp(1));
        let decision = ready(store.decide(&mut resolved, Micros::ZERO)).expect("memory always answers");
        answer(Some(&domain), &resolved, &decision, 0.15).headers.len()
    });
}

/// How bytes become a request, and an answer bytes.
#[derive(Clone, Copy, Debug)]
enum By {
    /// As it is done.
    Hand,
    /// As it would be with the generated messages.
    Messages,
}

#[divan::bench(args = [By::Hand, By::Messages])]
fn request_from_wire(bencher: Bencher<'_, '_>, by: By) {
    let entry = |entry: &Entry<'_>| wire::rate_limit_descriptor::Entry {
        key: entry.key.into(),
        value: entry.value.into(),
    };
    let descriptor = |descriptor: &Descriptor<'_>| wire::RateLimitDescriptor {
        entries: descriptor.entries.iter().map(entry).collect(),
        ..Default::default()
    };
    let message = RateLimitRequest {
        domain: "bench".into(),
        descriptors: request(4).descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    };
    let bytes = message.encode_to_vec();
    bencher.bench_local(|| match by {
        By::Hand => {
            let mut room = Vec::new();
            let request = decode::request(black_box(&bytes), &mut room);
            request.expect("it was written as one").descriptors.len()
        }
        By::Messages => {
            let message = RateLimitRequest::decode(black_box(&*bytes)).expect("it was written as one");
            Request::from(&message).descriptors.len()
        }
    });
}

#[divan::bench(args = [By::Hand, By::Messages])]
fn answer_to_wire(bencher: Bencher<'_, '_>, by: By) {
    let (domain, request) = (domain("token_bucket"), request(4));
    let store = Memory::new(SystemClock, 1_000_000);
    let mut resolved = resolve(Some(&domain), &request, false, Timestamp(1));
    let decision = ready(store.decide(&mut resolved, Micros::ZERO)).expect("memory always answers");
    bencher.bench_local(|| {
        let answer = answer(Some(&domain), &resolved, black_box(&decision), 0.15);
        match by {
            By::Hand => Encoded::from(answer).bytes().len(),
            By::Messages => RateLimitResponse::from(answer).encode_to_vec().len(),
        }
    });
}

#[divan::bench(threads = [1, 2], args = [1, 4])]
fn decide_in_parallel(bencher: Bencher<'_, '_>, descriptors: usize) {
    let (domain, request) = (domain("token_bucket"), request(descriptors));
    let store = Memory::new(SystemClock, 1_000_000);
    bencher.bench(|| {
        let mut resolved = resolve(Some(&domain), black_box(&request), false, Timestamp(1));
        ready(store.decide(&mut resolved, Micros::ZERO))
            .expect("memory always answers")
            .refused
    });
}

/// Four leased limits, of which enough is held: to be compared with `decide_four`.
#[divan::bench(args = ALGORITHMS)]
fn decide_four_leased(bencher: Bencher<'_, '_>, algorithm: &str) {
    let (domain, request) = (leased_domain(algorithm), request(4));
    let run_at_once = Box::new(ready);
    let store = Leased::new(
        Generous(Memory::new(SystemClock, 1_000_000)),
        SystemClock,
        run_at_once,
    );
    bencher.bench_local(|| {
        let mut resolved = resolve(Some(&domain), black_box(&request), false, Timestamp(1));
        let decision = ready(store.decide(&mut resolved, Micros::ZERO)).expect("memory always answers");
        decision.verdicts.len()
    });
    assert!(
        store.holdings().iter().any(|held| held.units > 0),
        "nothing was leased"
    );
}

fn leased_domain(algorithm: &str) -> Arc<Domain> {
    domain(&format!("{algorithm}, max_overshoot: 50%"))
}

/// A store in memory that grants what is asked for.
struct Generous(Memory<SystemClock>);

impl Store for Generous {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        self.0.decide(resolved, wait_cap).await
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        self.0.give_back(resolved, decision);
    }
}

impl Central for Generous {
    async fn reserve(&self, _: &BudgetKey<'_>, _: u64, ask: &Ask) -> Result<u64, NoAnswer> {
        Ok(ask.units)
    }

    async fn strike(&self, _: &BudgetKey<'_>, _: u64) -> Result<bool, NoAnswer> {
        Ok(true)
    }

    async fn charge(&self, asked: &Resolved<'_>) -> Result<Reply, NoAnswer> {
        Ok(Reply {
            charged: true,
            now: SystemClock.now(),
            slots: asked.charges.iter().map(|_| Default::default()).collect(),
        })
    }

    async fn refund(&self, _: &Resolved<'_>, _: Return) -> Result<(), NoAnswer> {
        Ok(())
    }

    fn replicas(&self) -> u32 {
        1
    }
}

/// What of a budget a request left, when it is counted.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// It held nothing from the start: verdicts are counted, and nothing else.
    Nothing,
    /// Half.
    Half,
    /// A tenth: its caller is near the ceiling.
    Tenth,
    /// It was refused.
    Refused,
}

#[divan::bench(args = [Left::Nothing, Left::Half, Left::Tenth, Left::Refused])]
fn count_four(bencher: Bencher<'_, '_>, left: Left) {
    let (domain, request) = (domain("token_bucket"), request(4));
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::new(&mut registry, false);
    metrics.install(Arc::new(Policy {
        domains: [(domain.name.clone(), Arc::clone(&domain))].into_iter().collect(),
        version: 1,
    }));
    let store = Memory::new(SystemClock, 1_000_000);
    let mut resolved = resolve(Some(&domain), &request, false, Timestamp(1));
    let mut decision = ready(store.decide(&mut resolved, Micros::ZERO)).expect("memory always answers");
    leave(&mut decision, left);
    bencher.bench_local(|| {
        metrics.record(
            black_box(&request),
            Some(&domain),
            &resolved,
            black_box(&decision),
            std::time::Duration::from_micros(20),
        );
    });
}

fn leave(decision: &mut Decision, left: Left) {
    decision.refused = matches!(left, Left::Refused);
    for verdict in &mut decision.verdicts {
        match left {
            Left::Nothing => verdict.capacity = 0,
            Left::Half => verdict.view.remaining = verdict.capacity / 2,
            Left::Tenth => verdict.view.remaining = verdict.capacity / 10,
            Left::Refused => verdict.outcome = Outcome::Deny { retry_after: None },
        }
    }
}

/// The value of a future that is ready at the first poll, as the memory store's always is.
fn ready<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => unreachable!("the memory store never waits"),
    }
}
