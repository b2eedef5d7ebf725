//! Several limits, descriptors or callers in one request.

use cota::engine::budget::Outcome;
use cota::engine::descriptor::WireOverride;
use cota::engine::limit::{self, ExcessAction, Limit, Unit};
use cota::engine::policy::Domain;
use cota::engine::time::Micros;

use crate::harness::{ACME, Desk, Harness, KEY, remaining, secs};
use crate::support::policy::{bucket, costing, domain, fixed, leaky, refunding, request, sliding, waiting};

/// One limit for tenants, one for credentials: two callers of their own.
fn two_callers(tenant: Limit, credential: Limit) -> Domain {
    domain([
        (&[("tenant", None)], vec![tenant]),
        (&[("credential", None)], vec![credential]),
    ])
}

fn of_one_caller(limits: Vec<Limit>) -> Domain {
    domain([(&[("tenant", None)], limits)])
}

async fn both<H: Harness>(desk: &Desk<H>) -> Vec<u64> {
    remaining(&desk.ask(&costing(request(&[ACME, KEY]), 0)).await)
}

pub async fn one_refusing_limit_keeps_all_uncharged<H: Harness>() {
    let limits = vec![
        fixed("a", 9, Unit::Minute),
        bucket("b", 2, 2, Unit::Hour),
        sliding("c", 9, Unit::Hour),
    ];
    let desk = Desk::<H>::new(of_one_caller(limits)).await;
    for _ in 0..40 {
        desk.ask(&request(&[ACME])).await;
    }
    let refused = desk.ask(&request(&[ACME])).await;
    assert!(refused.refused);
    assert_eq!(remaining(&refused), [7, 0, 7]);
    assert!(refused.verdicts.iter().all(|verdict| !verdict.charged));
}

pub async fn several_callers_are_charged_together_or_not_at_all<H: Harness>() {
    let desk = Desk::<H>::new(two_callers(
        fixed("tenant", 3, Unit::Hour),
        fixed("credential", 5, Unit::Hour),
    ))
    .await;
    for _ in 0..9 {
        desk.ask(&request(&[ACME, KEY])).await;
    }
    assert_eq!(both(&desk).await, [0, 2]);
    assert!(!desk.ask(&request(&[KEY])).await.refused);
    assert!(desk.ask(&request(&[KEY, ACME])).await.refused);
    assert_eq!(both(&desk).await, [0, 1]);
}

pub async fn one_budget_met_twice_is_charged_once<H: Harness>() {
    let desk = Desk::<H>::new(of_one_caller(vec![fixed("tenant", 9, Unit::Hour)])).await;
    let decision = desk.ask(&request(&[ACME, ACME, ACME])).await;
    assert_eq!(remaining(&decision), [8]);
}

pub async fn of_several_charges_on_one_budget_the_largest_counts<H: Harness>() {
    let desk = Desk::<H>::new(of_one_caller(vec![fixed("tenant", 9, Unit::Hour)])).await;
    let mut twice = costing(request(&[ACME, ACME]), 4);
    twice.descriptors[0].hits_addend = Some(2);
    assert_eq!(remaining(&desk.ask(&twice).await), [5]);
}

pub async fn overdraft_is_charged_beside_a_refusal<H: Harness>() {
    let debt = Limit {
        overdraft: true,
        ..fixed("debt", 9, Unit::Hour)
    };
    let desk = Desk::<H>::new(two_callers(fixed("tenant", 0, Unit::Hour), debt)).await;
    for left in [8, 7, 6] {
        let decision = desk.ask(&request(&[ACME, KEY])).await;
        assert!(decision.refused);
        assert_eq!(remaining(&decision), [0, left]);
    }
}

pub async fn shadow_is_charged_for_itself<H: Harness>() {
    let shadow = Limit {
        shadow: true,
        ..fixed("observed", 2, Unit::Hour)
    };
    let desk = Desk::<H>::new(two_callers(shadow, fixed("credential", 3, Unit::Hour))).await;
    for left in [[1, 2], [0, 1], [0, 0]] {
        let decision = desk.ask(&request(&[ACME, KEY])).await;
        assert_eq!((decision.refused, remaining(&decision)), (false, left.to_vec()));
    }
    desk.ask(&refunding(request(&[ACME]), 2)).await;
    // Refused by the enforced one, it is charged to neither.
    let decision = desk.ask(&request(&[ACME, KEY])).await;
    assert_eq!((decision.refused, remaining(&decision)), (true, vec![2, 0]));
}

pub async fn a_descriptor_over_its_quota_is_not_charged<H: Harness>() {
    let quota = |name, units| Limit {
        quota: true,
        ..fixed(name, units, Unit::Hour)
    };
    let desk = Desk::<H>::new(two_callers(quota("tenant", 1), quota("credential", 3))).await;
    for (refused, left) in [(false, [0, 2]), (false, [0, 1]), (false, [0, 0]), (true, [0, 0])] {
        let decision = desk.ask(&request(&[ACME, KEY])).await;
        assert_eq!((decision.refused, remaining(&decision)), (refused, left.to_vec()));
    }
}

pub async fn the_longest_wait_counts<H: Harness>() {
    let slow = waiting(bucket("slow", 30, 1, Unit::Minute), secs(9));
    let fast = waiting(bucket("fast", 60, 1, Unit::Minute), secs(9));
    let desk = Desk::<H>::new(of_one_caller(vec![fast, slow])).await;
    assert_eq!(desk.ask(&request(&[ACME])).await.wait, secs(0));
    assert_eq!(desk.ask(&request(&[ACME])).await.wait, secs(2));
    assert_eq!(desk.ask(&request(&[ACME])).await.wait, secs(4));
    // One limit cannot wait that long: none is charged.
    let refused = desk.ask_within(&request(&[ACME]), secs(5)).await;
    assert_eq!((refused.refused, refused.wait), (true, secs(0)));
    assert_eq!(desk.ask(&request(&[ACME])).await.wait, secs(6));
}

/// A budget beside one that lets the second request wait for a minute.
async fn beside_a_wait<H: Harness>(limit: Limit) -> Desk<H> {
    let slow = waiting(bucket("slow", 1, 1, Unit::Minute), secs(1_000));
    Desk::new(of_one_caller(vec![limit, slow])).await
}

pub async fn what_was_held_in_vain_is_given_back<H: Harness>() {
    for limit in [
        fixed("beside", 9, Unit::Hour),
        sliding("beside", 9, Unit::Hour),
        bucket("beside", 9, 9, Unit::Hour),
        Limit {
            shadow: true,
            ..fixed("beside", 9, Unit::Hour)
        },
    ] {
        let desk = beside_a_wait::<H>(limit).await;
        let one = request(&[ACME]);
        desk.ask(&one).await;
        let held = desk.ask(&one).await;
        assert_eq!((held.wait, remaining(&held)), (secs(60), vec![7, 0]));
        desk.give_back(&one, &held).await;
        assert_eq!(desk.remaining().await, 8);
        assert_eq!(desk.ask(&one).await.wait, secs(60));
    }
}

pub async fn what_was_charged_to_a_lane_is_given_back_to_the_lane<H: Harness>() {
    let desk = beside_a_wait::<H>(Limit {
        excess: Some(limit::Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 200,
        }),
        ..fixed("beside", 1, Unit::Hour)
    })
    .await;
    let one = request(&[ACME]);
    desk.ask(&one).await;
    let held = desk.ask(&one).await;
    assert_eq!((held.wait, held.verdicts[0].outcome), (secs(60), Outcome::Excess));
    desk.give_back(&one, &held).await;
    let again = desk.ask(&one).await;
    assert_eq!(again.verdicts[0].outcome, Outcome::Excess);
    assert!(desk.ask(&one).await.refused);
}

pub async fn a_window_that_turned_takes_nothing_back<H: Harness>() {
    for limit in [
        fixed("beside", 9, Unit::Minute),
        sliding("beside", 9, Unit::Minute),
    ] {
        let desk = beside_a_wait::<H>(limit).await;
        desk.later(secs(59));
        let one = request(&[ACME]);
        desk.ask(&one).await;
        let held = desk.ask(&one).await;
        desk.later(secs(2));
        let spent = desk.ask(&costing(request(&[ACME]), 1)).await;
        let before = desk.remaining().await;
        assert!(!spent.refused);
        desk.give_back(&one, &held).await;
        assert_eq!(desk.remaining().await, before);
    }
}

pub async fn a_bucket_takes_back_only_what_has_not_drained<H: Harness>() {
    let desk = beside_a_wait::<H>(bucket("beside", 60, 10, Unit::Minute)).await;
    let one = request(&[ACME]);
    desk.ask(&one).await;
    desk.later(secs(2));
    let held = desk.ask(&one).await;
    assert_eq!(held.wait, secs(58));
    desk.later(secs(5));
    // What the held request took has drained: giving it back would be a gift.
    let second = desk.ask(&one).await;
    assert_eq!(remaining(&second)[0], 9);
    desk.give_back(&one, &held).await;
    assert_eq!(desk.remaining().await, 9);
    desk.give_back(&one, &second).await;
    assert_eq!(desk.remaining().await, 10);
}

pub async fn a_lane_takes_back_only_what_has_not_drained<H: Harness>() {
    let desk = beside_a_wait::<H>(Limit {
        excess: Some(limit::Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 200,
        }),
        ..bucket("beside", 60, 1, Unit::Minute)
    })
    .await;
    let one = request(&[ACME]);
    desk.ask(&one).await;
    let held = desk.ask(&one).await;
    assert_eq!(held.verdicts[0].outcome, Outcome::Excess);
    desk.later(secs(5));
    desk.ask(&one).await;
    assert_eq!(desk.ask(&one).await.verdicts[0].outcome, Outcome::Excess);
    desk.give_back(&one, &held).await;
    assert!(desk.ask(&one).await.refused);
}

pub async fn hostile_values_share_nothing<H: Harness>() {
    let desk = Desk::<H>::new(domain([
        (&[("a", None)], vec![fixed("one", 1, Unit::Hour)]),
        (&[("a", None), ("b", None)], vec![fixed("one", 1, Unit::Hour)]),
    ]))
    .await;
    let long = "x".repeat(3_000);
    let longer = "x".repeat(3_001);
    let requests: [&[(&str, &str)]; 14] = [
        &[("a", "x"), ("b", "y:z")],
        &[("a", "x:y"), ("b", "z")],
        &[("a", "x,b=y")],
        &[("a", "x"), ("b", "y")],
        &[("a", "x|one")],
        &[("a", "x}{victim")],
        &[("a", "{victim}")],
        &[("a", "victim")],
        &[("a", "")],
        &[("a", "\0")],
        &[("a", "~0123")],
        &[("a", "x%2C")],
        &[("a", &long)],
        &[("a", &longer)],
    ];
    for entries in requests {
        assert!(!desk.ask(&request(&[entries])).await.refused, "{entries:?}");
    }
    for entries in requests {
        assert!(desk.ask(&request(&[entries])).await.refused, "{entries:?}");
    }
}

pub async fn limits_sent_along_are_budgets_of_their_own<H: Harness>() {
    // The policy's own limit has the name, keys and window that a limit sent along is known by.
    let desk = Desk::<H>::of(fixed("override", 2, Unit::Minute)).await;
    let mut along = request(&[ACME]);
    along.descriptors[0].limit = Some(WireOverride {
        requests_per_unit: 3,
        unit: Some(Unit::Minute),
        multiplier: 0,
    });
    assert_eq!(remaining(&desk.ask(&along).await), [2]);
    assert_eq!(desk.admitted().await, 2);
    assert_eq!(remaining(&desk.ask(&along).await), [1]);
    let mut hourly = along.clone();
    hourly.descriptors[0].limit = Some(WireOverride {
        requests_per_unit: 3,
        unit: Some(Unit::Hour),
        multiplier: 2,
    });
    assert_eq!(remaining(&desk.ask(&hourly).await), [2]);
    desk.later(Micros::from_secs(60));
    assert_eq!(remaining(&desk.ask(&along).await), [2]);
}

pub async fn a_request_refused_elsewhere_leaves_every_budget_as_it_was<H: Harness>() {
    let lane = |limit| Limit {
        excess: Some(limit::Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 200,
        }),
        ..limit
    };
    let shadow = |limit| Limit {
        shadow: true,
        ..limit
    };
    let limits = vec![
        fixed("fixed", 9, Unit::Hour),
        sliding("sliding", 9, Unit::Hour),
        bucket("bucket", 9, 9, Unit::Hour),
        leaky("leaky", 60, Unit::Hour, secs(3_600)),
        waiting(bucket("wait", 60, 1, Unit::Hour), secs(3_600)),
        lane(fixed("lane", 1, Unit::Hour)),
        lane(bucket("burst", 1, 1, Unit::Hour)),
        shadow(fixed("seen", 9, Unit::Hour)),
        shadow(fixed("over", 1, Unit::Hour)),
    ];
    let desk = Desk::<H>::new(domain([
        (&[("tenant", None)], limits),
        (&[("credential", None)], vec![fixed("none", 0, Unit::Hour)]),
    ]))
    .await;
    desk.ask(&request(&[ACME])).await;
    let before = desk.views().await;
    for descriptors in [&[ACME, KEY], &[KEY, ACME]] {
        let decision = desk.ask(&request(descriptors)).await;
        assert!(decision.refused);
        assert!(decision.verdicts.iter().all(|verdict| !verdict.charged));
        assert_eq!(desk.views().await, before);
    }
    // Both lanes have their one unit yet.
    let decision = desk.ask(&request(&[ACME])).await;
    let in_lane = decision.verdicts.iter().filter(|v| v.outcome == Outcome::Excess);
    assert_eq!((decision.refused, in_lane.count()), (false, 2));
}

pub async fn quotas_of_several_callers_refuse_together<H: Harness>() {
    let quota = |name, units| Limit {
        quota: true,
        ..fixed(name, units, Unit::Hour)
    };
    let route: &[(&str, &str)] = &[("route", "export")];
    let desk = Desk::<H>::new(domain([
        (
            &[("tenant", None)],
            vec![quota("tenant", 1), fixed("beside", 9, Unit::Hour)],
        ),
        (&[("credential", None)], vec![quota("credential", 2)]),
        (&[("route", None)], vec![fixed("route", 9, Unit::Hour)]),
    ]))
    .await;
    // What stands beside a quota that is over is not charged either; once all are over, nothing is.
    for (refused, left) in [
        (false, [0, 8, 1, 8]),
        (false, [0, 8, 0, 7]),
        (true, [0, 8, 0, 7]),
        (true, [0, 8, 0, 7]),
    ] {
        let decision = desk.ask(&request(&[ACME, KEY, route])).await;
        assert_eq!((decision.refused, remaining(&decision)), (refused, left.to_vec()));
    }
}
