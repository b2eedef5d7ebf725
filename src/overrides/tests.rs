//! What operators do, on one replica with a clock that stands.

use super::*;
use crate::clock::ManualClock;
use crate::engine::limit::Unit;
use crate::engine::policy::Domain;
use crate::engine::resolve::resolve_with;
use crate::engine::time::Micros;
use crate::support::policy::{NOON, bucket, domain, fixed, policy, request};

struct Desk {
    overrides: Arc<Overrides>,
    clock: ManualClock,
    policy: Arc<ArcSwap<Policy>>,
    heard: Arc<Mutex<Vec<String>>>,
}

fn api() -> Domain {
    domain([
        (
            &[("tenant", None)][..],
            vec![bucket("tenant", 10, 5, Unit::Minute)],
        ),
        (
            &[("tenant", None), ("route", None)],
            vec![fixed("route", 10, Unit::Minute)],
        ),
        (
            &[("plan", None), ("user", None)],
            vec![fixed("user", 10, Unit::Minute)],
        ),
    ])
}

fn desk() -> Desk {
    let clock = ManualClock::at(NOON);
    let policy = Arc::new(ArcSwap::from_pointee(policy([api()])));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = Arc::clone(&heard);
    let listener = move |targets: &[Target]| {
        let mut labels: Vec<&str> = targets.iter().map(|target| &*target.limit.label).collect();
        labels.sort_unstable();
        hearing.lock().push(format!("reset {}", labels.join(",")));
    };
    let overrides = Overrides::new(
        Ledger::in_memory(),
        Arc::clone(&policy),
        clock.clone(),
        Box::new(listener),
    );
    Desk {
        overrides: Arc::new(overrides),
        clock,
        policy,
        heard,
    }
}

/// Ten times as much for a tenant, for an hour.
fn tenfold(tenant: &str) -> Spec {
    Spec {
        domain: "api".into(),
        matches: [("tenant".into(), tenant.into())].into(),
        limit: Some("tenant".into()),
        multiply: Some(10.into()),
        expires_at: Some(rfc3339(NOON.plus(Micros::from_secs(3_600)))),
        author: Some("ana".into()),
        reason: Some("ticket 4411".into()),
        ..Spec::default()
    }
}

fn reset(matches: &[(&str, &str)], limit: Option<&str>) -> ResetSpec {
    ResetSpec {
        domain: "api".into(),
        matches: matches
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect(),
        limit: limit.map(Into::into),
        author: Some("ana".into()),
        reason: Some("login succeeded".into()),
    }
}

impl Desk {
    /// The numbers of a tenant, and the override that gave them.
    fn numbers(&self, tenant: &str) -> (u64, u64, Option<String>) {
        let policy = self.policy.load();
        let live = self.overrides.live().load_full();
        let request = request(&[&[("tenant", tenant)]]);
        let domain = policy.domains.get("api").map(|domain| &**domain);
        let resolved = resolve_with(domain, &request, false, self.clock.now(), Some(&live));
        let charge = &resolved.charges[0];
        let by = charge.changed_by.as_ref().map(|item| item.id.to_string());
        (charge.numbers.requests_per_unit, charge.numbers.burst, by)
    }

    /// The record, oldest first: what happened, to which, in place of which.
    async fn told(&self) -> Vec<(String, Option<String>, Option<String>)> {
        let lines = self.overrides.audit().await.unwrap().into_iter().rev();
        lines.map(|line| (line.event, line.id, line.replaced)).collect()
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Micros::from_secs(seconds));
    }
}

#[tokio::test]
async fn an_override_is_in_force_at_once_and_stops_by_itself() {
    let desk = desk();
    let set = desk.overrides.set(tenfold("acme")).await.unwrap();
    assert_eq!(desk.numbers("acme"), (100, 50, Some(set.id.clone())));
    assert_eq!(desk.numbers("beta"), (10, 5, None));
    let (active, end) = desk.overrides.active();
    assert_eq!(
        (active, end),
        (1, Some(desk.clock.now().plus(Micros::from_secs(3_600))))
    );
    desk.pass(3_599);
    assert_eq!(desk.numbers("acme").0, 100);
    desk.pass(1);
    // Nobody has swept anything.
    assert_eq!(desk.numbers("acme"), (10, 5, None));
    assert_eq!(
        (desk.overrides.active(), desk.overrides.list()),
        ((0, None), vec![])
    );
    for _ in 0..3 {
        desk.overrides.refresh().await.unwrap();
    }
    let id = Some(set.id);
    assert_eq!(
        desk.told().await,
        [("set".into(), id.clone(), None), ("expired".into(), id, None)]
    );
}

#[tokio::test]
async fn of_two_for_one_target_the_later_wins_and_the_record_shows_both() {
    let desk = desk();
    let first = desk.overrides.set(tenfold("acme")).await.unwrap();
    let second = Spec {
        multiply: None,
        requests_per_unit: Some(7),
        burst: Some(3),
        author: Some("bo".into()),
        ..tenfold("acme")
    };
    let second = desk.overrides.set(second).await.unwrap();
    assert_eq!(desk.numbers("acme"), (7, 3, Some(second.id.clone())));
    assert_eq!(desk.overrides.list(), std::slice::from_ref(&second));
    let audit = desk.overrides.audit().await.unwrap();
    assert_eq!(audit[0].replaced, Some(first.id.clone()));
    let authors: Vec<_> = audit
        .iter()
        .map(|line| line.spec.author.as_deref().unwrap())
        .collect();
    assert_eq!(authors, ["bo", "ana"]);
    // The one that made room is no longer there to be revoked.
    let gone = desk.overrides.revoke(&first.id, &Revocation::default()).await;
    assert_eq!(gone, Err(Refusal::Unknown(first.id)));
    let by = Revocation {
        author: Some("cy".into()),
        reason: None,
    };
    desk.overrides.revoke(&second.id, &by).await.unwrap();
    assert_eq!(desk.numbers("acme"), (10, 5, None));
    let last = &desk.overrides.audit().await.unwrap()[0];
    assert_eq!(
        (&*last.event, last.spec.author.as_deref()),
        ("revoked", Some("cy"))
    );
}

#[tokio::test]
async fn a_reload_changes_neither_overrides_nor_what_they_name() {
    let desk = desk();
    desk.overrides.set(tenfold("acme")).await.unwrap();
    let other = domain([(&[("tenant", None)][..], vec![fixed("tenant", 3, Unit::Hour)])]);
    desk.policy.store(Arc::new(policy([other])));
    assert_eq!(desk.numbers("acme").0, 30);
    // A limit that is gone for a while takes its overrides along, not for good.
    let without = domain([(&[("tenant", None)][..], vec![fixed("other", 3, Unit::Hour)])]);
    desk.policy.store(Arc::new(policy([without])));
    assert_eq!(desk.numbers("acme").0, 3);
    desk.policy.store(Arc::new(policy([api()])));
    assert_eq!(desk.numbers("acme").0, 100);
}

#[tokio::test]
async fn those_of_files_are_listed_and_stay() {
    let desk = desk();
    let of_file = Override {
        id: "api#1".into(),
        matches: vec![("tenant".into(), "acme".into())],
        limit: "tenant".into(),
        change: crate::engine::overrides::Change::Unlimited,
        expires_at: None,
        author: None,
        reason: Some("a contract".into()),
    };
    let with = Domain {
        overrides: vec![Arc::new(of_file)],
        ..api()
    };
    desk.policy.store(Arc::new(policy([with])));
    let listed = desk.overrides.list();
    assert_eq!((listed.len(), listed[0].origin), (1, Origin::File));
    assert_eq!(listed[0].spec.unlimited, Some(true));
    let refused = desk.overrides.revoke("api#1", &Revocation::default()).await;
    assert_eq!(refused, Err(Refusal::InFile("api#1".into())));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_all_that_is_wrong() {
    let desk = desk();
    let cases: [(Spec, &[&str]); 14] = [
        (
            Spec {
                domain: "ap".into(),
                ..tenfold("a")
            },
            &["no domain is called \"ap\"; in force are api"],
        ),
        (
            Spec {
                limit: Some("tenat".into()),
                ..tenfold("a")
            },
            &["no limit is called \"tenat\"; its limits are route, tenant, user"],
        ),
        (
            Spec {
                limit: None,
                ..tenfold("a")
            },
            &["`limit` is missing"],
        ),
        (
            Spec {
                matches: [("tennant".into(), "a".into())].into(),
                ..tenfold("a")
            },
            &["have no such entries: its entries are `tenant`"],
        ),
        (
            Spec {
                matches: [].into(),
                ..tenfold("a")
            },
            &["`match` is empty"],
        ),
        (
            Spec {
                limit: Some("route".into()),
                multiply: None,
                requests_per_unit: Some(1),
                burst: Some(1),
                ..tenfold("a")
            },
            &["is no `token_bucket`"],
        ),
        (
            Spec {
                unlimited: Some(true),
                ..tenfold("a")
            },
            &["in more than one way"],
        ),
        (
            Spec {
                multiply: None,
                ..tenfold("a")
            },
            &["changes nothing"],
        ),
        (
            Spec {
                multiply: serde_json::Number::from_f64(-2.0),
                ..tenfold("a")
            },
            &["`multiply` is no factor"],
        ),
        (
            Spec {
                expires_at: None,
                author: None,
                reason: Some(" ".into()),
                ..tenfold("a")
            },
            &[
                "`expires_at` is missing",
                "`author` is missing",
                "`reason` is missing",
            ],
        ),
        (
            Spec {
                expires_at: Some(rfc3339(NOON)),
                ..tenfold("a")
            },
            &["`expires_at` is past"],
        ),
        (
            Spec {
                expires_at: Some("tomorrow".into()),
                ..tenfold("a")
            },
            &["`expires_at` is no moment"],
        ),
        (
            Spec {
                reason: Some("x".repeat(2_001)),
                ..tenfold("a")
            },
            &["`reason` is longer than 2000 bytes"],
        ),
        (
            Spec {
                matches: [("tenant".into(), "x".repeat(1_025))].into(),
                ..tenfold("a")
            },
            &["`match` is longer than 1024 bytes"],
        ),
    ];
    for (spec, parts) in cases {
        let refused = desk.overrides.set(spec.clone()).await;
        let Err(Refusal::Senseless(text)) = refused else {
            panic!("{spec:?}: {refused:?}");
        };
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    }
    assert_eq!(desk.told().await, []);
}

#[tokio::test]
async fn a_reset_is_heard_and_recorded() {
    let desk = desk();
    desk.overrides
        .reset(&reset(&[("tenant", "acme")], None))
        .await
        .unwrap();
    desk.overrides
        .reset(&reset(&[("tenant", "acme")], Some("route")))
        .await
        .unwrap();
    let heard = desk.heard.lock().clone();
    assert_eq!(heard, ["reset route,tenant", "reset route"]);
    let audit = desk.overrides.audit().await.unwrap();
    assert_eq!(audit.len(), 2);
    assert_eq!(
        (audit[0].event.as_str(), audit[0].spec.limit.as_deref()),
        ("reset", Some("route"))
    );
    assert_eq!(audit[1].spec.reason.as_deref(), Some("login succeeded"));
    for (spec, part) in [
        (reset(&[("user", "u1")], None), "name \"plan\" too"),
        (reset(&[("usr", "u1")], None), "no rule of the domain"),
        (
            reset(&[("tenant", "acme")], Some("user")),
            "no budget of a limit called \"user\"",
        ),
        (reset(&[], None), "`match` is empty"),
        (
            ResetSpec {
                author: None,
                ..reset(&[("tenant", "acme")], None)
            },
            "`author` is missing",
        ),
    ] {
        let refused = desk.overrides.reset(&spec).await.unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(desk.told().await.len(), 2);
}

#[tokio::test]
async fn there_is_room_for_a_thousand() {
    let desk = desk();
    for i in 0..1_000 {
        desk.overrides.set(tenfold(&format!("t{i}"))).await.unwrap();
    }
    let refused = desk.overrides.set(tenfold("one more")).await.unwrap_err();
    assert!(matches!(refused, Refusal::Full(_)), "{refused}");
    assert!(refused.to_string().contains("revoke some first"), "{refused}");
    desk.overrides.set(tenfold("t7")).await.unwrap();
    assert_eq!(desk.numbers("t999").0, 100);
}

#[test]
fn a_moment_that_is_not_known_is_not_shown() {
    let listed = Listed::of_run_time("r1", &tenfold("acme"), None);
    assert_eq!(listed.set_at, None);
    assert!(!to_json(&listed).contains("1970"), "{listed:?}");
}
