//! Overrides in force, and the forms that set and revoke them: these send what `/overrides` takes, with the
//! token as typed.

use maud::{Markup, html};

use super::Facts;
use super::parts::{NUMBER, TEXT, count, grouped, shown, span, table};
use crate::engine::time::{Micros, Timestamp};
use crate::overrides::{Listed, Origin, Spec, moment};

/// The most that are shown.
const MOST: usize = 100;

/// How long one may last, in seconds.
const LASTS: [(u32, &str); 7] = [
    (900, "15 minutes"),
    (3_600, "1 hour"),
    (14_400, "4 hours"),
    (86_400, "1 day"),
    (259_200, "3 days"),
    (604_800, "7 days"),
    (2_592_000, "30 days"),
];

/// The one that is chosen at first.
const USUAL: u32 = 3_600;

/// The section of overrides: what ends first, first.
pub(super) fn section(facts: &Facts<'_>) -> Markup {
    let mut listed: Vec<(Option<Timestamp>, &Listed)> =
        facts.overrides.iter().map(|item| (end(item), item)).collect();
    listed.sort_by_key(|(end, _)| end.unwrap_or(Timestamp(u64::MAX)));
    let mut columns = vec![
        ("Limit", TEXT),
        ("For", TEXT),
        ("Change", TEXT),
        ("Left", NUMBER),
        ("Why", TEXT),
    ];
    if facts.changes {
        columns.push(("", TEXT));
    }
    let rows = listed
        .iter()
        .take(MOST)
        .map(|(end, item)| row(facts, *end, item))
        .collect();
    html! {
        section id="overrides" data-live aria-labelledby="overrides-title" {
            header {
                h2 id="overrides-title" { "Overrides" }
                @if facts.changes {
                    button type="button" id="new-override" class="needs-script" data-override { "New override…" }
                }
            }
            @if !facts.changes {
                p class="note" { "Changes are off: the service was started without " code { "--admin-token-file" } "." }
            } @else {
                noscript { p class="note" { "To set or revoke one here needs JavaScript; " code { "cota override" } " does not." } }
            }
            @if listed.is_empty() {
                p class="empty" { "None is in force." }
            } @else {
                div class="card" { (table("Overrides in force", &columns, rows)) }
            }
            @if listed.len() > MOST { p class="more" { "And " (count(listed.len() - MOST, "override")) " that end later." } }
        }
    }
}

fn row(facts: &Facts<'_>, end: Option<Timestamp>, item: &Listed) -> Vec<Markup> {
    let spec = &item.spec;
    let of_file = item.origin == Origin::File;
    let hidden = || html! { span class="hidden-name" { "hidden" } };
    vec![
        html! {
            span class="of" { (shown(&spec.domain)) } (shown(spec.limit.as_deref().unwrap_or_default()))
            br; code class="dim" { (shown(&item.id)) }
        },
        if facts.names {
            html! { @for (key, value) in &spec.matches { span class="entry" { (shown(key)) " = " (shown(value)) } " " } }
        } else {
            hidden()
        },
        change(spec),
        html! { @match end {
            Some(end) => time datetime=[spec.expires_at.as_deref()] { (span(Micros(end.0.saturating_sub(facts.now.0)))) },
            None => "no end",
        } },
        if facts.names {
            html! {
                (shown(spec.reason.as_deref().unwrap_or("–")))
                @if let Some(author) = &spec.author { br; span class="dim" { "by " (shown(author)) } }
            }
        } else {
            hidden()
        },
        html! { @if of_file {
            span class="dim" { "in a file" }
        } @else {
            button type="button" id={ "revoke-" (item.id) } class="needs-script small" data-revoke=(item.id) { "Revoke…" }
        } },
    ]
}

fn change(spec: &Spec) -> Markup {
    html! {
        @if let Some(factor) = &spec.multiply { "× " strong { (factor) } }
        @if let Some(units) = spec.requests_per_unit { strong { (grouped(units.into())) } " per unit" }
        @if let Some(burst) = spec.burst { ", burst " (grouped(burst.into())) }
        @if spec.unlimited == Some(true) { strong { "unlimited" } }
    }
}

pub(super) fn end(item: &Listed) -> Option<Timestamp> {
    moment(item.spec.expires_at.as_deref()?).ok()
}

/// The forms. They stand outside of what is replaced while somebody types.
pub(super) fn dialogs() -> Markup {
    html! {
        dialog id="override" aria-labelledby="override-title" {
            form id="override-form" autocomplete="off" {
                h2 id="override-title" { "New override" }
                div class="fields" {
                    label { "Domain" input id="override-domain" list="domains" required spellcheck="false"; }
                    label { "Limit" input id="override-limit" list="limits" required spellcheck="false"; }
                    label class="wide" {
                        "For whom, an entry a line"
                        textarea id="override-match" rows="2" required spellcheck="false" placeholder="key=value" {}
                    }
                    fieldset class="wide" {
                        legend { "Change" }
                        label { input type="radio" name="change" value="multiply" checked; "Multiply by"
                            input id="override-multiply" class="short" inputmode="decimal" value="10" aria-label="Factor"; }
                        label { input type="radio" name="change" value="numbers"; "Requests per unit"
                            input id="override-units" class="short" inputmode="numeric" aria-label="Requests per unit"; "burst"
                            input id="override-burst" class="short" inputmode="numeric" placeholder="as many" aria-label="Burst"; }
                        label { input type="radio" name="change" value="unlimited"; "Unlimited" }
                    }
                    label { "Ends after" select id="override-lasts" {
                        @for (seconds, name) in LASTS { option value=(seconds) selected[seconds == USUAL] { (name) } }
                    } }
                    label { "Your name" input id="override-author" required; }
                    label class="wide" { "Reason" input id="override-reason" required; }
                    (token("override-token"))
                }
                p id="override-answer" class="answer" role="alert" {}
                div class="actions" {
                    button type="button" data-close { "Cancel" }
                    button id="override-send" class="primary" { "Set override" }
                }
            }
        }
        dialog id="revoke" aria-labelledby="revoke-title" {
            form id="revoke-form" autocomplete="off" {
                h2 id="revoke-title" { "Revoke " code id="revoke-id" {} }
                div class="fields" {
                    label { "Your name" input id="revoke-author"; }
                    label { "Reason" input id="revoke-reason"; }
                    (token("revoke-token"))
                }
                p id="revoke-answer" class="answer" role="alert" {}
                div class="actions" {
                    button type="button" data-close { "Cancel" }
                    button id="revoke-send" class="danger" { "Revoke" }
                }
            }
        }
    }
}

/// A field without a name: no form ever sends it by itself.
fn token(id: &str) -> Markup {
    html! { label class="wide" { "Admin token" input id=(id) type="password" data-token required autocomplete="off"; } }
}

/// What the form proposes.
pub(super) fn proposals(facts: &Facts<'_>) -> Markup {
    let domains = &facts.view.domains;
    let mut names: Vec<&str> = domains
        .iter()
        .flat_map(|domain| domain.limits.iter().filter_map(|l| l.name))
        .collect();
    names.sort_unstable();
    names.dedup();
    html! {
        div id="proposals" data-live hidden {
            datalist id="domains" { @for domain in domains.iter().take(MOST) { option value=(domain.name) {} } }
            datalist id="limits" { @for name in names.iter().take(MOST) { option value=(name) {} } }
        }
    }
}
