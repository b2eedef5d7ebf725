//! Random traces, decided by the store and by the engine over a map: the same to the last bit.

use cota::engine::budget::{Outcome, View};
use cota::engine::decision::Decision;
use cota::engine::descriptor::{Descriptor, Entry, Request, WireOverride};
use cota::engine::limit::{Counts, Excess, ExcessAction, Limit, Unit};
use cota::engine::policy::{Costs, Domain};
use cota::engine::resolve::resolve;
use cota::engine::time::{Micros, Timestamp};
use cota::store::Store as _;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::harness::{Harness, decide};
use crate::support::model::Model;
use crate::support::policy::{NOON, bucket, domain, every, fixed, leaky, sliding, waiting};

/// One move of a trace.
#[derive(Clone, Debug)]
enum Step {
    Ask(Vec<Facet>, u32, Micros),
    /// The caller of the last request goes away.
    GoAway,
    Later(Micros),
    Back(Micros),
    /// Another set of numbers comes into force.
    Reload,
    Forget,
}

#[derive(Clone, Debug)]
struct Facet {
    path: usize,
    caller: usize,
    addend: Option<u64>,
    negative: bool,
    limit: bool,
}

const CALLERS: [&str; 3] = ["acme", "acme\0", "{acme}"];
const PATHS: [&[&str]; 6] = [
    &["tenant"],
    &["tenant", "route"],
    &["key"],
    &["debt"],
    &["quota"],
    &["seen"],
];

fn rules(scale: u64) -> Domain {
    let n = |units: u64| units * scale / 2;
    let lane = |action, limit| Limit {
        excess: Some(Excess {
            action,
            up_to_percent: 170,
        }),
        ..limit
    };
    let overdraft = |limit| Limit {
        overdraft: true,
        ..limit
    };
    let quota = |limit| Limit { quota: true, ..limit };
    let shadow = |limit| Limit {
        shadow: true,
        ..limit
    };
    let requests = |limit| Limit {
        counts: Counts::Requests,
        ..limit
    };
    Domain {
        costs: Some(Costs {
            entry: "route".into(),
            default: 1,
            values: [("acme".into(), 3), ("{acme}".into(), 0)].into_iter().collect(),
        }),
        ..domain([
            (
                &[("tenant", None)],
                vec![
                    bucket("bucket", n(70), n(14), Unit::Minute),
                    fixed("month", n(300), Unit::Month),
                    every(requests(sliding("sliding", n(8), Unit::Second)), 7_000),
                ],
            ),
            (
                &[("tenant", None), ("route", None)],
                vec![
                    leaky("leaky", n(7), Unit::Second, Micros::from_millis(2_500)),
                    lane(ExcessAction::Degrade, fixed("lane", n(6), Unit::Minute)),
                ],
            ),
            (
                &[("key", None)],
                vec![
                    waiting(bucket("wait", n(9), n(3), Unit::Second), Micros::from_millis(700)),
                    lane(
                        ExcessAction::ServeStale,
                        bucket("burst", n(11), n(5), Unit::Minute),
                    ),
                ],
            ),
            (
                &[("debt", None)],
                vec![
                    overdraft(bucket("owed", n(13), n(4), Unit::Minute)),
                    overdraft(fixed("owing", n(4), Unit::Minute)),
                ],
            ),
            (
                &[("quota", None)],
                vec![quota(fixed("quota", n(6), Unit::Minute))],
            ),
            (
                &[("seen", None)],
                vec![shadow(sliding("seen", n(6), Unit::Minute))],
            ),
        ])
    }
}

fn facet() -> impl Strategy<Value = Facet> {
    let addend = prop_oneof![
        6 => Just(None),
        1 => Just(Some(0)),
        3 => (1_u64..9).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ];
    (
        0..PATHS.len(),
        0..CALLERS.len(),
        addend,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(path, caller, addend, negative, limit)| Facet {
            path,
            caller,
            addend,
            negative,
            limit,
        })
}

fn span() -> impl Strategy<Value = Micros> {
    prop_oneof![
        Just(1),
        1_u64..3_000_000,
        1_u64..200_000_000,
        Just(60_000_000),
        1_u64..4_000_000_000_000
    ]
    .prop_map(Micros)
}

fn ask() -> impl Strategy<Value = Step> {
    let cap = prop_oneof![Just(u64::MAX), Just(0), 0_u64..3_000_000].prop_map(Micros);
    let addend = prop_oneof![9 => Just(0), 1 => 1_u32..5];
    (prop::collection::vec(facet(), 1..5), addend, cap)
        .prop_map(|(facets, addend, cap)| Step::Ask(facets, addend, cap))
}

fn forward() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => ask(),
        1 => Just(Step::GoAway),
        3 => span().prop_map(Step::Later),
        1 => Just(Step::Forget),
    ]
}

fn wild() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => ask(),
        1 => Just(Step::GoAway),
        3 => span().prop_map(Step::Later),
        1 => span().prop_map(Step::Back),
        1 => Just(Step::Reload),
    ]
}

impl Step {
    /// Leaves what concerns the caller that is named first.
    fn of_one_caller(&mut self) {
        if let Self::Ask(facets, ..) = self {
            let caller = |facet: &Facet| (PATHS[facet.path][0], facet.caller);
            let first = caller(&facets[0]);
            facets.retain(|facet| caller(facet) == first);
        }
    }
}

impl Facet {
    fn descriptor<'a>(&self) -> Descriptor<'a> {
        let value = CALLERS[self.caller];
        Descriptor {
            entries: PATHS[self.path].iter().map(|&key| Entry { key, value }).collect(),
            limit: self.limit.then_some(WireOverride {
                requests_per_unit: 5,
                unit: Some(Unit::Minute),
                multiplier: 0,
            }),
            hits_addend: self.addend,
            is_negative_hits: self.negative,
        }
    }
}

type Told = (bool, Micros, Vec<(Outcome, View, u64, bool, bool)>);

fn told(decision: &Decision) -> Told {
    let verdicts = decision.verdicts.iter();
    let verdicts = verdicts.map(|v| (v.outcome, v.view, v.capacity, v.charged, v.clamped));
    (decision.refused, decision.wait, verdicts.collect())
}

async fn replay<H: Harness>(harness: H, steps: &[Step]) {
    let policies = [rules(2), rules(5), rules(1)];
    let model = Model::default();
    let (mut now, mut policy) = (NOON, 0);
    let mut last = None;
    for (i, step) in steps.iter().enumerate() {
        let rules = &policies[policy % policies.len()];
        match step {
            Step::Ask(facets, hits_addend, cap) => {
                let request = Request {
                    domain: "api",
                    descriptors: facets.iter().map(Facet::descriptor).collect(),
                    hits_addend: *hits_addend,
                };
                let mut resolved = resolve(Some(rules), &request, false, now);
                let decision = decide(&harness, &mut resolved, *cap).await;
                let wanted = model.decide(&resolved, *cap, now);
                assert_eq!(told(&decision), told(&wanted), "at the end of {:?}", &steps[..=i]);
                last = Some((rules, request, decision));
            }
            Step::GoAway => {
                if let Some((rules, request, decision)) = last.take() {
                    let resolved = resolve(Some(rules), &request, false, now);
                    harness.store().give_back(&resolved, &decision);
                    harness.settled().await;
                    model.give_back(&resolved, &decision, now);
                }
            }
            Step::Later(by) => now = now.plus(*by),
            Step::Back(by) => now = Timestamp(now.0.saturating_sub(by.0)),
            Step::Reload => policy += 1,
            Step::Forget => harness.forget_expired().await,
        }
        harness.set_clock(now);
    }
}

/// Sixty-four traces, the same ones in each run.
fn traces(steps: impl Strategy<Value = Step>) -> impl Iterator<Item = Vec<Step>> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let traces = prop::collection::vec(steps, 1..120);
    (0..64).map(move |_| traces.new_tree(&mut runner).unwrap().current())
}

pub async fn any_trace_is_decided_as_by_the_engine_alone<H: Harness>() {
    for mut trace in traces(wild()) {
        if !H::ATOMIC {
            trace.iter_mut().for_each(Step::of_one_caller);
        }
        replay(H::begin_unforgetting(NOON).await, &trace).await;
    }
}

pub async fn what_was_forgotten_is_never_missed<H: Harness>() {
    for trace in traces(forward()) {
        replay(H::begin(NOON).await, &trace).await;
    }
}
