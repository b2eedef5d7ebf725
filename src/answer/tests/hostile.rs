//! Nothing that a caller chose gets into an answer.

use proptest::prelude::*;

use super::*;
use crate::engine::descriptor::{Descriptor, Entry, WireOverride};
use crate::engine::limit::{ExcessAction, Unit};
use crate::engine::response::Message;

/// Found in every value and key a hostile caller sends, in nothing else.
const MARK: &str = "Zq9";

fn hostile() -> impl Strategy<Value = String> {
    let odd = prop_oneof![
        Just("\r\nset-cookie: a=b".to_owned()),
        Just("\r\n\r\nHTTP/1.1 200 OK".to_owned()),
        Just("\0".to_owned()),
        Just("\"".to_owned()),
        Just("\\\",\"x".to_owned()),
        Just("{retry_after}".to_owned()),
        Just("gr\u{fc}\u{df}e \u{1f980}".to_owned()),
        ".{0,40}",
    ];
    prop::collection::vec(odd, 0..4).prop_map(|parts| format!("{}{MARK}{}", MARK, parts.concat()))
}

fn world(family: HeaderFamily, shape: Body) -> World {
    let limits = || {
        vec![
            Limit {
                excess: Some(Excess {
                    action: ExcessAction::Degrade,
                    up_to_percent: 200,
                }),
                ..bucket("first", 2, 2, Unit::Hour)
            },
            Limit {
                name: None,
                ..fixed("", 3, Unit::Minute)
            },
            Limit {
                shadow: true,
                ..fixed("observed", 1, Unit::Hour)
            },
        ]
    };
    let template = "{scope} {cost} {limit} {window} {window_seconds} {remaining} {retry_after}";
    World::new(Domain {
        response: Response {
            message: Message::parse(template).unwrap(),
            ..responding(&[family], shape)
        },
        ..domain([
            (&[("tenant", None)], limits()),
            (&[("tenant", None), ("route", None)], limits()),
        ])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_byte_of_a_caller_gets_into_an_answer(
        tenant in hostile(),
        route in hostile(),
        key in hostile(),
        family in prop_oneof![
            Just(HeaderFamily::Draft03),
            Just(HeaderFamily::Draft11),
            Just(HeaderFamily::XRateLimit)
        ],
        shape in prop_oneof![Just(Body::Json), Just(Body::Problem)],
        addend in prop_oneof![Just(None), (0_u64..9).prop_map(Some), any::<u64>().prop_map(Some)],
    ) {
        let world = world(family, shape);
        let [tenant, route, key] = [tenant, route, key].map(|s| &*s.leak());
        let entries = |entries: &[(&'static str, &'static str)]| Descriptor {
            entries: entries.iter().map(|&(key, value)| Entry { key, value }).collect(),
            hits_addend: addend,
            ..Descriptor::default()
        };
        let sent_along = Descriptor {
            limit: Some(WireOverride { requests_per_unit: 1, unit: Some(Unit::Day), multiplier: 2 }),
            ..entries(&[(key, tenant)])
        };
        let request = Request {
            domain: "api",
            descriptors: [
                entries(&[("tenant", tenant)]),
                entries(&[("tenant", tenant), ("route", route)]),
                entries(&[(key, route)]),
                sent_along,
            ].into_iter().collect(),
            hits_addend: 0,
        };
        for _ in 0..6 {
            let answer = world.ask(&request);
            let whole = format!("{answer:?}");
            prop_assert!(!whole.contains(MARK), "{whole}");
            for (name, value) in &answer.headers {
                prop_assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)), "{name}: {value:?}");
            }
            prop_assert_eq!(answer.statuses.len(), 4);
        }
    }
}
