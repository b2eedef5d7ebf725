use super::*;
use crate::engine::limit::{Algorithm, Unit, windows_of};
use crate::engine::time::Windows;

const T0: Timestamp = Timestamp(1_000_000_000);

fn numbers(units: u64, burst: u64, share: u32) -> Numbers {
    Numbers {
        requests_per_unit: units,
        burst,
        max_wait: Micros::ZERO,
        max_overshoot: Share(share),
        unlimited: false,
    }
}

fn terms(algorithm: &Algorithm, numbers: Numbers) -> Terms<'_> {
    Terms {
        algorithm,
        units: numbers.requests_per_unit,
        period: Micros::from_secs(60),
        burst: numbers.burst,
        max_wait: Micros::ZERO,
        overdraft: false,
        excess: None,
    }
}

fn minute() -> Algorithm {
    Algorithm::FixedWindow(windows_of(Unit::Minute, jiff::tz::TimeZone::UTC))
}

/// A lease of a bucket, after so many requests of that cost within a moment.
fn asked(numbers: Numbers, requests: u64, cost: u64) -> Lease {
    let mut lease = Lease::new(numbers, T0);
    for _ in 0..requests {
        assert!(!lease.covers(numbers, cost, T0));
    }
    lease.hear(numbers, numbers.burst, cost);
    lease
}

/// So many requests more of cost 1.
fn again(lease: &mut Lease, numbers: Numbers, requests: u64, now: Timestamp) {
    for _ in 0..requests {
        lease.covers(numbers, 1, now);
    }
}

fn wish(lease: &mut Lease, numbers: Numbers, replicas: u32, now: Timestamp) -> Option<u64> {
    let terms = terms(&Algorithm::TokenBucket, numbers);
    let (_, ask) = lease.ask(numbers, &terms, replicas, || 1, now)?;
    Some(ask.units)
}

fn said(used: u64) -> Said {
    Said {
        state: State {
            used,
            part: 0,
            at: 77,
        },
        at: Timestamp(77),
        heard: T0,
    }
}

fn block(id: u64, units: u64, numbers: Numbers, now: Timestamp) -> Block {
    let terms = terms(&Algorithm::TokenBucket, numbers);
    Block::new(id, units, &said(0), (0, Micros::ZERO), &terms, (now, now))
}

#[test]
fn the_bound_is_a_share_of_what_may_come_at_once() {
    let bucket = |units, burst, share| {
        bound(
            &terms(&Algorithm::TokenBucket, numbers(units, burst, share)),
            Share(share),
        )
    };
    assert_eq!(bucket(6_000, 900, 500), 45);
    assert_eq!(bucket(6_000, 900, 555), 49);
    assert_eq!(bucket(0, 900, 500), 0);
    let window = minute();
    assert_eq!(bound(&terms(&window, numbers(6_000, 1, 500)), Share(500)), 300);
    assert_eq!(
        bound(&terms(&window, numbers(u64::MAX, 1, 10_000)), Share(10_000)),
        u64::MAX
    );
}

#[test]
fn shares_are_read_as_they_are_written() {
    let shown: Vec<String> = [500, 250, 25, 5, 10_000].map(|n| Share(n).to_string()).into();
    assert_eq!(shown, ["5%", "2.5%", "0.25%", "0.05%", "100%"]);
}

#[test]
fn a_block_is_for_half_a_second_of_demand_within_the_replicas_part_of_the_bound() {
    let numbers = numbers(1 << 20, 100_000, 1_000);
    // Of twenty requests within a span of 100 ms, five times as many; of a bound of 10,000 a quarter.
    assert_eq!(wish(&mut asked(numbers, 20, 1), numbers, 2, T0), Some(100));
    assert_eq!(wish(&mut asked(numbers, 20, 7), numbers, 2, T0), Some(700));
    assert_eq!(wish(&mut asked(numbers, 2_000, 1), numbers, 2, T0), Some(2_500));
    assert_eq!(wish(&mut asked(numbers, 2_000, 1), numbers, 1, T0), Some(5_000));
    // So many replicas that none has a part: the first to come have it.
    assert_eq!(wish(&mut asked(numbers, 2_000, 1), numbers, 1_000, T0), Some(8));
    // Little is left of the budget.
    let mut lease = asked(numbers, 2_000, 1);
    lease.hear(numbers, 400, 0);
    assert_eq!(wish(&mut lease, numbers, 2, T0), Some(100));
    lease.hear(numbers, 31, 0);
    assert_eq!(wish(&mut asked(numbers, 1, 1), numbers, 2, T0), None);
}

#[test]
fn what_stands_for_less_than_eight_requests_is_not_asked_for() {
    let wide = numbers(1 << 20, 100_000, 1_000);
    assert_eq!(wish(&mut asked(wide, 1, 1), wide, 1, T0), None);
    assert_eq!(wish(&mut asked(wide, 2, 1), wide, 1, T0), Some(10));
    let narrow = numbers(1 << 20, 160, 1_000);
    assert_eq!(wish(&mut asked(narrow, 100, 1), narrow, 1, T0), Some(8));
    assert_eq!(wish(&mut asked(narrow, 100, 2), narrow, 1, T0), None);
    // Nobody said yet what there is.
    let mut lease = Lease::new(wide, T0);
    again(&mut lease, wide, 50, T0);
    assert_eq!(wish(&mut lease, wide, 1, T0), None);
}

#[test]
fn the_next_block_is_asked_for_when_half_is_spent_or_it_grows_old() {
    let numbers = numbers(1 << 20, 100_000, 1_000);
    let taken = || {
        let mut lease = asked(numbers, 20, 1);
        let terms = terms(&Algorithm::TokenBucket, numbers);
        assert_eq!(wish(&mut lease, numbers, 2, T0), Some(100));
        assert_eq!(wish(&mut lease, numbers, 2, T0), None, "one at a time");
        assert!(lease.take(block(1, 100, numbers, T0), said(120), &terms, T0));
        lease
    };
    let mut lease = taken();
    lease.spend(49, T0);
    assert_eq!(wish(&mut lease, numbers, 2, T0), None);
    lease.spend(1, T0);
    assert!(wish(&mut lease, numbers, 2, T0).is_some());

    let (mut lease, old) = (taken(), T0.plus(Micros::from_millis(1_400)));
    assert_eq!(
        wish(&mut lease, numbers, 2, old),
        None,
        "not for what came long ago"
    );
    again(&mut lease, numbers, 20, old);
    assert!(wish(&mut lease, numbers, 2, old).is_some());
}

#[test]
fn blocks_are_spent_in_the_order_in_which_they_die() {
    let numbers = numbers(1 << 20, 100_000, 1_000);
    let terms = terms(&Algorithm::TokenBucket, numbers);
    let mut lease = asked(numbers, 20, 1);
    let later = T0.plus(Micros::from_millis(100));
    for (id, now) in [(1, T0), (2, later)] {
        lease.taking = Some(id);
        assert!(lease.take(block(id, 100, numbers, now), said(200), &terms, now));
    }
    assert!(lease.covers(numbers, 200, later) && !lease.covers(numbers, 201, later));
    lease.spend(130, later);
    assert_eq!((lease.in_hand(later), lease.spent.as_slice()), (70, &[1][..]));
    // Shown is what the store said, with what is in hand.
    let (view, at) = lease.view(&terms, later).unwrap();
    assert_eq!((view.remaining, at), (100_000 - 200 + 70, Timestamp(77)));
    // What is shown of time goes on with our clock: 130 units take 7,439 us to come back.
    let reset = |micros| lease.view(&terms, T0.plus(Micros(micros))).unwrap().0.reset;
    assert_eq!(
        (reset(0), reset(7_000), reset(8_000)),
        (Micros(7_439), Micros(439), Micros::ZERO)
    );
    lease.hear(numbers, 5, 30);
    assert_eq!(lease.view(&terms, later).unwrap().0.remaining, 100_000 - 230 + 70);
    // The second dies.
    let dead = later.plus(SPENT_FOR);
    assert!(!lease.covers(numbers, 1, dead));
    let back = lease.tend(dead);
    assert_eq!(
        back.iter()
            .map(|block| (block.id, block.left))
            .collect::<Vec<_>>(),
        [(2, 70)]
    );
    assert!(!lease.is_held());
}

#[test]
fn what_lies_unused_goes_back_and_is_not_asked_for_again_at_once() {
    let numbers = numbers(1 << 20, 100_000, 1_000);
    let terms = terms(&Algorithm::TokenBucket, numbers);
    let mut lease = asked(numbers, 20, 1);
    wish(&mut lease, numbers, 2, T0);
    lease.take(block(1, 100, numbers, T0), said(120), &terms, T0);
    let later = T0.plus(COOLS);
    assert!(lease.tend(Timestamp(later.0 - 1)).is_empty());
    assert_eq!(lease.tend(later).len(), 1);
    again(&mut lease, numbers, 50, later);
    assert_eq!(wish(&mut lease, numbers, 2, later), None);
    assert!(
        wish(&mut lease, numbers, 2, later.plus(COOLS)).is_none(),
        "cold by then"
    );
    again(&mut lease, numbers, 50, later.plus(COOLS));
    assert!(wish(&mut lease, numbers, 2, later.plus(COOLS)).is_some());
}

#[test]
fn a_block_that_was_not_to_be_had_is_struck_off_with_the_next_and_not_asked_for_at_once() {
    let numbers = numbers(1 << 20, 100_000, 1_000);
    let bucket = terms(&Algorithm::TokenBucket, numbers);
    for (answered, pause) in [(true, REFUSED), (false, UNANSWERED)] {
        let mut lease = asked(numbers, 100, 1);
        wish(&mut lease, numbers, 2, T0);
        lease.miss(1, answered, T0);
        let at = T0.plus(pause);
        assert_eq!(wish(&mut lease, numbers, 2, Timestamp(at.0 - 1)), None);
        again(&mut lease, numbers, 100, at);
        let (_, ask) = lease.ask(numbers, &bucket, 2, || 2, at).unwrap();
        assert_eq!(ask.spent.as_slice(), [1]);
    }
    // A name that is not, or no longer, being taken.
    let mut lease = asked(numbers, 100, 1);
    wish(&mut lease, numbers, 2, T0);
    lease.miss(9, true, T0);
    assert!(lease.is_held());
    assert!(!lease.take(block(9, 100, numbers, T0), said(120), &bucket, T0));
}

#[test]
fn a_block_dies_before_its_window_by_any_clock() {
    let algorithm = minute();
    let terms = terms(&algorithm, numbers(1_000, 1, 1_000));
    let ends = |left: u64| {
        let (called, asked) = (T0.plus(Micros(5_000)), T0);
        let windows = Windows::even(Micros::from_secs(60));
        let at = Timestamp(windows.window(7).end.0 - left);
        let state = State {
            used: 1,
            part: 0,
            at: 7,
        };
        let block = Block::new(
            1,
            10,
            &Said {
                state,
                at,
                heard: called,
            },
            (7, Micros::ZERO),
            &terms,
            (asked, called),
        );
        block.dies.since(T0).0
    };
    assert_eq!(ends(30_000_000), 1_500_000);
    // The store may have said it just as the call was made.
    assert_eq!(ends(1_000_000), 1_000_000);
    assert_eq!(ends(3_000), 5_000, "dead when it comes");
}

#[test]
fn demand_fades_and_a_cold_caller_is_forgotten() {
    let numbers = numbers(1 << 20, 100_000, 1_000);
    let mut lease = asked(numbers, 64, 1);
    let after = |spans: u64| T0.plus(Micros(SPAN.0 * spans));
    assert!(!lease.is_cold(after(1)));
    assert_eq!(lease.demand.expected(after(1)), (160, 160));
    assert_eq!(lease.demand.expected(after(2)), (80, 80));
    assert!(lease.is_cold(after(6)));
    assert_eq!(lease.demand.expected(Timestamp(u64::MAX)), (0, 0));
    lease.taking = Some(1);
    assert!(!lease.is_cold(after(6)));
}
