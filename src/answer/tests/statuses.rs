//! Statuses, marks and metadata.

use super::*;
use crate::engine::limit::{Counts, ExcessAction, Unit};
use crate::engine::overrides::{Change, Override, OverrideIndex};
use crate::support::policy::{every, node, sliding, waiting};

fn two_facets(tenant: Limit, credential: Limit) -> World {
    World::new(domain([
        (&[("tenant", None)], vec![tenant]),
        (&[("credential", None)], vec![credential]),
    ]))
}

fn over(answer: &Answer<'_>) -> Vec<bool> {
    answer.statuses.iter().map(|status| status.over_limit).collect()
}

fn shadow(limit: Limit) -> Limit {
    Limit {
        shadow: true,
        ..limit
    }
}

fn quota(limit: Limit) -> Limit {
    Limit { quota: true, ..limit }
}

fn excess(action: ExcessAction, limit: Limit) -> Limit {
    Limit {
        excess: Some(Excess {
            action,
            up_to_percent: 200,
        }),
        ..limit
    }
}

#[test]
fn each_descriptor_has_its_status_in_order() {
    let world = two_facets(
        fixed("tenant", 9, Unit::Hour),
        fixed("credential", 1, Unit::Minute),
    );
    let unknown: &[_] = &[("unknown", "x")];
    let both = request(&[ACME, unknown, KEY]);
    world.ask(&both);
    world.later(Micros(1));
    let answer = world.ask(&both);
    assert_eq!(
        answer.statuses.as_slice(),
        [
            Status {
                over_limit: false,
                limit: Some(CurrentLimit {
                    requests_per_unit: 9,
                    unit: Some(Unit::Hour),
                    multiplier: None,
                    name: "tenant".into(),
                }),
                remaining: 8,
                reset_seconds: Some(3_600),
            },
            Status::default(),
            Status {
                over_limit: true,
                limit: Some(CurrentLimit {
                    requests_per_unit: 1,
                    unit: Some(Unit::Minute),
                    multiplier: None,
                    name: "credential".into(),
                }),
                remaining: 0,
                reset_seconds: Some(60),
            },
        ]
    );
}

#[test]
fn a_status_is_of_the_refusing_limit_else_of_the_tightest() {
    let limits = vec![fixed("wide", 100, Unit::Hour), fixed("narrow", 10, Unit::Minute)];
    let world = World::new(domain([(&[("tenant", None)], limits)]));
    let name = |answer: Answer<'static>| answer.statuses[0].limit.clone().unwrap().name;
    assert_eq!(name(world.spend(1)), "narrow");
    world.spend(9);
    for _ in 0..9 {
        world.later(Micros::from_secs(60));
        world.spend(10);
    }
    world.later(Micros::from_secs(60));
    let answer = world.spend(1);
    assert_eq!((answer.refused, &*name(answer)), (true, "wide"));
}

#[test]
fn a_descriptor_without_a_ceiling_has_the_largest_number_left() {
    let mut unlimited = fixed("tenant", 1, Unit::Hour);
    unlimited.numbers.unlimited = true;
    let world = two_facets(unlimited, fixed("credential", 5, Unit::Hour));
    let answer = world.ask(&request(&[ACME, KEY]));
    assert_eq!(
        answer.statuses[0],
        Status {
            remaining: 4_294_967_295,
            ..Status::default()
        }
    );
    assert_eq!(header(&answer, "RateLimit-Limit"), Some("5"));
    let alone = world.ask(&request(&[ACME]));
    assert_eq!(headers(&alone), []);
}

#[test]
fn a_period_is_told_as_so_many_seconds() {
    let told = |limit: Limit| {
        let limit = World::of(limit).spend(1).statuses[0].limit.clone().unwrap();
        (limit.unit, limit.multiplier)
    };
    let minute = || sliding("t", 5, Unit::Minute);
    assert_eq!(told(minute()), (Some(Unit::Minute), None));
    assert_eq!(told(every(minute(), 30_000)), (Some(Unit::Second), Some(30)));
    assert_eq!(told(every(minute(), 1_000)), (Some(Unit::Second), Some(1)));
    assert_eq!(told(every(minute(), 1_500)), (None, None));
    assert_eq!(told(every(minute(), 500)), (None, None));
    assert_eq!(told(fixed("t", 5, Unit::Week)), (Some(Unit::Week), None));
}

#[test]
fn odd_bytes_in_a_name_are_escaped_in_the_status() {
    for (name, seen) in [
        ("tenant.route/minute", "tenant.route/minute"),
        ("50%;a,b", "50%;a,b"),
        (r#"a"b\c"#, "a%22b%5Cc"),
        ("a b", "a%20b"),
        ("a\r\nset-cookie: x", "a%0D%0Aset-cookie:%20x"),
        ("gr\u{fc}n\0\u{7f}", "gr%C3%BCn%00%7F"),
    ] {
        let answer = World::of(fixed(name, 5, Unit::Minute)).spend(1);
        assert_eq!(answer.statuses[0].limit.as_ref().unwrap().name, seen);
    }
}

#[test]
fn numbers_too_large_for_the_wire_saturate() {
    let answer = World::of(fixed("t", 1 << 40, Unit::Year)).spend(1);
    let status = &answer.statuses[0];
    assert_eq!(status.limit.as_ref().unwrap().requests_per_unit, u32::MAX);
    assert_eq!(status.remaining, u32::MAX);
    assert_eq!(header(&answer, "RateLimit-Limit"), Some("1099511627776"));
}

#[test]
fn an_unknown_domain_passes_with_a_status_for_each_descriptor() {
    let resolved = resolve(None, &request(&[ACME, KEY]), false, NOON);
    let decision = Decision::default();
    let answer = answer(None, &resolved, &decision, 0.1);
    assert_eq!(answer.statuses.as_slice(), [Status::default(), Status::default()]);
    assert_eq!(answer.metadata, None);
}

#[test]
fn shadow_shows_in_metadata_only() {
    let world = two_facets(
        shadow(fixed("observed", 1, Unit::Hour)),
        fixed("credential", 5, Unit::Hour),
    );
    world.ask(&request(&[ACME, KEY]));
    let answer = world.ask(&request(&[ACME, KEY]));
    assert!(!answer.refused);
    assert_eq!(answer.statuses[0], Status::default());
    assert_eq!(header(&answer, "RateLimit-Remaining"), Some("3"));
    let metadata = answer.metadata.unwrap();
    assert_eq!(metadata.shadow.as_slice(), [("observed", "deny")]);
    assert_eq!((metadata.code, metadata.scope), ("OK", Some("credential")));

    let alone = world.ask(&request(&[ACME]));
    let metadata = alone.metadata.unwrap();
    assert_eq!(
        (metadata.scope, metadata.limit, metadata.remaining),
        (None, None, None)
    );
    assert_eq!(metadata.shadow.as_slice(), [("observed", "deny")]);
}

#[test]
fn a_shadow_verdict_is_told_of_each_kind() {
    let waits = waiting(bucket("waits", 60, 1, Unit::Minute), Micros::from_secs(9));
    let marked = excess(ExcessAction::Degrade, fixed("marked", 1, Unit::Hour));
    let limits = vec![
        shadow(fixed("allows", 9, Unit::Hour)),
        shadow(waits),
        shadow(marked),
    ];
    let world = World::new(domain([(&[("tenant", None)], limits)]));
    world.spend(1);
    let answer = world.spend(1);
    assert_eq!(
        answer.metadata.unwrap().shadow.as_slice(),
        [("allows", "allow"), ("waits", "wait"), ("marked", "excess")]
    );
    assert_eq!(answer.excess, None);
}

#[test]
fn quota_descriptors_refuse_only_all_together() {
    let world = two_facets(
        quota(fixed("tenant", 1, Unit::Hour)),
        quota(fixed("credential", 2, Unit::Hour)),
    );
    let both = request(&[ACME, KEY]);
    assert_eq!(over(&world.ask(&both)), [false, false]);
    let answer = world.ask(&both);
    assert_eq!((answer.refused, over(&answer)), (false, vec![true, false]));
    assert_eq!(
        (answer.body.as_ref(), header(&answer, "Retry-After")),
        (None, None)
    );
    let answer = world.ask(&both);
    assert_eq!((answer.refused, over(&answer)), (true, vec![true, true]));
    assert!(header(&answer, "Retry-After").is_some());
}

#[test]
fn beside_an_enforced_refusal_a_quota_does_not_speak() {
    let world = two_facets(
        quota(fixed("quota", 1, Unit::Day)),
        fixed("enforced", 1, Unit::Minute),
    );
    world.ask(&request(&[ACME, KEY]));
    let answer = world.ask(&request(&[ACME, KEY]));
    assert!(answer.refused);
    assert_eq!(body(&answer)["scope"], "enforced");
}

#[test]
fn marked_excess_passes_and_is_told_to_the_upstream() {
    let world = World::of(excess(ExcessAction::AcceptAsync, fixed("tenant", 2, Unit::Hour)));
    assert_eq!(world.spend(2).excess, None);
    let answer = world.spend(2);
    assert_eq!(
        (answer.refused, answer.excess),
        (false, Some(ExcessAction::AcceptAsync))
    );
    assert!(!answer.statuses[0].over_limit);
    assert_eq!(header(&answer, "RateLimit-Remaining"), Some("0"));
    assert_eq!(header(&answer, "Retry-After"), None);
    assert_eq!(answer.metadata.unwrap().excess, Some("accept_async"));
    let refused = world.spend(1);
    assert_eq!((refused.refused, refused.excess), (true, None));
}

#[test]
fn of_two_marks_the_later_action_is_told() {
    use ExcessAction::{AcceptAsync, Degrade, ServeStale};
    for (a, b, told) in [
        (ServeStale, Degrade, Degrade),
        (Degrade, ServeStale, Degrade),
        (AcceptAsync, Degrade, AcceptAsync),
        (ServeStale, AcceptAsync, AcceptAsync),
    ] {
        let world = two_facets(
            excess(a, fixed("tenant", 1, Unit::Hour)),
            excess(b, fixed("credential", 1, Unit::Hour)),
        );
        world.ask(&request(&[ACME, KEY]));
        assert_eq!(world.ask(&request(&[ACME, KEY])).excess, Some(told));
    }
}

#[test]
fn a_refused_request_carries_no_mark() {
    let world = two_facets(
        excess(ExcessAction::Degrade, fixed("tenant", 1, Unit::Hour)),
        fixed("credential", 1, Unit::Hour),
    );
    world.ask(&request(&[ACME, KEY]));
    let answer = world.ask(&request(&[ACME, KEY]));
    assert_eq!((answer.refused, answer.excess), (true, None));
    assert_eq!(answer.metadata.unwrap().excess, None);
}

#[test]
fn metadata_speaks_of_the_limit_in_the_headers() {
    let world = two_facets(
        fixed("tenant", 9, Unit::Hour),
        fixed("credential", 4, Unit::Minute),
    );
    world.later(Micros::from_millis(500));
    let both = |cost| costing(request(&[ACME, KEY]), cost);
    let metadata = world.ask(&both(3)).metadata.unwrap();
    assert_eq!(
        metadata,
        Metadata {
            limit: Some(4),
            scope: Some("credential"),
            code: "OK",
            remaining: Some(1),
            cost: Some(3),
            retry_after_ms: None,
            shadow: SmallVec::new(),
            degraded: false,
            changed_by: None,
            excess: None,
            rules: SmallVec::new(),
        }
    );
    let metadata = world.ask(&both(3)).metadata.unwrap();
    assert_eq!((metadata.code, metadata.remaining), ("OVER_LIMIT", Some(1)));
    // Without the spread, to the millisecond.
    assert_eq!(metadata.retry_after_ms, Some(59_500));
}

#[test]
fn metadata_names_the_override_that_decided() {
    let change = Override {
        id: "ticket-4411".into(),
        matches: vec![("tenant".into(), "acme".into())],
        limit: "tenant".into(),
        change: Change::Multiply { thousandths: 10_000 },
        expires_at: None,
        author: None,
        reason: None,
    };
    let world = World::of(Limit {
        overrides: OverrideIndex::new(vec![change.into()]),
        ..fixed("tenant", 5, Unit::Hour)
    });
    let metadata = world.spend(1).metadata.unwrap();
    assert_eq!(
        (metadata.changed_by, metadata.limit),
        (Some("ticket-4411"), Some(50))
    );
}

#[test]
fn the_cost_told_is_what_the_limit_was_asked_for() {
    let requests = Limit {
        counts: Counts::Requests,
        ..fixed("requests", 2, Unit::Hour)
    };
    let world = World::of(requests);
    assert_eq!(world.spend(7).metadata.unwrap().cost, Some(1));
}

#[test]
fn a_rules_own_metadata_is_told_of_requests_that_pass() {
    let mut rules = domain([(&[("tenant", None)], vec![fixed("tenant", 1, Unit::Hour)])]);
    let map = BTreeMap::from([("tier".into(), Value::String("gold".into()))]);
    node(&mut rules.rules, &[("tenant", None)]).metadata = Some(map.clone().into());
    node(&mut rules.rules, &[("free", None)]).metadata = Some(map.into());
    let world = World::new(rules);
    assert_eq!(world.spend(1).metadata.unwrap().rules[0].len(), 1);
    assert!(world.spend(1).metadata.unwrap().rules.is_empty());
    let without_limit = world.ask(&request(&[&[("free", "x")]]));
    assert_eq!(without_limit.metadata.unwrap().rules[0].len(), 1);
}
