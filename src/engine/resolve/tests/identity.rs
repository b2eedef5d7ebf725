//! Which budgets are one and which are not.

use super::*;
use crate::engine::testing::{domain, domain_named};

/// The keys of the budgets that a request of domain `name` meets.
fn keys(name: &str, rules: &[&str], descriptors: &[&str]) -> Vec<String> {
    let domain = domain_named(name, rules);
    let request = request(descriptors);
    let resolved = resolve(Some(&domain), &request, false, T0);
    resolved
        .charges
        .iter()
        .map(|charge| resolved.key(charge).text())
        .collect()
}

fn key(rule: &str, descriptor: &str) -> String {
    keys("d", &[rule], &[descriptor]).remove(0)
}

#[test]
fn x1_joined_text_is_not_identity() {
    let rules = ["a_b{1/minute}", "a{1/minute}", "a > c{1/minute}"];
    let all = keys("d", &rules, &["(a_b=c)", "(a=b_c)", "(a=b)(c=d)", "(a=b_c_d)"]);
    assert_distinct(all, 4);
    let mut world = World::new(&rules);
    for descriptor in ["(a_b=c)", "(a=b_c)", "(a=b)(c=d)", "(a=b_c_d)"] {
        assert_eq!(world.ask(&[descriptor]).statuses, [ok(1, 0)], "{descriptor}");
    }
}

#[test]
fn x2_a_domain_does_not_run_into_the_entries() {
    let mut all = keys("x", &["y_z{1/minute}"], &["(y_z=1)"]);
    all.extend(keys("x_y", &["z{1/minute}"], &["(z=1)"]));
    assert_distinct(all, 2);
}

#[test]
fn x3_limits_of_two_periods_do_not_share() {
    let mut world = World::new(&["a{2/minute;5/hour}"]);
    world.repeat(2, &["(a=1)"]);
    let answer = world.ask(&["(a=1)"]);
    assert_eq!((answer.budgets[0].2, answer.budgets[1].2), (0, 3));
}

#[test]
fn x4_two_limits_met_with_the_same_entries_are_two() {
    let all = keys("d", &["a{2/minute;2/minute name:b;2/minute name:c}"], &["(a=1)"]);
    assert_distinct(all, 3);
}

#[test]
fn x5_matching_is_on_entries() {
    check(&["a_b{1/minute}"], &["(a=b)"], &[NO_LIMIT]);
    check(&["foo=*{1/minute}"], &["(foo_bar=x)"], &[NO_LIMIT]);
    check(&["foo=*{1/minute}"], &["(foo_bar=)"], &[NO_LIMIT]);
}

#[test]
fn hostile_values_get_budgets_of_their_own() {
    let values = [
        "a", "a,b=c", "a|b", "a}", "{a", "a%2C", "", " ", "a\u{0}", "ä", "a\n",
    ];
    let descriptors: Vec<String> = values.iter().map(|value| format!("(t={value})")).collect();
    let all = descriptors
        .iter()
        .map(|descriptor| key("t{1/minute}", descriptor));
    assert_distinct(all.collect(), values.len());
}

#[test]
fn changed_numbers_keep_the_budget() {
    let was = key("t{10/minute name:n}", "(t=1)");
    for same in [
        "t{20/minute name:n}",
        "t{20/minute name:n overdraft counts:hits excess:150 shadow}",
        "t{20/minute name:n plans:plan,free=3,pro=5 override:t=1,x3}",
    ] {
        assert_eq!(key(same, "(t=1)"), was, "{same}");
    }
}

#[test]
fn a_changed_period_algorithm_name_or_zone_is_another_budget() {
    let mut all: Vec<String> = [
        "t{10/day}",
        "t{10/day name:n}",
        "t{10/week}",
        "t{10/day sliding}",
        "t{10/day token}",
        "t{10/day leaky}",
        "t{10/day zone:America/New_York}",
        "t{10/day zone:Europe/Paris}",
        "t{10/day zone:Europe/Paris name:n}",
    ]
    .iter()
    .map(|rule| key(rule, "(t=1)"))
    .collect();
    all.push(key("u{10/day}", "(u=1)"));
    assert_distinct(all, 10);
}

#[test]
fn a_rule_for_one_value_keeps_the_budget_it_had_under_every_value() {
    let before = keys("d", &["t{10/minute}"], &["(t=acme)"]);
    for rules in [
        &["t{10/minute}", "t=acme{20/minute}"][..],
        &["t{10/minute}", "t=a*{20/minute}"],
    ] {
        assert_eq!(keys("d", rules, &["(t=acme)"]), before, "{rules:?}");
    }
    let before = keys("d", &["t{10/minute}", "t > r{5/minute}"], &["(t=acme)(r=x)"]);
    let after = keys(
        "d",
        &["t{10/minute}", "t > r{5/minute}", "t > r=x{9/minute}"],
        &["(t=acme)(r=x)"],
    );
    assert_eq!(after, before);
}

#[test]
fn all_budgets_of_a_caller_are_placed_by_the_caller() {
    let rules = ["t{9/minute;9/hour}", "t > c{9/minute}", "t > r=x{9/minute}"];
    let all = keys("d", &rules, &["(t=acme)", "(t=acme)(c=1)", "(t=acme)(r=x)"]);
    assert_eq!(all.len(), 4);
    for key in all {
        assert!(key.starts_with("{d|t=acme}|"), "{key}");
    }
    // The first entry that is not literal names the caller.
    assert!(key("g=all > t > r{1/minute}", "(g=all)(t=acme)(r=x)").starts_with("{d|t=acme}|"));
    assert!(key("g=x* > t{1/minute}", "(g=xy)(t=acme)").starts_with("{d|g=xy}|"));
    assert!(key("g=all > r=x{1/minute}", "(g=all)(r=x)").starts_with("{d|g=all,r=x}|"));
}

#[test]
fn f7_every_level_of_a_rule_is_part_of_the_budget() {
    let mut world = World::new(&["uid > agent{5/minute}"]);
    assert_eq!(world.passed(6, &["(uid=1)(agent=curl)"]), 5);
    assert_eq!(world.ask(&["(uid=2)(agent=curl)"]).statuses, [ok(5, 4)]);
}

#[test]
fn limits_are_counted_and_walked_once() {
    let domain = domain(&["a{1/minute;2/hour}", "a=x*{1/minute}", "a > b=1{1/minute}", "c"]);
    assert_eq!(domain.limit_count(), 4);
}

fn assert_distinct(mut keys: Vec<String>, count: usize) {
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count, "{keys:?}");
}
