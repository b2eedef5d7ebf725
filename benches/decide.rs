//! What a decision costs without transport: resolve, decide in memory, build the answer.

use std::sync::Arc;

use cota::answer::answer;
use cota::clock::{Clock as _, SystemClock};
use cota::config::{Source, load};
use cota::engine::decision::Decision;
use cota::engine::descriptor::{Descriptor, Entry, Request};
use cota::engine::key::BudgetKey;
use cota::engine::lease::Ask;
use cota::engine::policy::Domain;
use cota::engine::resolve::{Resolved, resolve};
use cota::engine::time::{Micros, Timestamp};
use cota::store::leased::{Central, Leased, NoAnswer};
use cota::store::memory::Memory;
use cota::store::redis::Return;
use cota::store::{Reply, Store, StoreError};
use divan::{Bencher, black_box};

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

/// The value of a future that is ready at the first poll, as the memory store's always is.
fn ready<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => unreachable!("the memory store never waits"),
    }
}
