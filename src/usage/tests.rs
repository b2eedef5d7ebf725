use std::borrow::Cow;

use super::*;
use crate::engine::key::{BudgetKey, Identity};
use crate::engine::limit::{Algorithm, Unit};

#[test]
fn few_callers_that_make_most_refusals_are_told_from_many_small_ones() {
    let watched = Watched::new();
    for i in 0..20_000 {
        watched.refuse(&format!("small-{i}"));
        for big in ["acme", "globex"] {
            if i % 4 == 0 {
                watched.refuse(big);
            }
        }
    }
    let snapshot = watched.snapshot();
    assert_eq!(snapshot.refused, 30_000);
    assert_eq!(snapshot.lately, 30_000);
    let first: Vec<&str> = snapshot.denied[..2]
        .iter()
        .map(|denied| &*denied.caller)
        .collect();
    assert_eq!(first, ["tenant=acme", "tenant=globex"]);
    for denied in &snapshot.denied[..2] {
        // A sixth each; never more than there were.
        assert!((4_950..=5_000).contains(&denied.refused), "{denied:?}");
        assert!((0.165..0.167).contains(&denied.share), "{denied:?}");
    }
    let Concentration { top1, top5, top20 } = snapshot.concentration;
    assert!(
        (0.165..0.167).contains(&top1) && (0.33..0.35).contains(&top5),
        "{snapshot:?}"
    );
    assert!((0.33..0.36).contains(&top20), "{top20}");
}

#[test]
fn a_caller_that_others_outnumber_later_is_still_found() {
    let watched = Watched::new();
    for i in 0..10_000 {
        watched.refuse(&format!("small-{i}"));
    }
    for i in 10_000..20_000 {
        watched.refuse(&format!("small-{i}"));
        if i % 10 == 0 {
            watched.refuse("late");
        }
    }
    let denied = &watched.snapshot().denied[0];
    assert_eq!(&*denied.caller, "tenant=late");
    assert!((900..=1_000).contains(&denied.refused), "{denied:?}");
}

#[test]
fn only_what_is_refused_often_gets_a_series_and_all_refusals_count_in_one() {
    let watched = Watched::new();
    for _ in 0..100 {
        watched.refuse("often");
    }
    for i in 0..9 {
        watched.refuse("seldom");
        watched.refuse(&format!("once-{i}"));
    }
    let series = watched.series();
    // Until the tenth it was one of the others.
    let often = Labelled {
        caller: "tenant=often".into(),
        refused: 91,
    };
    assert_eq!(series.labelled, [often]);
    assert_eq!(series.other, 9 + 9 + 9);
}

#[test]
fn a_series_lasts_while_more_callers_of_one_size_are_refused_than_can_be_followed() {
    let watched = Watched::new();
    let refuse_all = |times| {
        for caller in (0..times).flat_map(|_| 0..90) {
            watched.refuse(&format!("caller-{caller}"));
        }
        watched.series().labelled
    };
    let early = refuse_all(50);
    let late = refuse_all(100);
    assert_eq!(early.len(), LABELS_OF_A_LIMIT);
    for (early, late) in early.iter().zip(&late) {
        assert_eq!(early.caller, late.caller);
        assert_eq!(early.refused + 100, late.refused);
    }
}

#[test]
fn a_million_callers_make_no_more_series_than_twenty_and_no_count_goes_back() {
    let watched = Watched::new();
    let mut before = watched.series();
    for i in 0..1_000_000_u32 {
        watched.refuse(&format!("caller-{}", i % 37 * (i % 3) + i / 50_000 * 1_000));
        watched.refuse(&format!("made-up-{i}"));
        if i % 10_000 == 0 {
            let series = watched.series();
            assert!(series.labelled.len() <= LABELS_OF_A_LIMIT);
            assert!(series.other >= before.other);
            for labelled in &series.labelled {
                let earlier = before.labelled.iter().find(|l| l.caller == labelled.caller);
                // It may have ended and begun again, but then it was at least that long unseen.
                assert!(earlier.is_none_or(|earlier| earlier.refused <= labelled.refused));
            }
            before = series;
        }
    }
}

#[test]
fn callers_of_all_limits_together_have_a_bounded_number_of_series() {
    let usage = Arc::<Usage>::default();
    for limit in 0..30 {
        let watched = Watched::of(&usage, &format!("limit-{limit}"));
        for caller in 0..20 {
            for _ in 0..12 {
                watched.refuse(&format!("caller-{caller}"));
            }
        }
    }
    let labelled = |usage: &Usage| {
        usage
            .series()
            .iter()
            .map(|series| series.labelled.len())
            .sum::<usize>()
    };
    assert_eq!(labelled(&usage), LABELS);
    // What a limit held is free when it goes.
    usage.retain(|_, limit| limit == "limit-29");
    let watched = Watched::of(&usage, "limit-29");
    for caller in 0..20 {
        for _ in 0..12 {
            watched.refuse(&format!("caller-{caller}"));
        }
    }
    // One or two may share all their cells of the sketch with others.
    assert!((LABELS_OF_A_LIMIT - 5..=LABELS_OF_A_LIMIT).contains(&labelled(&usage)));
}

#[test]
fn a_caller_has_one_series_though_the_limit_gets_another_period() {
    let mut watched = Watched::new();
    for period in [Unit::Minute, Unit::Hour] {
        watched.identity = identity(period);
        for _ in 0..50 {
            watched.refuse("acme");
            watched.pass("globex", 900);
        }
    }
    let acme = Labelled {
        caller: "tenant=acme".into(),
        refused: 91,
    };
    assert_eq!(watched.series().labelled, [acme]);
    let snapshot = watched.snapshot();
    assert_eq!((snapshot.denied.len(), snapshot.near.len()), (1, 1));
}

#[test]
fn who_is_no_longer_refused_is_forgotten_after_two_windows_at_most() {
    let watched = Watched::new();
    for _ in 0..50 {
        watched.refuse("acme");
    }
    watched.usage.tick(after(WINDOW));
    let snapshot = watched.snapshot();
    assert_eq!((snapshot.lately, snapshot.denied.len()), (50, 1));
    watched.usage.tick(after(Micros(2 * WINDOW.0)));
    let snapshot = watched.snapshot();
    assert_eq!(
        (snapshot.refused, snapshot.lately, snapshot.denied.len()),
        (50, 0, 0)
    );
    assert_eq!(watched.series().labelled, []);
}

#[test]
fn windows_end_by_time_and_also_when_the_clock_is_set_back() {
    let watched = Watched::new();
    watched.refuse("acme");
    watched.usage.tick(after(Micros(WINDOW.0 - 1)));
    watched.usage.tick(Timestamp(START.0 - 1_000));
    watched.usage.tick(Timestamp(START.0 - 2_000));
    assert_eq!(watched.snapshot().lately, 0);
}

#[test]
fn followed_callers_do_not_pile_up_over_windows() {
    let watched = Watched::new();
    for window in 0..20 {
        watched.usage.tick(after(Micros(window * WINDOW.0)));
        for caller in 0..60 {
            for old in 0..=window {
                for _ in 0..3 {
                    watched.refuse(&format!("caller-{old}-{caller}"));
                }
            }
        }
        let kept = watched.limit.followed();
        assert!(kept <= 2 * 48 + LABELS_OF_A_LIMIT, "{kept} in window {window}");
    }
}

#[test]
fn the_credential_beside_most_refusals_is_named() {
    let watched = Watched::new();
    for i in 0..30 {
        let credential = if i % 3 == 0 { "other" } else { "key 1\n" };
        watched
            .limit
            .refused(&watched.key(&["acme".into()]), Some(credential));
    }
    let attributed = watched.snapshot().denied[0].attributed.clone();
    assert_eq!(attributed.as_deref(), Some("key%201%0A"));
}

#[test]
fn a_credential_is_named_for_what_it_did_lately_only() {
    let watched = Watched::new();
    let refuse = |credential, times| {
        for _ in 0..times {
            watched
                .limit
                .refused(&watched.key(&["acme".into()]), Some(credential));
        }
    };
    let named = || watched.snapshot().denied[0].attributed.clone();
    refuse("mended", 1_000);
    watched.usage.tick(after(WINDOW));
    refuse("broken", 100);
    assert_eq!(named().as_deref(), Some("mended"), "it made more of them lately");
    watched.usage.tick(after(Micros(2 * WINDOW.0)));
    refuse("broken", 1);
    assert_eq!(named().as_deref(), Some("broken"));
}

#[test]
fn near_the_ceiling_are_those_that_were_never_refused() {
    let watched = Watched::new();
    watched.pass("acme", 800);
    watched.pass("acme", 950);
    watched.pass("acme", 900);
    watched.pass("idle", 799);
    watched.pass("full", 1_000);
    watched.refuse("full");
    watched.pass("full", 1_000);
    let near: Vec<(String, f64)> = watched
        .snapshot()
        .near
        .iter()
        .map(|near| (near.caller.to_string(), near.ratio))
        .collect();
    assert_eq!(near, [("tenant=acme".to_owned(), 0.95)]);
    assert_eq!(watched.series().near, 1);
    watched.usage.tick(after(WINDOW));
    assert_eq!(watched.series().near, 1);
    watched.usage.tick(after(Micros(2 * WINDOW.0)));
    assert_eq!(watched.series().near, 0);
}

#[test]
fn nobody_stays_near_the_ceiling_because_the_clock_was_set_back() {
    let watched = Watched::new();
    watched.pass("acme", 900);
    let year = Micros::from_secs(365 * 86_400);
    watched.usage.tick(Timestamp(START.0 - year.0));
    watched.pass("globex", 900);
    let near = |watched: &Watched| {
        watched
            .snapshot()
            .near
            .iter()
            .map(|near| near.caller.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(near(&watched), ["tenant=globex"]);
}

#[test]
fn of_many_near_the_ceiling_the_nearest_are_kept() {
    let watched = Watched::new();
    for i in 0..100_000_u32 {
        watched.pass(&format!("caller-{i}"), 800 + i % 150);
    }
    watched.pass("nearest", 990);
    let near = watched.snapshot().near;
    assert_eq!(near.len(), MOST_NEAR);
    assert_eq!(&*near[0].caller, "tenant=nearest");
    assert!(near[MOST_NEAR - 1].ratio >= 0.949, "{near:?}");
}

#[test]
fn names_are_escaped_bounded_and_as_different_as_callers() {
    let watched = Watched::new();
    let long = "x".repeat(10_000);
    let hostile = [
        "a\"b\n",
        "a\u{202e}",
        "other",
        "a,b=c",
        &long,
        &format!("{long}y"),
    ];
    for caller in hostile {
        for _ in 0..20 {
            watched.refuse(caller);
        }
    }
    let names: Vec<String> = watched
        .series()
        .labelled
        .iter()
        .map(|labelled| labelled.caller.to_string())
        .collect();
    assert_eq!(names.len(), hostile.len(), "{names:?}");
    for name in &names {
        assert!(name.starts_with("tenant=") && name.len() <= 97, "{name}");
        assert!(
            name.bytes()
                .all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'<' | b'{')),
            "{name}"
        );
    }
    assert!(names.contains(&"tenant=a%22b%0A".to_owned()), "{names:?}");
}

const START: Timestamp = Timestamp(1_800_000_000_000_000);

fn after(span: Micros) -> Timestamp {
    Timestamp(START.0 + span.0)
}

fn identity(unit: Unit) -> Identity {
    Identity::new(
        "api",
        &["tenant"],
        Some("tenant"),
        &Algorithm::TokenBucket,
        &unit.period(),
    )
}

/// One limit of tenants.
struct Watched {
    usage: Arc<Usage>,
    limit: Arc<LimitUsage>,
    identity: Identity,
}

impl Watched {
    fn new() -> Self {
        let usage = Arc::<Usage>::default();
        usage.tick(START);
        Self::of(&usage, "tenant")
    }

    fn of(usage: &Arc<Usage>, limit: &str) -> Self {
        Self {
            usage: Arc::clone(usage),
            limit: usage.limit(&"api".into(), &limit.into()),
            identity: identity(Unit::Minute),
        }
    }

    fn key<'k>(&'k self, values: &'k [Cow<'k, str>]) -> BudgetKey<'k> {
        BudgetKey {
            identity: &self.identity,
            values,
            caller: Some(0),
        }
    }

    fn refuse(&self, caller: &str) {
        self.limit.refused(&self.key(&[caller.into()]), None);
    }

    fn pass(&self, caller: &str, used: u32) {
        self.limit.passed(&self.key(&[caller.into()]), used);
    }

    fn snapshot(&self) -> LimitSnapshot {
        self.usage.snapshot().remove(0)
    }

    fn series(&self) -> Series {
        self.usage.series().remove(0)
    }
}
