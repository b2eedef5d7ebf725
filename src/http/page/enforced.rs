//! What is enforced, domain by domain: the view of `/limits`, for people.

use maud::{Markup, html};

use super::Facts;
use super::parts::{TEXT, count, grouped, shown, table};
use crate::http::limits::{DomainView, LimitView, NumbersView};

/// The most limits that are shown; `/limits` has them all.
const MOST: usize = 200;

/// With more domains than this each shows when it is opened.
const OPEN: usize = 3;

const COLUMNS: [(&str, &str); 5] = [
    ("Limit", TEXT),
    ("For each", TEXT),
    ("Allows", TEXT),
    ("Counted by", TEXT),
    ("Without the store", TEXT),
];

/// The section of domains.
pub(super) fn section(facts: &Facts<'_>) -> Markup {
    let domains = &facts.view.domains;
    let mut left = MOST;
    let shown: Vec<(&DomainView<'_>, usize)> = domains
        .iter()
        .map(|domain| {
            let shown = domain.limits.len().min(left);
            left -= shown;
            (domain, shown)
        })
        .collect();
    html! {
        section id="enforced" data-live aria-labelledby="enforced-title" {
            h2 id="enforced-title" { "Enforced" }
            p class="note" { "Policy number " (facts.view.version) ", as compiled from the files." }
            @if domains.is_empty() { p class="empty" { "No domain is in force." } }
            @for (at, (domain, most)) in shown.into_iter().enumerate() { (of_domain(at, domain, most, domains.len() <= OPEN)) }
        }
    }
}

fn of_domain(at: usize, domain: &DomainView<'_>, most: usize, open: bool) -> Markup {
    let name = format!("Limits of {}", shown(domain.name));
    let rows = domain.limits.iter().take(most).map(row).collect();
    html! {
        details class="card" id={ "domain-" (at) } open[open] {
            summary {
                h3 { (shown(domain.name)) }
                span class="sum" { (count(domain.limits.len(), "limit")) ", version " code { (domain.version) } }
            }
            @if let Some(costs) = &domain.costs {
                p class="note" {
                    "A request costs " (costs.default) ", by its " code { (shown(costs.entry)) } " otherwise:"
                    @for (value, cost) in costs.values.iter().take(12) { " " span class="entry" { (shown(value)) " = " (cost) } }
                    @if costs.values.len() > 12 { " and " (costs.values.len() - 12) " more" }
                }
            }
            @if let Some(ceiling) = &domain.safety_ceiling {
                p class="note" { "Without the store, " (allows(&ceiling.numbers, ceiling.period)) " pass in all at most." }
            }
            (table(&name, &COLUMNS, rows))
            @if domain.limits.len() > most {
                p class="more" { "And " (count(domain.limits.len() - most, "limit")) " in " a href="limits" { "limits" } "." }
            }
        }
    }
}

fn row(limit: &LimitView<'_>) -> Vec<Markup> {
    vec![
        html! { strong { (shown(limit.label)) } (badges(limit)) },
        html! { @for entry in &limit.path {
            span class="entry" { (shown(entry.key)) @if let Some(value) = entry.value { " = " (shown(value)) } }
            " "
        } },
        html! { @match &limit.plans {
            None => (allows(&limit.numbers, limit.period)),
            Some(plans) => {
                ul class="plans" { @for (name, numbers) in &plans.rows {
                    li { span class="plan" { (shown(name)) } " " (allows(numbers, limit.period)) }
                } }
                span class="dim" { "by " (shown(plans.entry)) ", else " (shown(plans.default)) }
            }
        } },
        html! {
            (limit.algorithm.replace('_', " "))
            @if let Some(zone) = limit.time_zone.filter(|zone| *zone != "UTC") { " of " (zone) }
            @if limit.counts != "cost" { span class="dim" { ", " (limit.counts) " only" } }
        },
        html! { (match limit.failure_mode {
            "local" => "this replica's share",
            "allow" => "all pass",
            _ => "all are refused",
        }) },
    ]
}

fn badges(limit: &LimitView<'_>) -> Markup {
    html! {
        @if limit.shadow { " " span class="badge shadow" { "shadow" } }
        @if limit.quota_mode { " " span class="badge" { "quota" } }
        @if limit.overdraft { " " span class="badge" { "overdraft" } }
        @if let Some(excess) = &limit.excess {
            " " span class="badge" { (excess.action.replace('_', " ")) " up to " (excess.up_to_percent) "%" }
        }
    }
}

fn allows(numbers: &NumbersView, period: &str) -> Markup {
    html! {
        @match numbers.requests_per_unit {
            None => "unlimited",
            Some(0) => "nothing",
            Some(units) => { strong { (grouped(units)) } " per " (period) },
        }
        @if let Some(burst) = numbers.burst { span class="dim" { ", burst " (grouped(burst)) } }
        @if let Some(wait) = numbers.max_wait_ms { span class="dim" { ", waits " (grouped(wait)) " ms" } }
    }
}
