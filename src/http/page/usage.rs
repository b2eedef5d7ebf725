//! Who is refused, how concentrated that is, and who is near the ceiling.

use std::collections::HashMap;

use maud::{Markup, html};

use super::Facts;
use super::parts::{NUMBER, SHORT, TEXT, ago, bar, count, grouped, percent, shown, table};
use crate::http::limits::LimitView;
use crate::usage::{Concentration, Denied, LimitSnapshot, Near};

/// The most limits with refusals, callers of one, and callers near a ceiling that are shown.
const MOST_LIMITS: usize = 20;
const MOST_CALLERS: usize = 5;
const MOST_NEAR: usize = 40;

/// The limits in force, by domain and label.
type InForce<'f> = HashMap<(&'f str, &'f str), &'f LimitView<'f>>;

/// The section of refused callers.
pub(super) fn refused(facts: &Facts<'_>) -> Markup {
    let in_force = in_force(facts);
    let mut limits: Vec<&LimitSnapshot> = facts.usage.iter().filter(|usage| usage.lately > 0).collect();
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.lately));
    html! {
        section id="refused" data-live aria-labelledby="refused-title" {
            h2 id="refused-title" { "Refused" }
            p class="note" { "In the last ten to twenty minutes, as this replica saw it." }
            @if limits.is_empty() { p class="empty" { "Nobody is refused." } }
            @for usage in limits.iter().take(MOST_LIMITS) { (of_limit(facts, &in_force, usage)) }
            @if limits.len() > MOST_LIMITS {
                p class="more" { "And " (count(limits.len() - MOST_LIMITS, "limit")) " that refuse less: see " a href="metrics" { "metrics" } "." }
            }
        }
    }
}

fn of_limit(facts: &Facts<'_>, in_force: &InForce<'_>, usage: &LimitSnapshot) -> Markup {
    let limit = in_force.get(&(&*usage.domain, &*usage.limit));
    let shadow = facts.shadow || limit.is_some_and(|limit| limit.shadow);
    let columns = [
        ("Caller", TEXT),
        ("Refused", NUMBER),
        ("Share", TEXT),
        ("Mostly by", TEXT),
        ("Last", SHORT),
        ("", TEXT),
    ];
    let attributed = usage.denied.iter().any(|denied| denied.attributed.is_some());
    let raises = facts.names && facts.changes;
    let kept = |at: usize| (attributed || at != 3) && (raises || at != 5);
    let columns: Vec<_> = (0..columns.len())
        .filter(|at| kept(*at))
        .map(|at| columns[at])
        .collect();
    let rows = usage.denied.iter().take(MOST_CALLERS);
    let rows = rows.map(|denied| {
        let cells = row(facts, usage, limit.copied(), denied);
        cells
            .into_iter()
            .enumerate()
            .filter(|(at, _)| kept(*at))
            .map(|(_, cell)| cell)
            .collect()
    });
    let name = format!(
        "Callers refused by {} of {}",
        shown(&usage.limit),
        shown(&usage.domain)
    );
    html! {
        article class="card" {
            header {
                h3 { span class="of" { (shown(&usage.domain)) } (shown(&usage.limit)) }
                @if shadow { span class="badge shadow" { "shadow: would be refused" } }
                span class="sum" { strong { (grouped(usage.lately)) } " lately, " (grouped(usage.refused)) " since the start" }
            }
            (concentration(usage.concentration))
            (table(&name, &columns, rows.collect()))
            @if usage.denied.len() > MOST_CALLERS {
                p class="more" { "More callers were refused; the largest have a series in " a href="metrics" { "metrics" } ": " code { "cota_top_denied_total" } "." }
            }
        }
    }
}

fn row(
    facts: &Facts<'_>,
    usage: &LimitSnapshot,
    limit: Option<&LimitView<'_>>,
    denied: &Denied,
) -> Vec<Markup> {
    // An override needs the name of a limit, and values that were not cut and stay on the lines of the form.
    let name = limit
        .and_then(|limit| limit.name)
        .filter(|_| fits_form(&denied.caller));
    vec![
        caller(facts, &denied.caller),
        html! { (grouped(denied.refused)) },
        bar(denied.share, "bad"),
        match &denied.attributed {
            Some(value) => caller(facts, value),
            None => html! { "–" },
        },
        html! { (ago(denied.last, facts.now)) },
        html! { @if let Some(name) = name {
            button type="button" class="needs-script small" data-override data-domain=(usage.domain)
                data-limit=(name) data-caller=(denied.caller) { "Override…" }
        } },
    ]
}

/// The bar of the first, the first five, the first twenty and all others, and what it means.
fn concentration(share: Concentration) -> Markup {
    let Concentration { top1, top5, top20 } = share;
    let parts = [
        ("first", "the first", 0.0, top1),
        ("five", "2nd to 5th", top1, top5),
        ("twenty", "6th to 20th", top5, top20),
        ("rest", "all others", top20, 1.0),
    ];
    let parts = parts.map(|(class, name, from, to)| (class, name, from, (to - from).max(0.0)));
    let meaning = if top1 >= 0.5 {
        "One caller makes most of it: the limit keeps it from the others."
    } else if top5 >= 0.5 {
        "Few callers make most of it: the limit keeps them from the others."
    } else if top20 < 0.5 {
        "Spread over many callers: the limit may be too low, or somebody makes up identities."
    } else {
        "Some callers make most of it."
    };
    html! {
        p class="meaning" { (meaning) }
        svg class="stack" role="img" aria-label="How concentrated the refusals are" {
            @for (class, _, from, part) in parts {
                rect class=(class) x=(format!("{:.2}%", from * 100.0)) width=(format!("{:.2}%", part * 100.0)) height="100%" {}
            }
        }
        ul class="legend" {
            @for (class, name, _, part) in parts {
                @if part > 0.0 { li class=(class) { (name) " " strong { (percent(part)) } } }
            }
        }
    }
}

/// The section of callers near their ceiling.
pub(super) fn near(facts: &Facts<'_>) -> Markup {
    let all = facts.usage.iter();
    let mut callers: Vec<(&LimitSnapshot, &Near)> = all
        .flat_map(|usage| usage.near.iter().map(move |near| (usage, near)))
        .collect();
    callers.sort_by(|(_, a), (_, b)| b.ratio.total_cmp(&a.ratio).then(b.at.cmp(&a.at)));
    let columns = [
        ("Caller", TEXT),
        ("Limit", TEXT),
        ("Used at most", TEXT),
        ("When", SHORT),
    ];
    let rows = callers.iter().take(MOST_NEAR).map(|(usage, near)| {
        vec![
            caller(facts, &near.caller),
            html! { span class="of" { (shown(&usage.domain)) } (shown(&usage.limit)) },
            bar(near.ratio, "warn"),
            html! { (ago(near.at, facts.now)) },
        ]
    });
    html! {
        section id="near" data-live aria-labelledby="near-title" {
            h2 id="near-title" { "Near the ceiling" }
            p class="note" { "Not refused lately, but used four fifths of a budget or more." }
            @if callers.is_empty() {
                p class="empty" { "Nobody is near." }
            } @else {
                div class="card" { (table("Callers near their ceiling", &columns, rows.collect())) }
            }
            @if callers.len() > MOST_NEAR {
                p class="more" { "And " (count(callers.len() - MOST_NEAR, "caller")) " more." }
            }
        }
    }
}

/// Names of callers are for those who may see them.
fn caller(facts: &Facts<'_>, name: &str) -> Markup {
    html! { @if facts.names { code { (shown(name)) } } @else { span class="hidden-name" { "hidden" } } }
}

/// Whether a caller is whole, and each of its values is a line.
fn fits_form(caller: &str) -> bool {
    !["~", "%0A", "%0D"].iter().any(|odd| caller.contains(odd))
}

fn in_force<'f>(facts: &'f Facts<'_>) -> InForce<'f> {
    let domains = facts.view.domains.iter();
    domains
        .flat_map(|domain| {
            domain
                .limits
                .iter()
                .map(|limit| ((domain.name, limit.label), limit))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_line_break_adds_no_entry_to_the_form() {
        assert!(fits_form("tenant=acme,route=a%2Cb"));
        assert!(fits_form("tenant=%250A"));
        for caller in [
            "tenant=x%0Aroute=export",
            "tenant=x%0Droute=export",
            "tenant=~abc",
        ] {
            assert!(!fits_form(caller), "{caller}");
        }
    }
}
