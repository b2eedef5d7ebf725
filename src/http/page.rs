//! `/`: the status page, for whoever is called at night.
//!
//! It is rendered here, and needs nothing else: without scripts it is a page to reload, with ours it fetches
//! itself every two seconds and swaps what changed. Everything on it is escaped by the templates, which have no
//! way around that here; the policy for the browser allows only our two files, so that what slipped through
//! would still not run. What callers are called is shown to whoever may read `/overrides`.

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::http::header::{self, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use maud::{DOCTYPE, Markup, html};
use std::sync::Arc;

use super::admin::Wants;
use super::limits::View;
use super::{Budgeted, State, typed};
use crate::config::watch::Severity;
use crate::engine::time::{Micros, Timestamp};
use crate::overrides::Listed;
use crate::usage::LimitSnapshot;

mod enforced;
mod overrides;
mod parts;
mod usage;

use parts::{NUMBER, TEXT, count, grouped, percent, shown, span, table, time_of_day};

/// No other host, no inline code or style, no form that a browser sends by itself, no frame around it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

/// The most faults that are shown of each kind.
const MOST_FAULTS: usize = 50;

/// What the page is made from, at one moment.
struct Facts<'s> {
    now: Timestamp,
    /// Whether callers' names are shown.
    names: bool,
    /// Whether anybody may change something.
    changes: bool,
    /// The whole service is in shadow mode.
    shadow: bool,
    draining: bool,
    view: View<'s>,
    faults: Arc<Vec<(Severity, String)>>,
    usage: Vec<LimitSnapshot>,
    overrides: Vec<Listed>,
    budgets: Budgeted,
}

/// The page. A token that is given has to be right; without one, names are hidden if one is configured.
pub(super) async fn page(Extract(state): Extract<Arc<State>>, headers: HeaderMap) -> Response {
    let names = match state.admin.refusal(&headers, Wants::Read).await {
        None => true,
        Some(refused) if headers.contains_key(AUTHORIZATION) => return refused,
        Some(_) => false,
    };
    let policy = state.policy.load_full();
    let facts = Facts {
        now: state.clock.now(),
        names,
        changes: state.admin.is_on(),
        shadow: state.shadow,
        draining: state.readiness.is_draining(),
        view: View::new(&policy, Vec::new(), state.shadow, (state.degraded)(), &[]),
        faults: state.faults.load_full(),
        usage: state.usage.snapshot(),
        overrides: state.overrides.list(),
        budgets: (state.budgets)(),
    };
    let body = document(&facts).into_string();
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", body);
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::VARY, HeaderValue::from_static("authorization")),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ] {
        response.headers_mut().insert(name, value);
    }
    response
}

pub(super) async fn style() -> Response {
    typed(
        StatusCode::OK,
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    )
}

pub(super) async fn script() -> Response {
    let js = include_str!("page/page.js");
    typed(StatusCode::OK, "text/javascript; charset=utf-8", js)
}

pub(super) async fn icon() -> Response {
    typed(StatusCode::OK, "image/svg+xml", include_str!("page/icon.svg"))
}

/// Addresses are relative: the page may stand beneath a path of some proxy.
fn document(facts: &Facts<'_>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "cota" }
                link rel="icon" href="assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="assets/page.css";
                script src="assets/page.js" defer {}
            }
            body {
                (banner(facts))
                main {
                    p id="trouble" class="alert bad" role="alert" hidden {}
                    p id="notice" class="alert good" role="status" hidden {}
                    (alerts(facts))
                    @if !facts.names || facts.changes { (token_form(facts)) }
                    (tiles(facts))
                    (usage::refused(facts))
                    (usage::near(facts))
                    (overrides::section(facts))
                    (enforced::section(facts))
                    (store(facts))
                    (overrides::proposals(facts))
                }
                @if facts.changes { (overrides::dialogs()) }
                footer {
                    "More: " a href="limits" { "limits" } " · " a href="rlconfig" { "rlconfig" } " · "
                    a href="metrics" { "metrics" } " · " a href="readyz" { "readyz" }
                }
            }
        }
    }
}

fn banner(facts: &Facts<'_>) -> Markup {
    let (class, mode) = match (facts.draining, facts.shadow) {
        (true, _) => ("warn", "draining"),
        (_, true) => ("shadow", "shadow"),
        _ => ("good", "enforcing"),
    };
    html! {
        header class="banner" {
            h1 { img src="assets/icon.svg" alt="" width="28" height="28"; "cota" }
            span class="dim version" { (env!("CARGO_PKG_VERSION")) }
            span id="mode" data-live class={ "badge " (class) } { (mode) }
            span class="pulse" {
                time id="moment" data-live datetime=(crate::overrides::rfc3339(facts.now)) { (time_of_day(facts.now)) }
                button type="button" id="pause" class="needs-script small" aria-pressed="false" { "Pause" }
            }
        }
    }
}

/// What nobody should overlook.
fn alerts(facts: &Facts<'_>) -> Markup {
    let of = |wanted: Severity| -> Vec<&str> {
        let faults = facts.faults.iter();
        let faults = faults.filter(|(severity, _)| *severity == wanted);
        faults.map(|(_, fault)| &**fault).collect()
    };
    let (warnings, faults) = (of(Severity::Warning), of(Severity::Error));
    html! {
        div id="alerts" data-live {
            @if facts.draining { p class="alert warn" { "This replica is going away: probes send nobody here." } }
            @if facts.shadow { p class="alert warn" { "In shadow mode: everything is decided and recorded, nothing is refused." } }
            @if facts.view.version == 0 { p class="alert bad" { "No policy is in force yet." } }
            @for line in &facts.view.degraded {
                p class="alert bad" { strong { "Degraded: " } (shown(line)) ". Limits are decided by their failure mode." }
            }
            @if !faults.is_empty() {
                div class="alert bad" {
                    p { strong { (count(faults.len(), "fault")) " in the policy files. " }
                        "Domains with errors stay at their last good version." }
                    (listed(facts, &faults))
                }
            }
            @if !warnings.is_empty() {
                details id="warnings" class="alert warn" {
                    summary { (count(warnings.len(), "warning")) " about the policy files" }
                    (listed(facts, &warnings))
                }
            }
        }
    }
}

/// Whoever may not see names sees no lines of the files, which hold some.
fn listed(facts: &Facts<'_>, faults: &[&str]) -> Markup {
    let most = if facts.names { usize::MAX } else { 1 };
    let faults = faults.iter().take(MOST_FAULTS);
    html! { ul class="faults" { @for fault in faults { li { pre { (lines(fault, most)) } } } } }
}

/// A fault has lines of its own.
fn lines(text: &str, most: usize) -> String {
    let lines: Vec<String> = text.lines().take(most).map(shown).collect();
    lines.join("\n")
}

/// Where the token is typed to see names. Its field has no name, and forms are not sent: it stays in the page.
fn token_form(facts: &Facts<'_>) -> Markup {
    html! {
        form id="token-form" class="token" autocomplete="off" data-live hidden[facts.names] {
            label for="token" { "Names of callers are hidden." }
            noscript { "To see them needs JavaScript and the admin token." }
            span class="needs-script" {
                input id="token" type="password" data-token placeholder="admin token" autocomplete="off" required;
                button { "Show" }
            }
            p id="token-answer" class="answer" role="alert" {}
        }
    }
}

fn tiles(facts: &Facts<'_>) -> Markup {
    let lately: u64 = facts.usage.iter().map(|usage| usage.lately).sum();
    let refusing: Vec<&LimitSnapshot> = facts.usage.iter().filter(|usage| usage.lately > 0).collect();
    let near: usize = facts.usage.iter().map(|usage| usage.near.len()).sum();
    let limits: usize = facts.view.domains.iter().map(|domain| domain.limits.len()).sum();
    let most = refusing.iter().max_by_key(|usage| usage.lately);
    let first_end = facts.overrides.iter().filter_map(overrides::end).min();
    let degraded = !facts.view.degraded.is_empty();
    let tiles = [
        (
            "#refused",
            "Refused lately",
            grouped(lately),
            most.map_or_else(
                || "nobody".into(),
                |most| {
                    format!(
                        "by {}; {} of it one caller",
                        shown(&most.limit),
                        percent(most.concentration.top1)
                    )
                },
            ),
            if lately > 0 { "bad" } else { "good" },
        ),
        (
            "#near",
            "Near the ceiling",
            grouped(near as u64),
            if near == 0 {
                "nobody".into()
            } else {
                "callers never refused".into()
            },
            if near > 0 { "warn" } else { "good" },
        ),
        (
            "#overrides",
            "Overrides",
            grouped(facts.overrides.len() as u64),
            first_end.map_or_else(
                || "none ends".into(),
                |end| format!("next ends in {}", span(Micros(end.0.saturating_sub(facts.now.0)))),
            ),
            "",
        ),
        (
            "#enforced",
            "Limits",
            grouped(limits as u64),
            format!("in {}", count(facts.view.domains.len(), "domain")),
            if limits == 0 { "bad" } else { "" },
        ),
        (
            "#store",
            "Store",
            if degraded {
                "degraded".into()
            } else {
                facts.budgets.store.into()
            },
            facts.budgets.replicas.map_or_else(
                || "this replica alone".into(),
                |replicas| count(replicas as usize, "replica"),
            ),
            if degraded { "bad" } else { "good" },
        ),
    ];
    html! {
        nav id="tiles" data-live aria-label="At a glance" {
            @for (to, name, number, more, tone) in tiles {
                a href=(to) class={ "tile " (tone) } {
                    span class="name" { (name) }
                    strong { (number) }
                    span class="dim" { (more) }
                }
            }
        }
    }
}

fn store(facts: &Facts<'_>) -> Markup {
    let budgets = &facts.budgets;
    let columns = [("Server", TEXT), ("Answers", TEXT), ("For", NUMBER)];
    let rows = budgets.shards.iter().map(|shard| {
        let (class, answers) = if shard.answers {
            ("good", "yes")
        } else {
            ("bad", "no")
        };
        vec![
            html! { code { (shown(&shard.address)) } },
            html! { span class={ "badge " (class) } { (answers) } },
            html! { (span(Micros::from(shard.since))) },
        ]
    });
    html! {
        section id="store" data-live aria-labelledby="store-title" {
            h2 id="store-title" { "Store and replicas" }
            p class="note" {
                @match budgets.replicas {
                    None => "Budgets are in the memory of this replica, and lost at its end.",
                    Some(replicas) => {
                        "Budgets are in " (budgets.store) ", shared by " strong { (count(replicas as usize, "live replica")) } "."
                    }
                }
            }
            @if budgets.replicas.is_some() {
                @if budgets.shards.is_empty() {
                    p class="empty" { "No server of it is known yet." }
                } @else {
                    div class="card" { (table("Servers of the store", &columns, rows.collect())) }
                }
            }
        }
    }
}
