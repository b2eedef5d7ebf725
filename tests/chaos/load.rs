//! A steady load on two replicas, and what became of each call.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cota::clock::Stopwatch;
use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::Runtime;
use tokio::time::MissedTickBehavior;
use tonic::transport::{Channel, Endpoint};

use crate::cota::request;
use crate::support::redis::slot;

/// How many call at once, and how often each: some six hundred calls a second, which debug builds on a busy
/// machine with two cores answer at leisure.
pub(crate) const WORKERS: usize = 8;
const EVERY: Duration = Duration::from_millis(12);

/// Callers of each kind: enough to be on every shard.
const CALLERS: usize = 40;

/// The descriptor keys of the policy's limits, each named after its failure mode. None refuses anybody.
pub(crate) const KINDS: [&str; 3] = ["allow", "deny", "local"];

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) kind: &'static str,
    pub(crate) slot: u16,
    pub(crate) refused: bool,
    pub(crate) degraded: bool,
    pub(crate) took: Duration,
    /// When the answer came.
    pub(crate) at: Duration,
}

/// Callers that go on until it is dropped. A call that fails, or an odd answer, fails the test.
pub(crate) struct Load {
    pub(crate) runtime: Runtime,
    began: Stopwatch,
    samples: Arc<Mutex<Vec<Sample>>>,
    failures: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    /// When the machine did not let us go on: from and until.
    stalls: Arc<Mutex<Vec<(Duration, Duration)>>>,
}

impl Load {
    pub(crate) fn start(replicas: &[SocketAddr], workers: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let load = Self {
            runtime,
            began: Stopwatch::start(),
            samples: Arc::default(),
            failures: Arc::default(),
            stop: Arc::default(),
            stalls: Arc::default(),
        };
        load.watch_the_machine();
        let _inside = load.runtime.enter();
        let channels: Vec<Channel> = replicas.iter().map(|&address| channel(address)).collect();
        for worker in 0..workers {
            let channels = channels.clone();
            let (samples, failures) = (Arc::clone(&load.samples), Arc::clone(&load.failures));
            let (stop, began) = (Arc::clone(&load.stop), load.began);
            load.runtime.spawn(async move {
                let mut tick = tokio::time::interval(EVERY);
                tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for call in (worker..).step_by(workers) {
                    tick.tick().await;
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let channel = channels[call / workers % channels.len()].clone();
                    match one(channel, call, began).await {
                        Ok(sample) => samples.lock().unwrap().push(sample),
                        Err(failure) => failures.lock().unwrap().push(failure),
                    }
                }
            });
        }
        drop(_inside);
        load
    }

    /// The time on the samples' clock.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Notes when a thread that only wants to wake up every few milliseconds is late: what threads that have
    /// more to do meet at that time is the machine's doing too.
    fn watch_the_machine(&self) {
        const EVERY: Duration = Duration::from_millis(2);
        let (began, stop, stalls) = (self.began, Arc::clone(&self.stop), Arc::clone(&self.stalls));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let due = began.elapsed() + EVERY;
                thread::sleep(EVERY);
                let woken = began.elapsed();
                if woken - due > EVERY {
                    stalls.lock().unwrap().push((due, woken));
                }
            }
        });
    }

    /// How long an answer took when the machine let us go on.
    pub(crate) fn took(&self, sample: &Sample) -> Duration {
        let (asked, answered) = (sample.at.saturating_sub(sample.took), sample.at);
        let stalls = self.stalls.lock().unwrap();
        let within =
            |&(from, until): &(Duration, Duration)| until.min(answered).saturating_sub(from.max(asked));
        let from = stalls.partition_point(|&(_, until)| until < asked);
        let stalled: Duration = stalls[from..].iter().map(within).sum();
        sample.took.saturating_sub(stalled)
    }

    /// The samples since that time.
    pub(crate) fn since(&self, from: Duration) -> Vec<Sample> {
        let failures = self.failures.lock().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        let samples = self.samples.lock().unwrap();
        samples
            .iter()
            .filter(|sample| sample.at >= from)
            .cloned()
            .collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn one(channel: Channel, call: usize, began: Stopwatch) -> Result<Sample, String> {
    let kind = KINDS[call % KINDS.len()];
    let caller = format!("c{}", call / KINDS.len() % CALLERS);
    let message = request("chaos", &[&[(kind, &caller)]]);
    let watch = Stopwatch::start();
    let answer = RateLimitServiceClient::new(channel)
        .should_rate_limit(message)
        .await
        .map_err(|status| format!("{kind}: {status}"))?;
    let took = watch.elapsed();
    let answer = answer.into_inner();
    let refused = match answer.overall_code() {
        Code::Ok => false,
        Code::OverLimit => true,
        Code::Unknown => return Err(format!("{kind}: {answer:?}")),
    };
    Ok(Sample {
        kind,
        slot: slot(&format!("chaos|{kind}={caller}")),
        refused,
        degraded: degraded(&answer),
        took,
        at: began.elapsed(),
    })
}

/// Whether the answer says that it was found without the store.
pub(crate) fn degraded(answer: &RateLimitResponse) -> bool {
    let metadata = answer.dynamic_metadata.as_ref();
    metadata.is_some_and(|metadata| metadata.fields.contains_key("degraded"))
}

fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .timeout(Duration::from_secs(20))
        .connect_lazy()
}
