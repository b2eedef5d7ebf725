//! What the script gives back of a charge, and what the engine does.

use proptest::prelude::*;

use super::super::returns::Return;
use super::super::script::{give_back, reply};
use super::{Asked, Planted, Server, charge_terms, field, holds, limit, magnitude, planted, present, stored};
use crate::engine::budget::{Outcome, View};
use crate::engine::decision::{self, Slot, Verdict};
use crate::engine::limit::MAX_UNITS;
use crate::engine::resolve::resolve;
use crate::engine::time::{Micros, Timestamp};
use crate::support::policy::{domain, request};

/// A charge that was made some time ago, or by a clock that was ahead.
#[derive(Debug, Clone)]
struct Made {
    cost: u64,
    ago: i64,
    reset: u64,
    in_lane: bool,
}

fn made() -> impl Strategy<Value = Made> {
    let cost = prop_oneof![1..9u64, magnitude(MAX_UNITS - 1).prop_map(|n| n + 1)];
    let ago = prop_oneof![
        4 => magnitude(1 << 44).prop_map(|n| n as i64),
        1 => magnitude(1 << 30).prop_map(|n| -(n as i64)),
    ];
    (cost, ago, magnitude(1 << 46), any::<bool>()).prop_map(|(cost, ago, reset, in_lane)| Made {
        cost,
        ago,
        reset,
        in_lane,
    })
}

/// Gives back a charge to planted states, in the script and in the engine.
fn given_back(server: &mut Server, (limit, main, lane): &Asked, made: &Made) -> Result<(), TestCaseError> {
    server.clear();
    let domain = domain([(&[("tenant", None)], vec![limit.clone()])]);
    let request = request(&[&[("tenant", "acme")]]);
    let mut resolved = resolve(Some(&domain), &request, false, Timestamp(0));
    resolved.charges[0].spend = Some(made.cost);
    let (charge, now) = (&resolved.charges[0], present());
    let has_lane = limit.excess.is_some();
    let planted = |planted: &Option<Planted>| planted.as_ref().map(|state| stored(limit, state, now));
    let slot = Slot {
        main: planted(main).unwrap_or_default(),
        lane: planted(lane).filter(|_| has_lane).unwrap_or_default(),
    };
    let (outcome, reset) = (Outcome::Excess, Micros(made.reset));
    let verdict = Verdict {
        at: Timestamp(now.0.saturating_add_signed(-made.ago)),
        outcome: if made.in_lane { outcome } else { Outcome::Allow },
        view: View {
            reset,
            ..View::default()
        },
        capacity: 0,
        charged: true,
        clamped: false,
        degraded: None,
    };
    let returned = Return::of_decided(0, charge, &verdict);
    // 285 years stand for longer in the script.
    if returned.lasts > Micros(MAX_UNITS) {
        return Ok(());
    }
    let call = give_back(&resolved, &[returned], now);
    let field = field(&resolved.key(charge));
    server.plant(&call.key, &field, slot, has_lane);
    let answered = reply(server.call(&call), 1).unwrap();
    let wanted = decision::give_back(charge, &verdict, slot, answered.now);
    let after = server.read(&call.key, &field);
    let terms = charge_terms(&resolved, 0);
    prop_assert!(
        holds(terms.0, after.main, wanted.main, answered.now)
            && terms
                .1
                .is_none_or(|lane| holds(lane, after.lane, wanted.lane, answered.now)),
        "{:?}: {:?}, not {:?}",
        slot,
        after,
        wanted
    );
    let ttl = server.ttl(&call.key);
    prop_assert!(ttl != -1, "a key without expiry");
    Ok(())
}

#[test]
fn what_is_given_back_is_the_same_to_the_bit() {
    let server = std::cell::RefCell::new(Server::start());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1_500,
        ..ProptestConfig::default()
    });
    let one = (limit(), planted(), planted());
    runner
        .run(&(one, made()), |(asked, made)| {
            given_back(&mut server.borrow_mut(), &asked, &made)
        })
        .unwrap();
}
