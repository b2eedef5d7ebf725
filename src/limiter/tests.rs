use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::clock::ManualClock;
use crate::engine::limit::{Limit, Unit};
use crate::store::memory::Memory;
use crate::support::policy::{NOON, bucket, costing, domain, fixed, leaky, policy, request, waiting};

const ACME: &[(&str, &str)] = &[("tenant", "acme")];

/// A limiter over memory whose clock stands still, and the policy of one tenant's limits.
struct Desk<S = Memory<ManualClock>> {
    limiter: Limiter<S, ManualClock>,
    policy: Arc<Policy>,
}

impl Desk {
    fn new(limits: Vec<Limit>) -> Self {
        let clock = ManualClock::at(NOON);
        Desk::over(Memory::new(clock.clone(), 100_000), clock, limits)
    }
}

impl<S: Store> Desk<S> {
    fn over(store: S, clock: ManualClock, limits: Vec<Limit>) -> Self {
        let policy = Arc::new(policy([domain([(&[("tenant", None)], limits)])]));
        let in_force = Arc::new(ArcSwap::from(Arc::clone(&policy)));
        Self {
            limiter: Limiter::new(store, clock, in_force, false),
            policy,
        }
    }

    async fn ask(&self, deadline: Option<Duration>) -> Decision {
        let decided = self
            .limiter
            .decide(
                &self.policy,
                &request(&[ACME]),
                deadline,
                &mut Resolved::default(),
            )
            .await;
        decided.unwrap().decision
    }

    /// What is left of acme's first budget, and how long it takes to say so.
    async fn remaining(&self) -> u64 {
        let look = costing(request(&[ACME]), 0);
        let decided = self
            .limiter
            .decide(&self.policy, &look, None, &mut Resolved::default())
            .await;
        decided.unwrap().decision.verdicts[0].view.remaining
    }

    fn held(&self) -> usize {
        self.limiter.held.load(Ordering::Relaxed)
    }
}

/// What a future came to, and how much of the paused time went by.
async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the runtime's paused time is what is measured"
    )]
    let now = tokio::time::Instant::now;
    let start = now();
    let value = future.await;
    (value, now() - start)
}

/// Polls once.
fn pending<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(future.poll(&mut context), Poll::Pending)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One a second at once, the others held up to five seconds.
fn one_a_second() -> Limit {
    waiting(bucket("tenant", 60, 1, Unit::Minute), Micros::from_secs(5))
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_held_as_long_as_its_budget_needs() {
    let desk = Desk::new(vec![one_a_second()]);
    for seconds in 0..=5 {
        let (decision, took) = timed(desk.ask(None)).await;
        assert!(!decision.refused);
        assert_eq!(
            (took, decision.wait),
            (ms(seconds * 1_000), Micros::from_secs(seconds))
        );
    }
    let (decision, took) = timed(desk.ask(None)).await;
    assert_eq!((decision.refused, took), (true, ms(0)));
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_spaces_its_answers() {
    let desk = Desk::new(vec![leaky("tenant", 10, Unit::Second, Micros::SECOND)]);
    let all = (0..11).map(|_| timed(desk.ask(None)));
    let mut took = Vec::new();
    for future in all {
        took.push(future.await.1);
    }
    let wanted: Vec<_> = (0..11).map(|i| ms(i * 100)).collect();
    assert_eq!(took, wanted);
}

#[tokio::test(start_paused = true)]
async fn of_several_waits_the_longest_is_held() {
    let slow = waiting(bucket("slow", 30, 1, Unit::Minute), Micros::from_secs(9));
    let desk = Desk::new(vec![one_a_second(), slow, fixed("hour", 99, Unit::Hour)]);
    desk.ask(None).await;
    assert_eq!(timed(desk.ask(None)).await.1, ms(2_000));
}

#[tokio::test(start_paused = true)]
async fn a_limit_in_shadow_mode_holds_nothing() {
    let shadow = Limit {
        shadow: true,
        ..one_a_second()
    };
    let desk = Desk::new(vec![shadow]);
    desk.ask(None).await;
    let (decision, took) = timed(desk.ask(None)).await;
    assert_eq!((decision.refused, took), (false, ms(0)));
    assert_eq!(desk.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_away_gets_back_what_was_charged() {
    let desk = Desk::new(vec![fixed("hour", 99, Unit::Hour), one_a_second()]);
    desk.ask(None).await;
    {
        let mut held = pin!(desk.ask(None));
        assert!(pending(held.as_mut()));
        assert_eq!((desk.remaining().await, desk.held()), (97, 1));
        tokio::time::advance(ms(999)).await;
        assert!(pending(held.as_mut()));
    }
    assert_eq!((desk.remaining().await, desk.held()), (98, 0));
    // The place in the queue is free again as well.
    assert_eq!(timed(desk.ask(None)).await.1, ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_stays_charged() {
    let desk = Desk::new(vec![fixed("hour", 99, Unit::Hour), one_a_second()]);
    desk.ask(None).await;
    drop(desk.ask(None).await);
    assert_eq!((desk.remaining().await, desk.held()), (97, 0));
}

#[tokio::test(start_paused = true)]
async fn a_held_answer_is_out_five_milliseconds_before_the_callers_deadline() {
    let desk = Desk::new(vec![one_a_second()]);
    desk.ask(None).await;
    let (decision, took) = timed(desk.ask(Some(ms(1_005)))).await;
    assert_eq!((decision.refused, took), (false, ms(1_000)));
}

#[tokio::test(start_paused = true)]
async fn a_wait_past_the_deadline_is_refused_at_once_and_uncharged() {
    let desk = Desk::new(vec![fixed("hour", 99, Unit::Hour), one_a_second()]);
    desk.ask(None).await;
    for deadline in [ms(1_004), ms(20), ms(5), ms(4), ms(1)] {
        let (decision, took) = timed(desk.ask(Some(deadline))).await;
        assert_eq!((decision.refused, took), (true, ms(0)), "{deadline:?}");
    }
    assert_eq!(desk.remaining().await, 98);
    assert_eq!(timed(desk.ask(Some(Duration::MAX))).await.1, ms(1_000));
}

/// A queue long enough for more than may be held.
fn endless() -> Limit {
    leaky("tenant", 1_000, Unit::Second, Micros::from_secs(3_600))
}

#[tokio::test(start_paused = true)]
async fn no_more_than_ten_thousand_answers_are_held() {
    let desk = Desk::new(vec![endless()]);
    desk.ask(None).await;
    let mut waiting: Vec<_> = (0..MAX_HELD).map(|_| Box::pin(desk.ask(None))).collect();
    assert!(waiting.iter_mut().all(|future| pending(future.as_mut())));
    assert_eq!(desk.held(), MAX_HELD);
    let before = desk.remaining().await;
    let (decision, took) = timed(desk.ask(None)).await;
    assert_eq!((decision.refused, took), (true, ms(0)));
    assert_eq!(desk.remaining().await, before);
    drop(waiting.pop());
    let mut next = pin!(desk.ask(None));
    assert!(pending(next.as_mut()));
    drop(waiting);
    assert_eq!(desk.held(), 1);
}

/// A store that takes its time, as one over the network does.
struct Slow(Memory<ManualClock>);

impl Store for Slow {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        tokio::task::yield_now().await;
        self.0.decide(resolved, wait_cap).await
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        self.0.give_back(resolved, decision);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_lets_no_more_of_them_in() {
    let clock = ManualClock::at(NOON);
    let store = Slow(Memory::new(clock.clone(), 1_000));
    let desk = Desk::over(store, clock, vec![endless()]);
    let mut asking: Vec<_> = (0..MAX_HELD + 50).map(|_| Box::pin(desk.ask(None))).collect();
    for future in &mut asking {
        assert!(pending(future.as_mut()), "the store is asked");
    }
    let held = asking
        .iter_mut()
        .filter_map(|f| pending(f.as_mut()).then_some(()))
        .count();
    // One went at once, fifty found no place.
    assert_eq!(held, MAX_HELD - 1);
    assert_eq!(desk.held(), MAX_HELD - 1);
}

/// A store that cannot be reached.
struct Broken;

impl Store for Broken {
    async fn decide(&self, _: &mut Resolved<'_>, _: Micros) -> Result<Decision, StoreError> {
        Err(StoreError::Unavailable("connection refused".into()))
    }

    fn give_back(&self, _: &Resolved<'_>, _: &Decision) {}
}

#[tokio::test(start_paused = true)]
async fn a_store_without_an_answer_is_an_error_that_leaves_nothing_held() {
    let desk = Desk::over(Broken, ManualClock::at(NOON), vec![one_a_second()]);
    let request = request(&[ACME]);
    let asked = desk
        .limiter
        .decide(&desk.policy, &request, None, &mut Resolved::default())
        .await;
    assert!(matches!(asked, Err(LimiterError::Store(_))));
    assert_eq!(desk.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_has_given_up_is_neither_decided_nor_charged() {
    let desk = Desk::new(vec![bucket("tenant", 10, 10, Unit::Hour)]);
    let request = request(&[ACME]);
    let late = Some(Duration::ZERO);
    let asked = desk
        .limiter
        .decide(&desk.policy, &request, late, &mut Resolved::default())
        .await;
    assert!(matches!(asked, Err(LimiterError::Late)));
    assert_eq!(desk.remaining().await, 10);
    desk.ask(Some(Duration::from_nanos(1))).await;
    assert_eq!(desk.remaining().await, 9);
}

async fn error<'a>(policy: &'a Policy, request: &Request<'a>) -> String {
    let desk = Desk::new(vec![]);
    match desk
        .limiter
        .decide(policy, request, None, &mut Resolved::default())
        .await
    {
        Ok(_) => panic!("decided"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_requests_are_errors_that_name_the_domain() {
    let none = Policy::default();
    let some = policy([domain([])]);
    let nameless = Request::default();
    let empty = Request {
        domain: "api",
        ..Request::default()
    };
    let long = "d\n".repeat(100);
    let cut = Request {
        domain: &long,
        ..Request::default()
    };
    for policy in [&none, &some] {
        assert_eq!(error(policy, &nameless).await, "the request has no domain");
        let wanted = r#"the request for domain "api" has no descriptors"#;
        assert_eq!(error(policy, &empty).await, wanted);
        let told = error(policy, &cut).await;
        assert!(told.len() < 200 && !told.contains('\n'), "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_policy_there_is_no_answer() {
    assert_eq!(
        error(&Policy::default(), &request(&[ACME])).await,
        "no policy is in force"
    );
}

#[tokio::test(start_paused = true)]
async fn a_domain_without_rules_passes() {
    let desk = Desk::new(vec![fixed("tenant", 0, Unit::Hour)]);
    let other = Request {
        domain: "other",
        ..request(&[ACME])
    };
    let decided = desk
        .limiter
        .decide(&desk.policy, &other, None, &mut Resolved::default())
        .await
        .unwrap();
    assert!(decided.domain.is_none() && !decided.decision.refused);
}

#[tokio::test(start_paused = true)]
async fn in_shadow_mode_nothing_is_refused() {
    let clock = ManualClock::at(NOON);
    let in_force = policy([domain([(&[("tenant", None)], vec![fixed("t", 0, Unit::Hour)])])]);
    let store = Memory::new(clock.clone(), 100);
    let limiter = Limiter::new(store, clock, Arc::new(ArcSwap::from_pointee(in_force)), true);
    let policy = limiter.policy();
    let request = request(&[ACME]);
    let decided = limiter
        .decide(&policy, &request, None, &mut Resolved::default())
        .await
        .unwrap();
    assert!(!decided.decision.refused && decided.decision.denies(0));
}

#[tokio::test(start_paused = true)]
async fn a_request_keeps_the_policy_it_began_with() {
    let in_force = Arc::new(ArcSwap::from_pointee(policy([])));
    let clock = ManualClock::at(NOON);
    let limiter = Limiter::new(
        Memory::new(clock.clone(), 100),
        clock,
        Arc::clone(&in_force),
        false,
    );
    let before = limiter.policy();
    in_force.store(Arc::new(Policy {
        version: 2,
        ..Policy::default()
    }));
    assert_eq!((before.version, limiter.policy().version), (1, 2));
}
