//! What a refused client is told.

use proptest::prelude::*;

use super::*;
use crate::engine::limit::{ExcessAction, Unit};
use crate::engine::response::{Message, Response};
use crate::support::policy::{leaky, waiting};

/// What acme is told once a limit of one a minute is spent.
fn refusal(response: Response) -> Answer<'static> {
    let world = World::with(fixed("tenant", 1, Unit::Minute), response);
    world.spend(1);
    world.later(Micros::from_secs(40));
    let answer = world.spend(1);
    assert!(answer.refused);
    answer
}

#[test]
fn the_json_body_says_what_was_hit_and_when_to_come_back() {
    let answer = refusal(Response::default());
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    assert_eq!(header(&answer, "Retry-After"), Some("22"));
    assert_eq!(
        answer.body.unwrap(),
        concat!(
            r#"{"error":"rate_limit_exceeded","scope":"tenant","limit":1,"window_seconds":60,"#,
            r#""retry_after_seconds":22,"message":"Budget of 1 per minute spent. Retry in 22s."}"#
        )
    );
}

#[test]
fn the_problem_body_has_the_json_members_as_well() {
    let answer = refusal(Response {
        body: Body::Problem,
        documentation_url: Some("https://example.com/limits".into()),
        ..Response::default()
    });
    assert_eq!(header(&answer, "content-type"), Some("application/problem+json"));
    assert_eq!(
        answer.body.unwrap(),
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota exceeded","status":429,"detail":"Budget of 1 per minute spent. Retry in 22s.","#,
            r#""violated-policies":["tenant"],"error":"rate_limit_exceeded","scope":"tenant","limit":1,"#,
            r#""window_seconds":60,"retry_after_seconds":22,"#,
            r#""message":"Budget of 1 per minute spent. Retry in 22s.","#,
            r#""documentation_url":"https://example.com/limits"}"#
        )
    );
}

#[test]
fn the_documentation_is_named_where_the_policy_names_it() {
    let answer = refusal(Response {
        documentation_url: Some("https://example.com/limits".into()),
        ..Response::default()
    });
    assert_eq!(body(&answer)["documentation_url"], "https://example.com/limits");
    assert_eq!(body(&refusal(Response::default())).get("documentation_url"), None);
}

#[test]
fn without_a_body_there_is_no_content_type() {
    let answer = refusal(responding(&[HeaderFamily::Draft03], Body::None));
    assert_eq!(answer.body, None);
    assert_eq!(header(&answer, "content-type"), None);
    assert_eq!(header(&answer, "Retry-After"), Some("22"));
}

#[test]
fn a_message_may_use_every_placeholder() {
    let template =
        "{scope}: {cost} of {limit} per {window} ({window_seconds}), {remaining} left, {retry_after}";
    let world = World::with(
        fixed("tenant", 5, Unit::Hour),
        Response {
            message: Message::parse(template).unwrap(),
            ..Response::default()
        },
    );
    world.spend(3);
    assert_eq!(
        body(&world.spend(4))["message"],
        "tenant: 4 of 5 per hour (3600), 2 left, 3750"
    );
}

#[test]
fn names_are_quoted_in_bodies() {
    let world = World::of(fixed("a\"b\r\n", 0, Unit::Minute));
    assert_eq!(body(&world.spend(1))["scope"], "a\"b\r\n");
}

#[test]
fn a_cost_that_never_fits_has_no_time_to_come_back() {
    let cases = [
        (fixed("t", 10, Unit::Minute), 11, "10"),
        (bucket("t", 600, 10, Unit::Minute), 11, "10"),
        (fixed("t", 0, Unit::Minute), 1, "Nothing"),
        (bucket("t", 0, 0, Unit::Minute), 1, "Nothing"),
        (leaky("t", 0, Unit::Minute, Micros::SECOND), 1, "Nothing"),
    ];
    for (limit, cost, said) in cases {
        let answer = World::of(limit).spend(cost);
        assert!(answer.refused);
        assert_eq!(header(&answer, "Retry-After"), None);
        let body = body(&answer);
        assert_eq!(body["retry_after_seconds"], serde_json::Value::Null);
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(said) && !message.contains("600"), "{message}");
        assert_eq!(answer.metadata.unwrap().retry_after_ms, None);
    }
}

#[test]
fn of_two_refusing_limits_the_one_with_the_longest_wait_speaks() {
    let minute = fixed("minute", 1, Unit::Minute);
    let hour = fixed("hour", 1, Unit::Hour);
    let never = fixed("never", 0, Unit::Second);
    for limits in [vec![minute.clone(), hour.clone()], vec![hour.clone(), minute]] {
        let world = World::new(domain([(&[("tenant", None)], limits)]));
        world.spend(1);
        let answer = world.spend(1);
        assert_eq!(body(&answer)["scope"], "hour");
        assert_eq!(header(&answer, "RateLimit-Policy"), Some("1;w=3600"));
    }
    let world = World::new(domain([(&[("tenant", None)], vec![hour, never])]));
    assert_eq!(body(&world.spend(1))["scope"], "never");
}

#[test]
fn the_refusing_limit_speaks_even_where_another_has_less_left() {
    let world = World::new(domain([
        (&[("tenant", None)], vec![fixed("tenant", 4, Unit::Hour)]),
        (
            &[("credential", None)],
            vec![fixed("credential", 9, Unit::Minute)],
        ),
    ]));
    world.ask(&costing(request(&[ACME, KEY]), 4));
    let mut spend_and_look = costing(request(&[ACME, KEY]), 6);
    spend_and_look.descriptors[0].hits_addend = Some(0);
    let answer = world.ask(&spend_and_look);
    assert_eq!(body(&answer)["scope"], "credential");
    assert_eq!(header(&answer, "RateLimit-Remaining"), Some("5"));
    assert_eq!(
        (answer.statuses[0].over_limit, answer.statuses[0].remaining),
        (false, 0)
    );
}

#[test]
fn what_is_left_is_told_uncharged() {
    let limits = vec![fixed("narrow", 2, Unit::Hour), fixed("wide", 10, Unit::Minute)];
    let world = World::new(Domain {
        response: responding(&[HeaderFamily::Draft11], Body::Json),
        ..domain([(&[("tenant", None)], limits)])
    });
    world.spend(1);
    let answer = world.spend(2);
    assert!(answer.refused);
    assert_eq!(
        header(&answer, "RateLimit"),
        Some(r#""narrow";r=1;t=3600, "wide";r=9;t=60"#)
    );
}

#[test]
fn no_limit_of_a_refusal_is_told_to_come_back_later_than_retry_after() {
    let limits = vec![
        bucket("tenant", 60, 1, Unit::Minute),
        fixed("contract", 1_000, Unit::Day),
    ];
    let world = World::new(Domain {
        response: responding(&[HeaderFamily::Draft11], Body::Json),
        ..domain([(&[("tenant", None)], limits)])
    });
    let passes = world.spend(1);
    assert_eq!(
        header(&passes, "RateLimit"),
        Some(r#""tenant";r=0;t=1, "contract";r=999;t=43200"#)
    );
    let answer = world.ask_spread(&request(&[ACME]), 0.2);
    assert_eq!(header(&answer, "Retry-After"), Some("2"));
    assert_eq!(
        header(&answer, "RateLimit"),
        Some(r#""tenant";r=0;t=1, "contract";r=999;t=2"#)
    );
    // Where no waiting helps there is nothing to be earlier than.
    let answer = world.spend(2);
    assert_eq!(header(&answer, "Retry-After"), None);
    assert!(header(&answer, "RateLimit").unwrap().ends_with("t=43200"));
}

#[test]
fn all_violated_policies_are_listed_but_those_in_shadow() {
    let shadow = Limit {
        shadow: true,
        ..fixed("observed", 1, Unit::Minute)
    };
    let limits = vec![
        fixed("minute", 1, Unit::Minute),
        shadow,
        fixed("day", 9, Unit::Day),
        fixed("hour", 1, Unit::Hour),
    ];
    let world = World::new(Domain {
        response: responding(&[], Body::Problem),
        ..domain([(&[("tenant", None)], limits)])
    });
    world.spend(1);
    assert_eq!(
        body(&world.spend(1))["violated-policies"],
        serde_json::json!(["minute", "hour"])
    );
}

#[test]
fn a_wait_that_max_wait_covers_is_not_asked_of_the_client() {
    let world = World::of(waiting(
        bucket("tenant", 60, 1, Unit::Minute),
        Micros::from_secs(5),
    ));
    for _ in 0..6 {
        assert!(!world.spend(1).refused);
    }
    // In one second the wait would be five again.
    assert_eq!(header(&world.spend(1), "Retry-After"), Some("2"));
    assert_eq!(header(&world.spend(1), "RateLimit-Remaining"), Some("0"));
}

#[test]
fn a_lane_for_excess_shortens_the_wait() {
    let world = World::of(Limit {
        excess: Some(Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 150,
        }),
        ..bucket("tenant", 60, 60, Unit::Minute)
    });
    world.spend(60);
    assert_eq!(world.spend(30).excess, Some(ExcessAction::Degrade));
    // One unit: a second for the budget, two for the lane. Thirty: 30 for the budget, 60 for the lane.
    assert_eq!(header(&world.spend(1), "Retry-After"), Some("2"));
    assert_eq!(header(&world.spend(30), "Retry-After"), Some("33"));
    // Forty never fit the lane; the budget pays them in 40.
    assert_eq!(header(&world.spend(40), "Retry-After"), Some("44"));
}

#[test]
fn nothing_of_a_refusal_stands_on_an_answer_that_passes() {
    let answer = World::of(fixed("tenant", 5, Unit::Minute)).spend(1);
    assert_eq!(header(&answer, "Retry-After"), None);
    assert_eq!(header(&answer, "content-type"), None);
    assert_eq!(answer.body, None);
}

proptest! {
    #[test]
    fn retry_after_is_spread_upward_and_never_early(wait in 0_u64..100_000_000_000_000, spread in 0.1_f64..0.2) {
        let told = retry_after_seconds(Micros(wait), spread);
        let seconds = wait as f64 / 1e6;
        prop_assert!(told >= 1);
        prop_assert!(told as f64 >= seconds);
        let wanted = (seconds + spread * seconds.min(1_500.0)).ceil().max(1.0);
        prop_assert!((told as f64 - wanted).abs() <= 1.0, "{told} for {wanted}");
        prop_assert!(told as f64 <= seconds + 300.0 + 1.0);
    }
}

#[test]
fn retry_after_follows_its_formula() {
    for (wait, spread, told) in [
        (Micros(1), 0.1, 1),
        (Micros::from_millis(200), 0.2, 1),
        (Micros::from_secs(10), 0.1, 11),
        (Micros::from_secs(10), 0.15, 12),
        (Micros::from_secs(1_500), 0.2, 1_800),
        (Micros::from_secs(86_400), 0.1, 86_550),
        (Micros(0), 0.1, 1),
    ] {
        assert_eq!(retry_after_seconds(wait, spread), told, "{wait:?} {spread}");
    }
    assert!(retry_after_seconds(Micros(u64::MAX), 0.2) > 18_000_000_000_000);
}
