//! What a request asks of the budgets it meets: costs, addends, refunds, plans, overrides.

use super::*;
use crate::engine::descriptor::Request;
use crate::engine::policy::Costs;

const SEARCH_COSTS_5: &str = "/search";
const HEALTH_IS_FREE: &str = "/health";

/// Three limits of one caller, one for each way of counting.
fn counted() -> World {
    let mut world = World::new(&[
        "t{1000/minute name:cost;1000/minute name:requests counts:requests;1000/minute name:hits counts:hits}",
        "route",
    ]);
    world.domain.costs = Some(Costs {
        entry: "route".into(),
        default: 2,
        values: [(SEARCH_COSTS_5.into(), 5), (HEALTH_IS_FREE.into(), 0)].into(),
    });
    world
}

/// What `cost`, `requests` and `hits` have spent after that.
fn spent(world: &mut World, request: &Request<'_>) -> [i64; 3] {
    let answer = world.decide(request);
    [0, 1, 2].map(|i| 1_000 - answer.budgets[i].2 as i64)
}

#[test]
fn an_addend_is_a_weight_a_look_or_itself() {
    for (addend, route, expected) in [
        ("", "/other", [2, 1, 1]),
        ("addend 1", "/other", [2, 1, 1]),
        ("", SEARCH_COSTS_5, [5, 1, 1]),
        ("addend 1", SEARCH_COSTS_5, [5, 1, 1]),
        ("addend 3", SEARCH_COSTS_5, [3, 1, 3]),
        ("addend 0", SEARCH_COSTS_5, [0, 0, 0]),
        ("", HEALTH_IS_FREE, [0, 1, 1]),
        ("addend 3", HEALTH_IS_FREE, [3, 1, 3]),
    ] {
        let (tenant, route) = (format!("(t=acme) {addend}"), format!("(route={route})"));
        let was = spent(&mut counted(), &request(&[&tenant, &route]));
        assert_eq!(was, expected, "{addend:?} on {route}");
    }
}

#[test]
fn a_request_wide_addend_holds_where_a_descriptor_has_none() {
    for (wide, own, expected) in [
        (0, "", [2, 1, 1]),
        (1, "", [2, 1, 1]),
        (7, "", [7, 1, 7]),
        (7, "addend 0", [0, 0, 0]),
        (7, "addend 1", [2, 1, 1]),
        (7, "addend 3", [3, 1, 3]),
    ] {
        let tenant = format!("(t=acme) {own}");
        let mut request = request(&[&tenant]);
        request.hits_addend = wide;
        assert_eq!(spent(&mut counted(), &request), expected, "{wide}, {own:?}");
    }
}

#[test]
fn a_refund_gives_back_a_weight_or_itself() {
    for (refund, route, expected) in [
        ("refund 1", SEARCH_COSTS_5, [95, 99, 99]),
        ("refund 4", SEARCH_COSTS_5, [96, 99, 96]),
        ("refund 1", HEALTH_IS_FREE, [100, 99, 99]),
        ("refund 0", SEARCH_COSTS_5, [100, 100, 100]),
        ("refund 5000", SEARCH_COSTS_5, [0, 99, 0]),
        ("refund 18446744073709551615", SEARCH_COSTS_5, [0, 99, 0]),
    ] {
        let mut world = counted();
        spent(&mut world, &request(&["(t=acme) addend 100"]));
        for _ in 0..99 {
            // One request each, without cost or hits.
            let answer = world.decide(&request(&["(t=acme) addend 1", "(route=/health)"]));
            assert!(!answer.refused);
        }
        // Hits were counted too; bring them back to a round number.
        spent(&mut world, &request(&["(t=acme) addend 0"]));
        let (tenant, route) = (format!("(t=acme) {refund}"), format!("(route={route})"));
        let [cost, requests, hits] = spent(&mut world, &request(&[&tenant, &route]));
        let hits = (hits - 99).max(0);
        assert_eq!([cost, requests, hits], expected, "{refund} on {route}");
    }
}

#[test]
fn a_refund_never_refuses_and_a_free_route_is_never_refused() {
    let mut world = counted();
    world.domain.costs.as_mut().unwrap().default = 1_000;
    assert!(!world.ask(&["(t=acme)"]).refused);
    assert!(world.ask(&["(t=acme)"]).refused);
    assert!(!world.ask(&["(t=acme) refund 0"]).refused);
    assert!(!world.ask(&["(t=acme)", "(route=/health)"]).refused);
    assert!(!world.ask(&["(t=acme) refund 7"]).refused);
}

#[test]
fn a_free_route_is_not_even_refused_by_debt() {
    let mut world = World::new(&["t{1/minute overdraft}", "route"]);
    world.domain.costs = counted().domain.costs;
    world.ask(&["(t=acme) addend 9"]);
    assert!(world.ask(&["(t=acme) addend 0"]).refused);
    assert!(!world.ask(&["(t=acme)", "(route=/health)"]).refused);
}

#[test]
fn the_first_entry_of_a_name_is_the_attribute() {
    let mut world = counted();
    let asked = request(&["(t=acme)", "(route=/search)", "(route=/health)"]);
    assert_eq!(spent(&mut world, &asked)[0], 5);
}

#[test]
fn several_charges_on_one_budget_are_the_largest_after_the_refunds() {
    let rules = ["a{10/minute}"];
    for (descriptors, used, remaining) in [
        (&["(a=1) addend 3", "(a=1) addend 5"][..], 0, 5),
        (&["(a=1) addend 5", "(a=1) addend 0"], 0, 5),
        (&["(a=1) addend 0", "(a=1) addend 5"], 0, 5),
        // Without the refund first, 5 would not fit on 8.
        (&["(a=1) addend 5", "(a=1) refund 4"], 8, 1),
        (&["(a=1) refund 4", "(a=1) addend 5"], 8, 1),
        (&["(a=1) refund 3", "(a=1) refund 4"], 8, 6),
    ] {
        let mut world = World::new(&rules);
        world.ask(&[&format!("(a=1) addend {used}")]);
        let answer = world.ask(descriptors);
        assert!(!answer.refused, "{descriptors:?}");
        assert_eq!(answer.budgets[0].2, remaining, "{descriptors:?}");
        assert_eq!(answer.budgets.len(), 1);
    }
}

#[test]
fn a_refund_beside_a_refused_charge_is_given_all_the_same() {
    let mut world = World::new(&["a{10/minute}"]);
    world.ask(&["(a=1) addend 10"]);
    let answer = world.ask(&["(a=1) refund 4", "(a=1) addend 5"]);
    assert!(answer.refused);
    assert_eq!(answer.budgets[0].2, 4);
    assert_eq!(world.ask(&["(a=1) addend 4"]).budgets[0].2, 0);
}

#[test]
fn a_plan_is_picked_by_an_entry_anywhere_in_the_request() {
    let rules = ["t{1/minute plans:plan,free=10,pro=100,gold=unlimited}", "plan"];
    check(&rules, &["(t=a)"], &[ok(10, 9)]);
    check(&rules, &["(t=a)", "(plan=pro)"], &[ok(100, 99), NO_LIMIT]);
    check(&rules, &["(plan=what)", "(t=a)"], &[NO_LIMIT, ok(10, 9)]);
    check(&rules, &["(plan=gold)", "(t=a)"], &[NO_LIMIT, NO_LIMIT]);
    check(
        &rules,
        &["(plan=free)", "(t=a)", "(plan=pro)"],
        &[NO_LIMIT, ok(10, 9), NO_LIMIT],
    );
}

#[test]
fn plans_share_one_budget() {
    let mut world = World::new(&["t{1/minute plans:plan,free=10,pro=100}", "plan"]);
    world.repeat(10, &["(t=a)"]);
    assert!(world.ask(&["(t=a)"]).refused);
    assert_eq!(world.ask(&["(t=a)", "(plan=pro)"]).statuses[0], ok(100, 89));
    assert!(world.ask(&["(t=a)"]).refused);
}

#[test]
fn the_plan_and_the_override_of_a_charge_are_named() {
    let domain = crate::engine::testing::domain(&[
        "t{1/minute plans:plan,free=10,pro=100 override:t=acme,x3}",
        "plan",
    ]);
    let request = request(&["(t=acme)", "(plan=pro)"]);
    let resolved = resolve(Some(&domain), &request, false, T0);
    let charge = &resolved.charges[0];
    assert_eq!(charge.plan, Some("pro"));
    assert_eq!(&*charge.changed_by.as_ref().unwrap().id, "t=acme,x3");
    assert_eq!(charge.numbers.requests_per_unit, 300);
}

#[test]
fn overrides_change_the_numbers_of_the_budgets_they_match() {
    let rules = ["t > r{10/minute override:t=acme,x3@20 override:r=y,=7 override:r=z,t=acme,unlimited}"];
    for (descriptor, status) in [
        ("(t=acme)(r=x)", ok(30, 29)),
        ("(t=other)(r=x)", ok(10, 9)),
        ("(t=acme)(r=y)", ok(7, 6)),
        ("(t=acme)(r=z)", NO_LIMIT),
        ("(t=other)(r=z)", ok(10, 9)),
    ] {
        check(&rules, &[descriptor], &[status]);
    }
}

#[test]
fn an_override_ends_when_it_expires_and_what_was_spent_stays() {
    let mut world = World::new(&["t{10/hour override:t=acme,x3@20}"]);
    assert_eq!(world.passed(99, &["(t=acme)"]), 30);
    world.later(Micros(20_000_000 - 1));
    assert_eq!(world.ask(&["(t=acme)"]).statuses, [over_limit(30, 0)]);
    world.later(Micros(1));
    assert_eq!(world.ask(&["(t=acme)"]).statuses, [over_limit(10, 0)]);
}

#[test]
fn shadow_for_all_covers_limits_sent_along() {
    let domain = crate::engine::testing::domain(&["a{1/minute}"]);
    let request = request(&["(a=1)", "(x=1) limit 1/minute"]);
    let resolved = resolve(Some(&domain), &request, true, T0);
    assert!(resolved.charges.len() == 2 && resolved.charges.iter().all(|charge| charge.shadow));
}
