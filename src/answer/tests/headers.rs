//! What the three families say, and of which limit.

use sfv::{BareItem, List, ListEntry, Parser};

use super::*;
use crate::engine::limit::Unit;
use crate::support::policy::{every, leaky, sliding};

const DRAFT11: &[HeaderFamily] = &[HeaderFamily::Draft11];

/// The members of a structured field (RFC 9651): each a string with integer parameters.
fn members(field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(field)
        .parse()
        .unwrap_or_else(|e| panic!("{field:?}: {e}"));
    let member = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else {
            panic!("{field}: an inner list")
        };
        let BareItem::String(name) = &item.bare_item else {
            panic!("{field}: not a string")
        };
        let integer = |value: &BareItem| match value {
            BareItem::Integer(n) => i64::from(*n),
            other => panic!("{field}: {other:?} is no integer"),
        };
        let params = item
            .params
            .iter()
            .map(|(key, value)| (key.as_str().to_owned(), integer(value)));
        (name.as_str().to_owned(), params.collect())
    };
    list.iter().map(member).collect()
}

#[test]
fn draft_03_is_the_default_and_stands_on_every_answer() {
    let world = World::of(bucket("tenant", 600, 90, Unit::Minute));
    let answer = world.spend(53);
    assert_eq!(
        headers(&answer),
        [
            ("RateLimit-Limit", "600"),
            ("RateLimit-Remaining", "37"),
            ("RateLimit-Reset", "6"),
            ("RateLimit-Policy", "600;w=60;burst=90"),
        ]
    );
    assert_eq!(answer.body, None);
    let refused = world.spend(38);
    assert!(refused.refused);
    assert_eq!(headers(&refused)[..4], headers(&answer)[..4]);
}

#[test]
fn a_burst_is_named_where_it_is_a_number_of_its_own() {
    let policy = |limit: Limit| header(&World::of(limit).spend(1), "RateLimit-Policy").map(str::to_owned);
    assert_eq!(
        policy(bucket("t", 60, 60, Unit::Minute)).as_deref(),
        Some("60;w=60")
    );
    assert_eq!(
        policy(fixed("t", 60, Unit::Month)).as_deref(),
        Some("60;w=2592000")
    );
    assert_eq!(
        policy(fixed("t", 60, Unit::Year)).as_deref(),
        Some("60;w=31536000")
    );
    assert_eq!(
        policy(leaky("t", 5, Unit::Second, Micros::SECOND)).as_deref(),
        Some("5;w=1")
    );
    let half_minute = every(sliding("t", 5, Unit::Second), 30_000);
    assert_eq!(policy(half_minute).as_deref(), Some("5;w=30"));
    // A window below a second has no form: a whole number of seconds above zero.
    let short = every(fixed("t", 5, Unit::Second), 500);
    assert_eq!(policy(short).as_deref(), Some("5"));
}

#[test]
fn draft_11_lists_every_limit_the_request_met() {
    let world = World::new(Domain {
        response: responding(DRAFT11, Body::Json),
        ..domain([
            (
                &[("tenant", None)],
                vec![
                    bucket("tenant", 600, 90, Unit::Minute),
                    fixed("day", 1_000, Unit::Day),
                ],
            ),
            (
                &[("credential", None)],
                vec![sliding("credential", 300, Unit::Minute)],
            ),
        ])
    });
    let answer = world.ask(&costing(request(&[ACME, KEY]), 3));
    assert_eq!(
        headers(&answer),
        [
            (
                "RateLimit-Policy",
                r#""tenant";q=600;w=60, "day";q=1000;w=86400, "credential";q=300;w=60"#
            ),
            (
                "RateLimit",
                r#""tenant";r=87;t=1, "day";r=997;t=43200, "credential";r=297;t=80"#
            ),
        ]
    );
    let limits = members(header(&answer, "RateLimit").unwrap());
    assert_eq!(
        limits[0],
        ("tenant".into(), vec![("r".into(), 87), ("t".into(), 1)])
    );
}

#[test]
fn draft_11_says_when_one_more_unit_comes_not_when_all_are_back() {
    let world = World::with(
        bucket("tenant", 6, 6, Unit::Minute),
        responding(DRAFT11, Body::Json),
    );
    assert_eq!(header(&world.spend(6), "RateLimit"), Some(r#""tenant";r=0;t=10"#));
    world.later(Micros::from_secs(4));
    assert_eq!(header(&world.spend(0), "RateLimit"), Some(r#""tenant";r=0;t=6"#));
    world.later(Micros::from_secs(3_600));
    assert_eq!(header(&world.spend(0), "RateLimit"), Some(r#""tenant";r=6;t=0"#));
}

#[test]
fn x_ratelimit_is_plain_numbers_and_delta_seconds() {
    let limit = || bucket("tenant", 600, 90, Unit::Minute);
    let world = World::with(limit(), responding(&[HeaderFamily::XRateLimit], Body::Json));
    let wanted = [
        ("x-ratelimit-limit", "600"),
        ("x-ratelimit-remaining", "37"),
        ("x-ratelimit-reset", "6"),
    ];
    assert_eq!(headers(&world.spend(53)), wanted);

    let both = [HeaderFamily::XRateLimit, HeaderFamily::Draft03];
    let world = World::with(limit(), responding(&both, Body::Json));
    let answer = world.spend(53);
    assert_eq!(headers(&answer)[..3], wanted);
    assert_eq!(answer.headers.len(), 7);
}

#[test]
fn without_families_a_refusal_keeps_its_retry_after_and_body() {
    let world = World::with(fixed("tenant", 1, Unit::Minute), responding(&[], Body::Json));
    assert_eq!(headers(&world.spend(1)), []);
    assert_eq!(
        headers(&world.spend(1)),
        [("Retry-After", "66"), ("content-type", "application/json")]
    );
}

#[test]
fn the_tightest_limit_has_the_least_share_left() {
    let speaks = |a: Limit, b: Limit, cost| {
        let world = World::new(domain([(&[("tenant", None)], vec![a, b])]));
        world.spend(cost).metadata.unwrap().scope.unwrap()
    };
    // 8 of 10 is less than 998 of 1,000, though 5 units more were left in absolute terms below.
    assert_eq!(
        speaks(
            fixed("wide", 1_000, Unit::Hour),
            fixed("narrow", 10, Unit::Minute),
            2
        ),
        "narrow"
    );
    assert_eq!(
        speaks(fixed("half", 20, Unit::Hour), fixed("most", 12, Unit::Minute), 0),
        "most"
    );
    // A bucket's share is of its burst: 40 of 50 is less than 90 of 100.
    assert_eq!(
        speaks(
            fixed("window", 100, Unit::Hour),
            bucket("bucket", 6_000, 50, Unit::Hour),
            10
        ),
        "bucket"
    );
    // Equal shares: the smaller number, then the first.
    assert_eq!(
        speaks(fixed("large", 10, Unit::Hour), fixed("small", 5, Unit::Minute), 0),
        "small"
    );
    assert_eq!(
        speaks(fixed("first", 5, Unit::Hour), fixed("second", 5, Unit::Minute), 0),
        "first"
    );
    assert_eq!(
        speaks(fixed("full", 5, Unit::Hour), fixed("none", 0, Unit::Minute), 0),
        "none"
    );
}

#[test]
fn reset_is_the_time_until_the_whole_budget_is_back() {
    let reset = |answer: Answer<'_>| header(&answer, "RateLimit-Reset").unwrap().to_owned();
    let fixed_window = World::of(fixed("tenant", 10, Unit::Minute));
    fixed_window.later(Micros(20_000_001));
    assert_eq!(reset(fixed_window.spend(1)), "40");
    let sliding_window = World::of(sliding("tenant", 10, Unit::Minute));
    assert_eq!(reset(sliding_window.spend(0)), "0");
    sliding_window.later(Micros::from_secs(20));
    assert_eq!(reset(sliding_window.spend(1)), "100");
    let token_bucket = World::of(bucket("tenant", 60, 10, Unit::Minute));
    assert_eq!(reset(token_bucket.spend(0)), "0");
    assert_eq!(reset(token_bucket.spend(3)), "3");
    token_bucket.later(Micros(2_000_001));
    assert_eq!(reset(token_bucket.spend(0)), "1");
}

#[test]
fn limits_in_shadow_mode_show_nothing() {
    let shadow = Limit {
        shadow: true,
        ..fixed("observed", 1, Unit::Hour)
    };
    for family in [
        HeaderFamily::Draft03,
        HeaderFamily::Draft11,
        HeaderFamily::XRateLimit,
    ] {
        let world = World::with(shadow.clone(), responding(&[family], Body::Json));
        world.spend(1);
        let answer = world.spend(1);
        assert_eq!((headers(&answer), answer.refused), (vec![], false));

        let beside = vec![shadow.clone(), fixed("enforced", 10, Unit::Hour)];
        let world = World::new(Domain {
            response: responding(&[family], Body::Json),
            ..domain([(&[("tenant", None)], beside)])
        });
        world.spend(1);
        let text = format!("{:?}", headers(&world.spend(1)));
        assert!(!text.contains("observed") && text.contains('8'), "{text}");
    }
}

#[test]
fn odd_bytes_in_limit_names_are_escaped() {
    for (name, seen) in [
        (r#"a"b"#, r#"a"b"#),
        (r"a\b", r"a\b"),
        ("a\r\nset-cookie: x", "a%0D%0Aset-cookie: x"),
        ("gr\u{fc}n\0", "gr%C3%BCn%00"),
        ("a, b;q=1", "a, b;q=1"),
        ("", ""),
    ] {
        let world = World::with(fixed(name, 5, Unit::Minute), responding(DRAFT11, Body::Json));
        let answer = world.spend(1);
        for (_, value) in &answer.headers {
            assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)), "{value:?}");
            assert_eq!(members(value)[0].0, seen);
        }
    }
}

#[test]
fn draft_11_numbers_stay_within_structured_field_integers() {
    let limit = leaky("smooth", u64::MAX, Unit::Second, Micros(u64::MAX));
    let world = World::with(limit, responding(DRAFT11, Body::Json));
    for (_, value) in &world.spend(1).headers {
        members(value);
    }
}

#[test]
fn limits_without_a_name_are_called_by_their_keys_and_period() {
    let unnamed = Limit {
        name: None,
        ..fixed("", 5, Unit::Minute)
    };
    let path: &[_] = &[("tenant", None), ("route", Some("GET /v1"))];
    let world = World::new(Domain {
        response: responding(DRAFT11, Body::Json),
        ..domain([(path, vec![unnamed])])
    });
    let answer = world.ask(&request(&[&[("tenant", "acme"), ("route", "GET /v1")]]));
    assert_eq!(
        header(&answer, "RateLimit-Policy"),
        Some(r#""tenant.route/minute";q=5;w=60"#)
    );
    assert_eq!(answer.statuses[0].limit.as_ref().unwrap().name, "");
}
