//! Limits, their defaults, plan rows, and the flags that descriptors share with them.

use super::super::keys::Place;
use super::super::raw::{Algorithm, ExcessAction, Factor, RawDescriptor, RawExcess, RawFlags, RawLimit};
use super::super::yaml::{Kind, Node};
use super::{At, Field, Reader};
use crate::engine::limit::{Counts, FailureMode};

impl Reader<'_, '_> {
    /// `rate_limit` or `rate_limits` of a descriptor.
    pub(super) fn limits(&mut self, field: &Field<'_>, descriptor: &mut RawDescriptor) {
        if self.is_absent(field.value) {
            return;
        }
        if descriptor.limits_key.is_some() {
            self.error(
                field.key,
                "a descriptor has `rate_limit` or `rate_limits`, not both",
            )
            .help("move the one limit into the list under `rate_limits:`");
        }
        descriptor.limits_key = Some(field.key);
        match (&field.value.kind, field.name) {
            (Kind::Seq(items), name) => {
                if name == "rate_limit" {
                    self.error(field.key, "a list under `rate_limit`")
                        .help("use `rate_limits:`");
                }
                for item in items.iter() {
                    if matches!(item.kind, Kind::Map(_)) {
                        descriptor.limits.push(self.limit(item, Place::Limit));
                    } else {
                        self.not_a_map(item, "an item of `rate_limits`", "write `- unit: …`");
                    }
                }
            }
            (Kind::Map(_), name) => {
                if name == "rate_limits" {
                    self.error(field.key, "`rate_limits` is a list")
                        .help("put `- ` before the first key of each limit, or write `rate_limit:` for a single one");
                }
                descriptor.limits.push(self.limit(field.value, Place::Limit));
            }
            _ => self.not_a_map(
                field.value,
                &format!("`{}`", field.name),
                "write `unit:` and `requests_per_unit:` below it",
            ),
        }
    }

    /// A limit, `defaults` or a row: the place says which keys it may have.
    pub(super) fn limit(&mut self, node: &Node, place: Place) -> RawLimit {
        let before = self.faults.errors();
        let mut limit = RawLimit {
            span: node.span,
            ..RawLimit::default()
        };
        if !matches!(node.kind, Kind::Map(_) | Kind::Null) {
            self.not_a_map(node, place.called(), "write its keys below it, indented");
        }
        for field in self.fields(node, place) {
            match field.name {
                "name" => limit.name = self.name(&field),
                "unit" => limit.unit = self.unit(&field),
                "period" => limit.period = self.duration(&field),
                "requests_per_unit" => limit.requests_per_unit = self.requests_per_unit(&field),
                "unlimited" => limit.unlimited = self.flag_value(&field),
                "replaces" => limit.replaces = self.replaces(&field),
                "algorithm" => limit.algorithm = self.algorithm(&field),
                "burst" => limit.burst = self.integer(&field),
                "max_wait" => limit.max_wait = self.duration(&field),
                "counts" => {
                    let words = [
                        ("cost", Counts::Cost),
                        ("requests", Counts::Requests),
                        ("hits", Counts::Hits),
                    ];
                    limit.counts = self.choice(&field, &words);
                }
                "overdraft" => limit.overdraft = self.boolean(&field),
                "excess" => limit.excess = self.excess(&field),
                "failure_mode" => {
                    let words = FailureMode::ALL.map(|mode| (mode.name(), mode));
                    limit.failure_mode = self.choice(&field, &words);
                }
                "local_barrier" => limit.local_barrier = self.barrier(&field),
                "time_zone" => limit.time_zone = self.text(&field),
                "plan_entry" => limit.plan_entry = self.text(&field),
                "plans" => limit.plans = self.plans(&field),
                "default_plan" => limit.default_plan = self.text(&field),
                "attribute_to" => limit.attribute_to = self.text(&field),
                _ => self.flag(&field, &mut limit.flags),
            }
        }
        limit.broken = self.faults.errors() > before;
        limit
    }

    /// The flags that both descriptors and limits have.
    pub(super) fn flag(&mut self, field: &Field<'_>, flags: &mut RawFlags) {
        match field.name {
            "shadow_mode" => flags.shadow_mode = self.flag_value(field),
            "quota_mode" => flags.quota_mode = self.flag_value(field),
            "share_threshold" => flags.share_threshold = self.flag_value(field),
            "detailed_metric" => flags.detailed_metric = self.flag_value(field),
            "value_to_metric" => flags.value_to_metric = self.flag_value(field),
            _ => flags.metadata = self.metadata(field),
        }
    }

    fn plans(&mut self, field: &Field<'_>) -> Vec<(At<String>, RawLimit)> {
        let rows = self.entries(field);
        rows.into_iter()
            .filter_map(|(name, node)| {
                if matches!(node.kind, Kind::Map(_)) {
                    return Some((name, self.limit(node, Place::PlanRow)));
                }
                self.not_a_map(
                    node,
                    "a row of `plans`",
                    "write `{unit: minute, requests_per_unit: 60}`",
                );
                None
            })
            .collect()
    }

    fn replaces(&mut self, field: &Field<'_>) -> Vec<At<String>> {
        let mut names = Vec::new();
        for item in self.items(field) {
            if !matches!(item.kind, Kind::Map(_)) {
                self.not_a_map(item, "an item of `replaces`", "write `- name: other_limit`");
                continue;
            }
            let fields = self.fields(item, Place::Replaces);
            let name = fields.iter().find_map(|field| self.name(field));
            if name.is_none() {
                self.error(item.span, "this item of `replaces` names no limit")
                    .help("write the `name` of the limit to be replaced, or take the item out");
            }
            names.extend(name);
        }
        names
    }

    fn algorithm(&mut self, field: &Field<'_>) -> Option<At<Algorithm>> {
        let words = [
            ("fixed_window", Algorithm::FixedWindow),
            ("sliding_window", Algorithm::SlidingWindow),
            ("token_bucket", Algorithm::TokenBucket),
            ("leaky_bucket", Algorithm::LeakyBucket),
        ];
        self.choice(field, &words)
    }

    /// `10`, `2.5` or `off`.
    fn barrier(&mut self, field: &Field<'_>) -> Option<At<Option<Factor>>> {
        let (text, _) = self.scalar(field)?;
        if text == "off" {
            return Some(At {
                value: None,
                span: field.value.span,
            });
        }
        let factor = self.factor(field)?;
        if factor.value.0 < 1_000 {
            self.error(factor.span, "a barrier below the limit")
                .help("write how many times the limit one replica may ask for, 1 or more, or `off`");
            return None;
        }
        Some(At {
            value: Some(factor.value),
            span: factor.span,
        })
    }

    fn excess(&mut self, field: &Field<'_>) -> Option<RawExcess> {
        self.map(field)?;
        let words = [
            ("reject", ExcessAction::Reject),
            ("degrade", ExcessAction::Degrade),
            ("serve_stale", ExcessAction::ServeStale),
            ("accept_async", ExcessAction::AcceptAsync),
        ];
        let mut excess = RawExcess {
            span: field.value.span,
            action: None,
            up_to: None,
        };
        for field in self.fields(field.value, Place::Excess) {
            match field.name {
                "action" => excess.action = self.choice(&field, &words),
                _ => excess.up_to = self.percent(&field),
            }
        }
        Some(excess)
    }
}
