//! Which rule a descriptor meets.

use super::*;

#[test]
fn m1_an_exact_value_comes_before_the_rule_for_every_value() {
    let rules = ["ip{10/second}", "ip=50.0.0.5{0/second}"];
    check(&rules, &["(ip=50.0.0.5)"], &[over_limit(0, 0)]);
    check(&rules, &["(ip=50.0.0.1)"], &[ok(10, 9)]);
}

#[test]
fn m2_exact_then_the_first_fitting_pattern_then_every_value() {
    let rules = [
        "p{1/minute}",
        "p=/x*{2/minute}",
        "p=*y{3/minute}",
        "p=/xy{4/minute}",
    ];
    for (value, limit) in [("/xy", 4), ("/x/y", 2), ("/y", 3), ("/z", 1)] {
        check(&rules, &[&format!("(p={value})")], &[ok(limit, limit - 1)]);
    }
}

#[test]
fn m3_patterns_are_tried_in_file_order() {
    check(
        &["p=/a*{5/minute}", "p=/a/b*{1/minute}"],
        &["(p=/a/b/c)"],
        &[ok(5, 4)],
    );
    check(
        &["p=/a/b*{1/minute}", "p=/a*{5/minute}"],
        &["(p=/a/b/c)"],
        &[ok(1, 0)],
    );
}

#[test]
fn m4_a_value_that_fits_no_pattern_meets_no_limit() {
    let rules = ["w=foo*{20/minute}"];
    check(&rules, &["(w=bar)"], &[NO_LIMIT]);
    check(&rules, &["(w=foo)"], &[ok(20, 19)]);
}

#[test]
fn m5_stars_stand_anywhere_and_their_neighbours_do_not_overlap() {
    for (value, status) in [
        ("foo1bar2baz", ok(9, 8)),
        ("foobarbaz", ok(9, 8)),
        ("foobaz", NO_LIMIT),
        ("foobarbazX", NO_LIMIT),
        ("foo1baz2bar", NO_LIMIT),
    ] {
        check(
            &["w=foo*bar*baz{9/minute}"],
            &[&format!("(w={value})")],
            &[status],
        );
    }
    for (value, status) in [("abba", ok(9, 8)), ("ab1ba", ok(9, 8)), ("aba", NO_LIMIT)] {
        check(&["w=ab*ba{9/minute}"], &[&format!("(w={value})")], &[status]);
    }
}

#[test]
fn m6_each_value_of_a_pattern_has_its_own_budget() {
    let mut world = World::new(&["f=files/*{10/hour}"]);
    assert_eq!(world.passed(11, &["(f=files/a)"]), 10);
    assert_eq!(world.ask(&["(f=files/b)"]).statuses, [ok(10, 9)]);
}

#[test]
fn m7_a_shared_threshold_is_one_budget_for_all_its_values() {
    let mut world = World::new(&["f=files/x{3/hour}", "f!share=files/*{10/hour}"]);
    assert_eq!(world.passed(10, &["(f=files/a)"]), 10);
    assert_eq!(world.ask(&["(f=files/b)"]).statuses, [over_limit(10, 0)]);
    // The text of the pattern is one of its values.
    assert_eq!(world.ask(&["(f=files/*)"]).statuses, [over_limit(10, 0)]);
    assert_eq!(world.ask(&["(f=files/x)"]).statuses, [ok(3, 2)]);
}

#[test]
fn m8_a_rule_holds_for_its_own_depth_only() {
    check(&["k=v{300/second}"], &["(k=v)(s=x)"], &[NO_LIMIT]);
    check(&["a=1 > b{5/minute}"], &["(a=1)"], &[NO_LIMIT]);
}

#[test]
fn m9_a_deeper_rule_does_not_fall_back_to_its_parent() {
    let rules = ["k5=v5{15/day}", "k5=v5 > s5=x{25/day}"];
    check(&rules, &["(k5=v5)"], &[ok(15, 14)]);
    check(&rules, &["(k5=v5)(s5=x)"], &[ok(25, 24)]);
    check(&rules, &["(k5=v5)(s5=y)"], &[NO_LIMIT]);
}

#[test]
fn m10_a_branch_once_taken_is_not_left() {
    let rules = ["a=1 > b{1/minute}", "a > c{1/minute}"];
    check(&rules, &["(a=1)(c=z)"], &[NO_LIMIT]);
    check(&rules, &["(a=2)(c=z)"], &[ok(1, 0)]);
}

#[test]
fn m11_the_order_of_entries_matters() {
    check(&["a > b{1/minute}"], &["(b=1)(a=1)"], &[NO_LIMIT]);
    check(&["a > b{1/minute}"], &["(a=1)(b=1)"], &[ok(1, 0)]);
}

#[test]
fn m12_a_rule_without_limit_lets_its_value_pass() {
    let mut world = World::new(&["k{20/minute}", "k=vip"]);
    assert_eq!(world.passed(100, &["(k=vip)"]), 100);
    assert_eq!(world.ask(&["(k=vip)"]).statuses, [NO_LIMIT]);
    assert_eq!(found(&["k{20/minute}", "k=vip"], "(k=vip)"), Found::NoLimit);
}

#[test]
fn m13_keys_and_values_are_case_sensitive() {
    let rules = ["k=v{20/minute}"];
    check(&rules, &["(K=v)"], &[NO_LIMIT]);
    check(&rules, &["(k=V)"], &[NO_LIMIT]);
}

#[test]
fn m14_an_empty_value_is_a_value() {
    check(&["k{20/minute}"], &["(k=)"], &[ok(20, 19)]);
    check(&["k{20/minute}", "k=*{1/minute}"], &["(k=)"], &[ok(1, 0)]);
}

#[test]
fn m15_a_descriptor_without_entries_or_domain_meets_no_limit() {
    let mut world = World::new(&["k{1/minute}"]);
    let answer = world.ask(&["", "(k=a)"]);
    assert_eq!(answer.statuses, [NO_LIMIT, ok(1, 0)]);
    assert!(!answer.refused);

    let request = request(&["(x=1) limit 0/minute", "(k=1)"]);
    let resolved = resolve(None, &request, false, T0);
    assert!(resolved.charges.is_empty());
    for met in &resolved.met {
        assert_eq!(met.found, Found::Unmatched(Unmatched::UnknownDomain));
    }
}

#[test]
fn m16_statuses_come_in_order_and_one_refusal_refuses() {
    let mut world = World::new(&["a{3/minute}", "b{1/minute}"]);
    let asked = ["(a=1)", "(x=1)", "(b=1)"];
    let answer = world.ask(&asked);
    assert_eq!(answer.statuses, [ok(3, 2), NO_LIMIT, ok(1, 0)]);
    let answer = world.ask(&asked);
    assert_eq!(answer.statuses, [ok(3, 2), NO_LIMIT, over_limit(1, 0)]);
    assert!(answer.refused);
}

#[test]
fn a_budget_met_twice_is_charged_once() {
    // Where the incumbent counts two.
    let mut world = World::new(&["a{3/minute}"]);
    let answer = world.ask(&["(a=1)", "(a=1)"]);
    assert_eq!(answer.statuses, [ok(3, 2), ok(3, 2)]);
    assert_eq!(answer.budgets.len(), 1);
}

#[test]
fn m17_a_limit_sent_along_stands_in_for_the_policys() {
    check(&["k{1/minute}"], &["(x=1) limit 7/minute"], &[ok(7, 6)]);
    let mut world = World::new(&["x=1{1/minute shadow}"]);
    assert_eq!(world.passed(9, &["(x=1) limit 7/minute"]), 7);
    // One budget for each entries and unit; the policy's own is another.
    assert_eq!(world.ask(&["(x=2) limit 7/minute"]).statuses, [ok(7, 6)]);
    assert_eq!(world.ask(&["(x=1) limit 7/hour"]).statuses, [ok(7, 6)]);
    assert_eq!(world.ask(&["(x=1) limit 7/2/minute"]).statuses, [ok(7, 6)]);
    // A changed number keeps what was spent.
    assert_eq!(world.ask(&["(x=1) limit 9/minute"]).statuses, [ok(9, 1)]);
    let answer = world.ask(&["(x=1)"]);
    assert_eq!((answer.budgets[0].1, answer.budgets[0].2), (true, 0));
}

#[test]
fn a_limit_sent_along_never_meets_a_budget_of_the_policy() {
    let mut world = World::new(&["x{5/minute name:override}", "y{5/minute}"]);
    assert_eq!(world.passed(9, &["(x=1) limit 5/minute"]), 5);
    assert_eq!(world.ask(&["(x=1)"]).statuses, [ok(5, 4)]);
    assert_eq!(world.passed(9, &["(y=1) limit 5/minute"]), 5);
    assert_eq!(world.ask(&["(y=1)"]).statuses, [ok(5, 4)]);
}

#[test]
fn r1_a_limit_sent_along_without_a_unit_is_ignored() {
    check(&["a{3/minute}"], &["(a=1) limit 5/UNKNOWN"], &[ok(3, 2)]);
    check(&["a{3/minute}"], &["(b=1) limit 5/UNKNOWN"], &[NO_LIMIT]);
}

#[test]
fn m18_replaced_limits_are_dropped_and_not_charged() {
    let mut world = World::new(&["a{1/minute name:A}", "b{5/minute replaces:A}"]);
    let answer = world.ask(&["(a=1)", "(b=1)"]);
    assert_eq!(answer.statuses, [NO_LIMIT, ok(5, 4)]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(1, 0)]);
    assert!(world.ask(&["(a=1)"]).refused);
    assert!(!world.ask(&["(a=1)", "(b=1)"]).refused);
}

#[test]
fn m18_chains_of_replacements_do_not_resolve() {
    check(
        &[
            "a{1/minute name:A}",
            "b{2/minute name:B replaces:A}",
            "c{3/minute replaces:B}",
        ],
        &["(a=1)", "(b=1)", "(c=1)"],
        &[NO_LIMIT, NO_LIMIT, ok(3, 2)],
    );
}

#[test]
fn m18_every_limit_of_a_replaced_name_is_dropped() {
    check(
        &[
            "a{1/minute name:A}",
            "b{1/minute name:A;2/hour name:kept}",
            "c{3/minute replaces:A}",
        ],
        &["(a=1)", "(c=1)", "(b=1)"],
        &[NO_LIMIT, ok(3, 2), ok(2, 1)],
    );
}

#[test]
fn m19_an_unlimited_limit_replaces_and_is_not_replaced() {
    let mut world = World::new(&["a{1/minute name:A}", "b{unlimited name:B replaces:A}"]);
    assert_eq!(world.passed(9, &["(a=1)", "(b=1)"]), 9);
    assert_eq!(world.ask(&["(a=1)", "(b=1)"]).statuses, [NO_LIMIT, NO_LIMIT]);

    let domain = crate::engine::testing::domain(&["b{unlimited name:B}", "c{1/minute replaces:B}"]);
    let request = request(&["(b=1)", "(c=1)"]);
    let resolved = resolve(Some(&domain), &request, false, T0);
    assert!(resolved.met[0].unlimited && !resolved.met[1].unlimited);
}

#[test]
fn m20_stars_and_slashes_in_a_value_are_found_exactly_first() {
    let route = "httproute/ns/n/rule/0/match/0/*";
    let rules = ["r=httproute/*{1/minute}", &format!("r={route}{{7/minute}}")];
    check(&rules, &[&format!("(r={route})")], &[ok(7, 6)]);
    // As a pattern it comes second.
    check(&rules, &["(r=httproute/ns/n/rule/0/match/0/x)"], &[ok(1, 0)]);
}

#[test]
fn addresses_are_matched_and_counted_by_network() {
    let mut world = World::new(&["ip!address{2/minute}", "ip!address=10.0.0.9{1/minute}"]);
    for (ip, status) in [
        ("10.0.0.1", ok(2, 1)),
        ("::ffff:10.0.0.1", ok(2, 0)),
        ("10.0.0.2", ok(2, 1)),
        ("2001:db8::1", ok(2, 1)),
        ("2001:db8::2", ok(2, 0)),
        ("2001:db8:0:1::1", ok(2, 1)),
        ("::ffff:10.0.0.9", ok(1, 0)),
        ("garbage", ok(2, 1)),
        ("unix:/socket", ok(2, 0)),
        ("", over_limit(2, 0)),
    ] {
        assert_eq!(world.ask(&[&format!("(ip={ip})")]).statuses, [status], "{ip}");
    }
}

#[test]
fn what_is_no_address_keeps_the_budget_of_the_rule_it_meets() {
    let mut world = World::new(&["ip!address{2/minute}", "ip!address=unknown{9/minute}"]);
    assert_eq!(world.passed(3, &["(ip=garbage)"]), 2);
    assert_eq!(world.ask(&["(ip=unknown)"]).statuses, [ok(9, 8)]);
}

#[test]
fn a_forwarding_chain_is_counted_from_the_right() {
    let mut world = World::new(&["xff!address/32/64/2{1/minute}"]);
    assert!(!world.ask(&["(xff=6.6.6.6, 1.1.1.1, 2.2.2.2)"]).refused);
    assert!(world.ask(&["(xff=7.7.7.7, 1.1.1.1, 3.3.3.3)"]).refused);
    // Chains that are too short share one budget.
    assert!(!world.ask(&["(xff=2.2.2.2)"]).refused);
    assert!(world.ask(&["(xff=3.3.3.3)"]).refused);
}

#[test]
fn a_normalised_path_is_matched_and_counted_in_one_spelling() {
    let mut world = World::new(&["p!path=/login{2/minute}", "p!path{9/minute}"]);
    for (path, status) in [
        ("/login?x=1", ok(2, 1)),
        ("//login", ok(2, 0)),
        ("/%6Cogin?x=2", over_limit(2, 0)),
        ("/a?1", ok(9, 8)),
        ("//a", ok(9, 7)),
    ] {
        assert_eq!(world.ask(&[&format!("(p={path})")]).statuses, [status], "{path}");
    }
}

#[test]
fn descriptors_without_limit_say_why() {
    let rules = ["a > b=1{1/minute}", "a > c{1/minute}", "d{1/minute}"];
    for (descriptor, reason) in [
        ("(x=1)", Unmatched::UnknownKey),
        ("(a=1)(x=1)", Unmatched::UnknownKey),
        ("(a=1)(b=2)", Unmatched::UnknownValue),
        ("(a=1)", Unmatched::TooShort),
        ("(d=1)(a=1)", Unmatched::TooLong),
        ("(b=1)(a=1)", Unmatched::Order),
    ] {
        assert_eq!(
            found(&rules, descriptor),
            Found::Unmatched(reason),
            "{descriptor}"
        );
    }
    assert_eq!(found(&rules, ""), Found::Malformed(Malformed::NoEntries));
    assert_eq!(found(&rules, "(a=1)(=1)"), Found::Malformed(Malformed::EmptyKey));
    assert_eq!(found(&rules, "(d=1)"), Found::Limits);
}
