//! Replicas of the service on a store, under load, and what must hold through every event.

use std::fs;
use std::time::Duration;

use cota::clock::Stopwatch;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use redis::Value;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cota::{Cota, command, request};
use crate::load::{Load, Sample, WORKERS, degraded};
use crate::support::redis::{Server, await_that};
use crate::told::{STALL, told};

/// The store's time: longer than the 10 ms that are set by default, so that debug builds on a busy machine
/// with two cores stay within it while the store is well, and 10 ms short of a bucket of the histogram.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_millis(190);

/// Within which a store that is back must be used.
pub(crate) const BACK: Duration = Duration::from_secs(1);

const POLICY: &str = "
domain: chaos
descriptors:
  - {key: allow, rate_limit: {name: allow, unit: day, requests_per_unit: 1000000, algorithm: token_bucket, failure_mode: allow}}
  - {key: deny, rate_limit: {name: deny, unit: day, requests_per_unit: 1000000, algorithm: token_bucket, failure_mode: deny}}
  - {key: local, rate_limit: {name: local, unit: day, requests_per_unit: 1000000, algorithm: token_bucket}}
  # Nothing comes back while the test lasts.
  - {key: tight, rate_limit: {name: tight, unit: year, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: bucket, rate_limit: {name: bucket, unit: minute, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: window, rate_limit: {name: window, unit: minute, requests_per_unit: 10, algorithm: fixed_window}}
---
domain: capped
safety_ceiling: {unit: year, requests_per_unit: 6}
descriptors:
  - {key: local, rate_limit: {name: local, unit: day, requests_per_unit: 1000000, algorithm: token_bucket}}
  - {key: allow, rate_limit: {name: allow, unit: day, requests_per_unit: 1000000, algorithm: token_bucket, failure_mode: allow}}
";

/// The replicas and their load.
pub(crate) struct World {
    pub(crate) load: Load,
    pub(crate) replicas: Vec<Cota>,
    timeout: Duration,
    _policy: TempDir,
    _turn: SemaphorePermit<'static>,
}

/// An outage under way.
pub(crate) struct Outage {
    pub(crate) began: Duration,
    /// By replica: how many outages it told of, and its memory.
    told: Vec<usize>,
    resident: Vec<u64>,
}

impl World {
    /// That many replicas on the store, and their load.
    pub(crate) fn start(replicas: usize, store: &str, options: &[&str]) -> Self {
        Self::with_timeout(replicas, store, options, STORE_TIMEOUT)
    }

    /// One replica that as many calls at once reach as it can answer, with the machine to itself.
    pub(crate) fn busy(store: &str, workers: usize) -> Self {
        Self::made(1, store, &[], STORE_TIMEOUT, workers, turns(ALL_TURNS))
    }

    pub(crate) fn with_timeout(replicas: usize, store: &str, options: &[&str], timeout: Duration) -> Self {
        Self::made(replicas, store, options, timeout, WORKERS, turns(1))
    }

    fn made(
        replicas: usize,
        store: &str,
        options: &[&str],
        timeout: Duration,
        workers: usize,
        turn: SemaphorePermit<'static>,
    ) -> Self {
        let policy = tempfile::tempdir().unwrap();
        fs::write(policy.path().join("policy.yaml"), POLICY).unwrap();
        let replicas: Vec<Cota> = (0..replicas)
            .map(|_| {
                let mut serve = command(&["serve", "--drain", "0s", "--store", store]);
                serve.args(options).arg("--config").arg(policy.path());
                serve.args(["--store-timeout", &format!("{}ms", timeout.as_millis())]);
                Cota::start(&mut serve)
            })
            .collect();
        let addresses: Vec<_> = replicas.iter().map(|replica| replica.grpc).collect();
        Self {
            load: Load::start(&addresses, workers),
            replicas,
            timeout,
            _policy: policy,
            _turn: turn,
        }
    }

    /// Waits until every replica has counted all.
    pub(crate) fn counted(&self) {
        let counted = format!("replicas={}", self.replicas.len());
        let counts = |replica: &Cota| self.replicas.len() == 1 || replica.log().contains(&counted);
        await_that("the replicas are counted", || self.replicas.iter().all(counts));
    }

    /// Waits for that many more answers, none of them degraded but for stalls of the machine, and returns
    /// them.
    pub(crate) fn undisturbed(&self, answers: usize) -> Vec<Sample> {
        let from = self.load.now();
        let samples = self.answers(from, answers);
        self.by_failure_mode(from, |_| false);
        samples
    }

    pub(crate) fn answers(&self, from: Duration, answers: usize) -> Vec<Sample> {
        let mut samples = Vec::new();
        await_that("answers", || {
            samples = self.load.since(from);
            samples.len() >= answers
        });
        samples
    }

    /// To be called before what brings an outage about.
    pub(crate) fn before(&self) -> Outage {
        self.well();
        self.now()
    }

    /// The same where the store is out from the start.
    pub(crate) fn now(&self) -> Outage {
        Outage {
            began: self.load.now(),
            told: self
                .replicas
                .iter()
                .map(|replica| told(&replica.log()).len())
                .collect(),
            resident: self.replicas.iter().map(Cota::resident).collect(),
        }
    }

    /// Waits until every replica says in every way that it is degraded.
    pub(crate) fn degraded(&self) {
        for replica in &self.replicas {
            await_that("it says that it is degraded", || {
                replica.metric("cota_store_degraded", &[]) == 1
            });
            let (status, body) = replica.get("/readyz");
            assert_eq!(status, 200);
            assert!(body.starts_with("ok\ndegraded: store "), "{body}");
        }
    }

    /// Waits until every replica says that it is well.
    pub(crate) fn well(&self) {
        for replica in &self.replicas {
            await_that("it says that it is well", || {
                replica.metric("cota_store_degraded", &[]) == 0
                    && replica.get("/readyz") == (200, "ok\n".to_owned())
            });
        }
    }

    /// Checks everything about an outage of the shards at these addresses, which ended at `back`.
    pub(crate) fn over(
        &self,
        outage: &Outage,
        back: Duration,
        shards: &[String],
        concerned: impl Fn(u16) -> bool,
    ) {
        self.by_failure_mode(outage.began, concerned);
        // From then on a hundred answers in a row are the store's.
        let mut recovery = None;
        await_that("nobody is degraded", || {
            let samples = self.load.since(back);
            recovery = samples
                .windows(100)
                .find(|row| row.iter().all(|sample| !sample.degraded))
                .map(|row| row[0].at - back);
            recovery.is_some()
        });
        let recovery = recovery.unwrap();
        assert!(recovery < BACK, "{recovery:?} after the store was back");
        self.well();
        for at in 0..self.replicas.len() {
            assert_eq!(self.told(outage, at), shards);
            // A few megabytes are the allocator's.
            let (before, now) = (outage.resident[at], self.replicas[at].resident());
            assert!(now < before + before / 5 + 8_000, "from {before} to {now} kB");
        }
        self.in_time();
        let samples = self.load.since(outage.began);
        let longest = samples.iter().map(|sample| sample.took).max();
        eprintln!("outage of {shards:?}: longest answer {longest:?}, recovery {recovery:?}");
    }

    /// The shards of whose outages a replica told since then, but for stalls of the machine.
    pub(crate) fn told(&self, since: &Outage, replica: usize) -> Vec<String> {
        let told = told(&self.replicas[replica].log());
        let (counts, stalls): (Vec<_>, Vec<_>) = told
            .into_iter()
            .skip(since.told[replica])
            .partition(|told| told.counts());
        assert!(stalls.len() <= 4, "{stalls:?}");
        counts.into_iter().map(|told| told.shard).collect()
    }

    /// Every answer since then is the store's, or by failure mode and of a caller whom the outage concerns.
    pub(crate) fn by_failure_mode(&self, since: Duration, concerned: impl Fn(u16) -> bool) {
        let samples = self.load.since(since);
        for sample in &samples {
            let refused = sample.degraded && sample.kind == "deny";
            assert_eq!(sample.refused, refused, "{sample:?}");
        }
        let (concerned, others): (Vec<_>, Vec<_>) = samples.iter().partition(|sample| concerned(sample.slot));
        let degraded = others.iter().filter(|sample| sample.degraded).count();
        assert!(
            degraded <= STALL as usize + others.len() / 100,
            "{degraded} of {} that it does not concern, beside {}",
            others.len(),
            concerned.len()
        );
    }

    /// How many of so many requests of a caller one replica lets pass.
    pub(crate) fn admitted(&self, replica: usize, domain: &str, key: &str, caller: &str, of: usize) -> usize {
        let admit = |_: &usize| {
            let answer = self.replicas[replica].send(request(domain, &[&[(key, caller)]]));
            answer.unwrap().overall_code() == Code::Ok
        };
        (0..of).filter(admit).count()
    }

    /// Whether a replica decides without the store for a caller.
    pub(crate) fn is_degraded(&self, replica: usize, key: &str, caller: &str) -> bool {
        let answer = self.replicas[replica].send(request("chaos", &[&[(key, caller)]]));
        degraded(&answer.unwrap())
    }

    /// No answer took longer than the store's time and 10 ms by the service's own clock, and 10 ms more by the
    /// caller's, for the way there and back in two debug builds.
    ///
    /// What the machine took from everybody is not the service's: the time in which a thread that only watches
    /// was not woken counts for nothing. Other threads may wait longer for one of two busy cores than that one,
    /// and all that wait for a store at that moment are late together: one answer in 500 and three rounds of the
    /// load may be, but not most of those that waited the store's whole time, and none by more than such a wait
    /// can be. The service's histogram knows nothing of stalls: there one in hundred may be. Where the whole
    /// time is no longer than a wait for a core, one in twenty.
    pub(crate) fn in_time(&self) {
        const WAIT: Duration = Duration::from_millis(300);
        let limit = self.timeout + Duration::from_millis(10);
        let short = self.timeout < STORE_TIMEOUT;
        let samples = self.load.since(Duration::ZERO);
        let took: Vec<_> = samples.iter().map(|sample| self.load.took(sample)).collect();
        let to_caller = limit + Duration::from_millis(10);
        let late = took.iter().filter(|&&took| took > to_caller).count();
        let excused = samples.len() / if short { 20 } else { 500 };
        let all = samples.len();
        assert!(late <= excused + STALL as usize, "{late} of {all} were late");
        let waited = took.iter().filter(|&&took| took >= self.timeout).count();
        // Too few say nothing: they may have waited in one stall.
        assert!(
            short || waited <= 2 * WORKERS || late * 4 <= waited * 3,
            "{late} of {waited} that waited were late"
        );
        let longest = samples.iter().map(|sample| sample.took).max();
        assert!(longest.unwrap_or_default() < limit + WAIT, "{longest:?}");
        eprintln!("{late} of {all}, of which {waited} waited, took longer than {to_caller:?} to the caller");
        for replica in &self.replicas {
            let metrics = replica.get("/metrics").1;
            let value = |rest: &str| -> u64 {
                let name = format!("cota_decision_duration_seconds_{rest} ");
                let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
                value.unwrap().parse().unwrap()
            };
            let within = |limit: Duration| value(&format!("bucket{{le=\"{}\"}}", limit.as_secs_f64()));
            let all = value("count");
            let late = all - within(limit);
            let excused = all / if short { 20 } else { 100 };
            assert!(late <= excused + 1, "{late} of {all} were late");
            assert_eq!(all, within(Duration::from_millis(500)));
            eprintln!("{late} of {all} took the service longer than {limit:?}");
        }
    }

    /// How many answers since then were degraded, of callers for whom that holds, and of how many.
    pub(crate) fn degraded_of(&self, since: Duration, concerned: impl Fn(u16) -> bool) -> (usize, usize) {
        let samples = self.load.since(since);
        let concerned = samples.iter().filter(|sample| concerned(sample.slot));
        let degraded = concerned.clone().filter(|sample| sample.degraded);
        (degraded.count(), concerned.count())
    }

    /// How many degraded verdicts a replica counted, by mode.
    pub(crate) fn verdicts(&self, replica: usize, mode: &str) -> u64 {
        let mode = format!("failure_mode=\"{mode}\"");
        self.replicas[replica].metric("cota_degraded_decisions_total", &[&mode])
    }

    /// The same as told when outages ended, by mode: local, allow, deny.
    pub(crate) fn told_verdicts(&self, replica: usize) -> [u64; 3] {
        let told = told(&self.replicas[replica].log());
        let sum = |mode: usize| told.iter().filter_map(|told| Some(told.decisions?[mode])).sum();
        [0, 1, 2].map(sum)
    }

    pub(crate) fn errors(&self, kind: &str) -> u64 {
        let kind = format!("kind=\"{kind}\"");
        let errors = |replica: &Cota| replica.metric("cota_store_errors_total", &[&kind]);
        self.replicas.iter().map(errors).sum()
    }
}

/// Three worlds at a time: all of them would be a test of the machine.
const ALL_TURNS: u32 = 3;

fn turns(number: u32) -> SemaphorePermit<'static> {
    static TURNS: Semaphore = Semaphore::const_new(ALL_TURNS as usize);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(TURNS.acquire_many(number)).unwrap()
}

/// Every key on the server ends by itself. Those of a replica are its primary's.
pub(crate) fn every_key_ends(server: &Server) {
    if server.text(&["INFO", "replication"]).contains("role:slave") {
        return;
    }
    let (mut cursor, mut keys) = ("0".to_owned(), 0);
    loop {
        let page = server.ask(&["SCAN", &cursor, "COUNT", "1000"]);
        let (next, page): (String, Vec<String>) = redis::from_redis_value(page).unwrap();
        for key in page {
            keys += 1;
            // -2: it has just ended.
            assert_ne!(server.ask(&["PTTL", &key]), Value::Int(-1), "{key}");
        }
        if next == "0" {
            break;
        }
        cursor = next;
    }
    assert!(keys > 0, "there were keys");
}

/// Waits until that much time has passed.
pub(crate) fn lasts(time: Duration) {
    let watch = Stopwatch::start();
    await_that("time passes", || watch.elapsed() >= time);
}
