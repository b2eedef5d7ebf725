//! One caller, one budget.

use cota::engine::budget::Outcome::{Allow, Excess, Wait};
use cota::engine::descriptor::Request;
use cota::engine::limit::{self, ExcessAction, Limit, Unit};
use cota::engine::policy::{Costs, Domain};
use cota::engine::time::{Micros, Timestamp};

use crate::harness::{ACME, Desk, Harness, KEY, NEVER, deny, remaining, secs};
use crate::support::policy::{
    NOON, bucket, costing, descriptor, domain, fixed, leaky, refunding, request, sliding, waiting,
};

pub async fn a_fixed_window_admits_its_limit_and_starts_afresh<H: Harness>() {
    let desk = Desk::<H>::of(fixed("tenant", 3, Unit::Minute)).await;
    desk.later(secs(20));
    assert_eq!(desk.admitted().await, 3);
    assert_eq!(desk.spend(1).await, deny(secs(40)));
    desk.later(secs(39));
    assert_eq!(desk.spend(1).await, deny(secs(1)));
    desk.later(secs(1));
    assert_eq!(desk.admitted().await, 3);
}

pub async fn a_sliding_window_weighs_the_one_before<H: Harness>() {
    let desk = Desk::<H>::of(sliding("tenant", 6, Unit::Minute)).await;
    desk.later(secs(50));
    assert_eq!(desk.admitted().await, 6);
    assert_eq!(desk.spend(1).await, deny(secs(20)));
    desk.later(secs(20));
    // Ten seconds into the next minute a sixth of the six is out of view.
    assert_eq!(desk.admitted().await, 1);
    desk.later(secs(30));
    assert_eq!(desk.admitted().await, 3);
}

pub async fn a_token_bucket_refills_steadily<H: Harness>() {
    let desk = Desk::<H>::of(bucket("tenant", 60, 5, Unit::Minute)).await;
    assert_eq!(desk.admitted().await, 5);
    desk.later(secs(1));
    assert_eq!(desk.admitted().await, 1);
    desk.later(Micros(999_999));
    assert_eq!(desk.spend(1).await, deny(Micros(1)));
    desk.later(secs(1_000_000));
    assert_eq!(desk.admitted().await, 5);
}

pub async fn a_leaky_bucket_holds_each_until_its_turn<H: Harness>() {
    let desk = Desk::<H>::of(leaky("tenant", 60, Unit::Minute, secs(2))).await;
    assert_eq!(desk.spend(1).await, Allow);
    assert_eq!(desk.spend(1).await, Wait(secs(1)));
    assert_eq!(desk.spend(1).await, Wait(secs(2)));
    assert_eq!(desk.spend(1).await, deny(secs(1)));
    desk.later(secs(1));
    assert_eq!(desk.spend(7).await, Wait(secs(2)));
    assert_eq!(desk.spend(1).await, deny(secs(7)));
}

pub async fn a_wait_is_charged_at_arrival_and_never_longer_than_the_cap<H: Harness>() {
    let desk = Desk::<H>::of(waiting(bucket("tenant", 60, 1, Unit::Minute), secs(3))).await;
    let one = request(&[ACME]);
    assert_eq!(desk.ask_within(&one, secs(0)).await.wait, secs(0));
    assert!(desk.ask_within(&one, Micros(999_999)).await.refused);
    let held = desk.ask_within(&one, secs(1)).await;
    assert_eq!(
        (held.refused, held.wait, held.verdicts[0].charged),
        (false, secs(1), true)
    );
    assert_eq!(desk.ask(&one).await.wait, secs(2));
    assert_eq!(desk.ask(&one).await.wait, secs(3));
    assert_eq!(desk.spend(1).await, deny(secs(1)));
}

pub async fn a_cost_fits_whole_or_is_not_charged<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Minute),
        sliding("tenant", 10, Unit::Minute),
        bucket("tenant", 10, 10, Unit::Minute),
    ] {
        let desk = Desk::<H>::of(limit).await;
        assert_eq!(desk.spend(8).await, Allow);
        for _ in 0..50 {
            assert_ne!(desk.spend(3).await, Allow);
        }
        assert_eq!(desk.remaining().await, 2);
        assert_eq!(desk.spend(2).await, Allow);
        assert_ne!(desk.spend(1).await, Allow);
    }
}

pub async fn what_can_never_be_paid_is_refused_for_good<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Minute),
        sliding("tenant", 10, Unit::Minute),
        bucket("tenant", 600, 10, Unit::Minute),
    ] {
        let desk = Desk::<H>::of(limit).await;
        for cost in [11, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(desk.spend(cost).await, NEVER);
        }
        assert_eq!(desk.harness.kept().await, 0);
        assert_eq!(desk.admitted().await, 10);
    }
    let desk = Desk::<H>::of(fixed("tenant", 0, Unit::Minute)).await;
    assert_eq!(desk.spend(1).await, NEVER);
}

pub async fn a_weight_of_nothing_neither_charges_nor_is_refused<H: Harness>() {
    let desk = Desk::<H>::new(Domain {
        costs: Some(Costs {
            entry: "route".into(),
            default: 1,
            values: [("free".into(), 0), ("export".into(), 5)].into_iter().collect(),
        }),
        ..domain([(&[("tenant", None)], vec![fixed("tenant", 5, Unit::Hour)])])
    })
    .await;
    let over = |route| [ACME, &[("route", route)]].map(descriptor);
    let ask = |route| Request {
        descriptors: over(route).into_iter().collect(),
        ..request(&[])
    };
    assert_eq!(remaining(&desk.ask(&ask("free")).await), [5]);
    assert_eq!(remaining(&desk.ask(&ask("export")).await), [0]);
    assert!(desk.ask(&ask("other")).await.refused);
    assert!(!desk.ask(&ask("free")).await.refused);
}

pub async fn refunds_stop_at_the_full_budget<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Minute),
        sliding("tenant", 10, Unit::Minute),
        bucket("tenant", 10, 10, Unit::Minute),
    ] {
        let desk = Desk::<H>::of(limit).await;
        let give = |units| refunding(request(&[ACME]), units);
        assert_eq!(remaining(&desk.ask(&give(5)).await), [10]);
        assert_eq!(desk.harness.kept().await, 0);
        assert_eq!(desk.spend(10).await, Allow);
        let refund = desk.ask(&give(3)).await;
        assert_eq!((refund.refused, remaining(&refund)), (false, vec![3]));
        assert_eq!(remaining(&desk.ask(&give(1)).await), [4]);
        assert_eq!(remaining(&desk.ask(&give(u64::MAX)).await), [10]);
        assert_eq!(desk.harness.kept().await, 0);
    }
}

pub async fn a_refund_is_applied_before_a_spend_beside_it<H: Harness>() {
    let desk = Desk::<H>::of(fixed("tenant", 10, Unit::Minute)).await;
    desk.spend(10).await;
    let mut both = costing(request(&[ACME, ACME]), 4);
    both.descriptors[1].is_negative_hits = true;
    let decision = desk.ask(&both).await;
    assert_eq!((decision.refused, remaining(&decision)), (false, vec![0]));
    // Refused, the spend is not charged; the refund stands.
    both.descriptors[0].hits_addend = Some(9);
    let decision = desk.ask(&both).await;
    assert_eq!((decision.refused, remaining(&decision)), (true, vec![4]));
    assert_eq!(desk.remaining().await, 4);
}

pub async fn a_look_charges_and_keeps_nothing<H: Harness>() {
    for limit in [
        fixed("tenant", 2, Unit::Minute),
        sliding("tenant", 2, Unit::Minute),
        bucket("tenant", 2, 2, Unit::Minute),
        leaky("tenant", 60, Unit::Minute, secs(1)),
    ] {
        let desk = Desk::<H>::of(limit).await;
        for _ in 0..9 {
            assert_eq!(desk.spend(0).await, Allow);
        }
        assert_eq!(desk.harness.kept().await, 0);
        desk.spend(1).await;
        desk.spend(1).await;
        assert_eq!(desk.remaining().await, 0);
        assert_eq!(desk.spend(0).await, Allow);
    }
}

pub async fn debt_is_taken_on_and_paid_off_at_the_rate<H: Harness>() {
    let desk = Desk::<H>::of(Limit {
        overdraft: true,
        ..bucket("tenant", 60, 10, Unit::Minute)
    })
    .await;
    assert_eq!(desk.spend(30).await, NEVER);
    assert_eq!(desk.spend(1).await, deny(secs(21)));
    desk.later(secs(21));
    // The refused one was charged as well.
    assert_eq!(desk.spend(1).await, deny(secs(1)));
    desk.later(secs(2));
    assert_eq!(desk.spend(1).await, Allow);
    desk.ask(&refunding(request(&[ACME]), 1_000)).await;
    assert_eq!(desk.remaining().await, 10);
}

pub async fn the_debt_of_a_window_is_carried_over<H: Harness>() {
    let desk = Desk::<H>::of(Limit {
        overdraft: true,
        ..fixed("tenant", 10, Unit::Minute)
    })
    .await;
    desk.spend(25).await;
    assert_eq!(desk.views().await[0].reset, secs(180));
    desk.later(secs(60));
    assert_eq!(desk.spend(1).await, deny(secs(60)));
    desk.later(secs(60));
    assert_eq!(desk.remaining().await, 4);
}

pub async fn a_look_is_refused_by_a_budget_in_debt_only<H: Harness>() {
    let desk = Desk::<H>::of(Limit {
        overdraft: true,
        ..bucket("tenant", 60, 10, Unit::Minute)
    })
    .await;
    desk.spend(10).await;
    assert_eq!(desk.spend(0).await, Allow);
    desk.spend(5).await;
    assert_eq!(desk.spend(0).await, deny(secs(5)));
    desk.later(secs(5));
    assert_eq!(desk.spend(0).await, Allow);
}

pub async fn excess_fills_its_own_lane<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Hour),
        sliding("tenant", 10, Unit::Hour),
        bucket("tenant", 10, 10, Unit::Hour),
    ] {
        let desk = Desk::<H>::of(Limit {
            excess: Some(limit::Excess {
                action: ExcessAction::Degrade,
                up_to_percent: 150,
            }),
            ..limit
        })
        .await;
        assert_eq!(desk.spend(8).await, Allow);
        assert_eq!(desk.spend(3).await, Excess);
        assert_eq!(desk.remaining().await, 2);
        assert_eq!(desk.spend(2).await, Allow);
        assert_eq!(desk.spend(2).await, Excess);
        assert_ne!(desk.spend(1).await, Excess);
        // Refunds are the main budget's.
        desk.ask(&refunding(request(&[ACME]), 1)).await;
        assert_eq!(desk.spend(1).await, Allow);
        assert!(desk.ask(&request(&[ACME])).await.refused);
    }
}

pub async fn changed_numbers_keep_what_was_spent<H: Harness>() {
    let with = |units| domain([(&[("tenant", None)], vec![fixed("tenant", units, Unit::Hour)])]);
    let mut desk = Desk::<H>::new(with(10)).await;
    assert_eq!(desk.admitted().await, 10);
    for _ in 0..40 {
        desk.spend(1).await;
    }
    desk.domain = with(20);
    assert_eq!(desk.admitted().await, 10);
    desk.domain = with(5);
    assert_eq!(desk.spend(1).await, deny(secs(3_600)));
    desk.domain = with(21);
    assert_eq!(desk.admitted().await, 1);
    // Another name is another budget.
    desk.domain = domain([(&[("tenant", None)], vec![fixed("renamed", 5, Unit::Hour)])]);
    assert_eq!(desk.admitted().await, 5);
}

pub async fn a_lane_taken_away_and_given_again_is_as_full_as_it_was<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Hour),
        bucket("tenant", 10, 10, Unit::Hour),
    ] {
        let with = |excess| {
            domain([(
                &[("tenant", None)],
                vec![Limit {
                    excess,
                    ..limit.clone()
                }],
            )])
        };
        let lane = Some(limit::Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 150,
        });
        let mut desk = Desk::<H>::new(with(lane)).await;
        assert_eq!(desk.spend(10).await, Allow);
        assert_eq!(desk.spend(5).await, Excess);
        desk.domain = with(None);
        desk.ask(&refunding(request(&[ACME]), 2)).await;
        assert_eq!(desk.spend(2).await, Allow);
        desk.domain = with(lane);
        assert!(desk.ask(&request(&[ACME])).await.refused);
    }
}

pub async fn a_state_that_is_initial_again_is_gone<H: Harness>() {
    for (limit, after) in [
        (fixed("tenant", 10, Unit::Minute), 60),
        (sliding("tenant", 10, Unit::Minute), 120),
        (bucket("tenant", 60, 10, Unit::Minute), 4),
        (leaky("tenant", 60, Unit::Minute, secs(9)), 4),
    ] {
        let desk = Desk::<H>::of(limit).await;
        desk.spend(4).await;
        assert_eq!(desk.harness.kept().await, 1);
        desk.later(secs(after - 1));
        desk.harness.forget_expired().await;
        assert_eq!(desk.harness.kept().await, 1);
        desk.later(secs(1));
        desk.harness.forget_expired().await;
        assert_eq!(desk.harness.kept().await, 0);
    }
}

pub async fn a_clock_that_steps_back_hands_nothing_out<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Minute),
        sliding("tenant", 10, Unit::Minute),
        bucket("tenant", 10, 10, Unit::Minute),
    ] {
        let desk = Desk::<H>::of(limit).await;
        assert_eq!(desk.admitted().await, 10);
        for back in [1, 1_000, 30_000_000, 59_000_000] {
            desk.at(Timestamp(NOON.0 - back));
            desk.harness.forget_expired().await;
            assert_eq!(desk.admitted().await, 0, "{back} back");
        }
        assert_eq!(desk.ask(&request(&[KEY])).await.verdicts.len(), 0);
        desk.at(NOON.plus(secs(121)));
        assert_eq!(desk.admitted().await, 10);
    }
}

pub async fn a_clock_that_was_far_ahead_locks_nobody_out<H: Harness>() {
    for limit in [
        fixed("tenant", 10, Unit::Minute),
        sliding("tenant", 10, Unit::Minute),
        bucket("tenant", 10, 10, Unit::Minute),
    ] {
        let desk = Desk::<H>::of(limit).await;
        desk.at(NOON.plus(secs(1_000_000)));
        assert_eq!(desk.admitted().await, 10);
        desk.at(NOON);
        // It keeps trying; the stored time is brought back once, not by each try.
        let mut waited = 0;
        while desk.spend(1).await != Allow {
            desk.later(secs(1));
            waited += 1;
            assert!(waited <= 120, "locked out");
        }
    }
}
