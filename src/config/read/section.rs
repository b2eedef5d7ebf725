//! The sections beside `descriptors`: capacity and ceiling, expected callers, costs, response, overrides; and addresses.

use super::super::keys::Place;
use super::super::raw::{Expected, HeaderStyle, RawAddress, RawCosts, RawOverride, RawRate, RawResponse};
use super::super::words;
use super::super::yaml::{Kind, Node};
use super::{At, Field, Reader};

impl Reader<'_, '_> {
    /// `capacity` or `safety_ceiling`: the place says which keys it may have.
    pub(super) fn rate(&mut self, field: &Field<'_>, place: Place) -> Option<RawRate> {
        self.map(field)?;
        let mut rate = RawRate {
            span: field.value.span,
            ..RawRate::default()
        };
        for field in self.fields(field.value, place) {
            match field.name {
                "unit" => rate.unit = self.unit(&field),
                "period" => rate.period = self.duration(&field),
                "burst" => rate.burst = self.integer(&field),
                _ => rate.requests_per_unit = self.integer(&field),
            }
        }
        Some(rate)
    }

    pub(super) fn expected(&mut self, field: &Field<'_>) -> Vec<(At<String>, Expected)> {
        let mut expected = Vec::new();
        for (limit, value) in self.entries(field) {
            let field = Field {
                name: "expected",
                key: limit.span,
                value,
            };
            if matches!(value.kind, Kind::Map(_)) {
                let plans = self.entries(&field);
                expected.push((limit, Expected::ByPlan(self.integers(plans))));
            } else if let Some(callers) = self.integer(&field) {
                expected.push((limit, Expected::Callers(callers)));
            }
        }
        expected
    }

    pub(super) fn costs(&mut self, field: &Field<'_>) -> Option<RawCosts> {
        self.map(field)?;
        let mut costs = RawCosts {
            span: field.value.span,
            entry: None,
            default: None,
            values: Vec::new(),
        };
        for field in self.fields(field.value, Place::Costs) {
            match field.name {
                "entry" => costs.entry = self.text(&field),
                "default" => costs.default = self.integer(&field),
                _ => {
                    let values = self.entries(&field);
                    costs.values = self.integers(values);
                }
            }
        }
        if costs.entry.is_none() && !matches!(field.value.kind, Kind::Bad) {
            self.error(field.key, "`costs` has no `entry`")
                .help("write the descriptor key whose value decides the cost, as in `entry: route`");
        }
        Some(costs)
    }

    pub(super) fn response(&mut self, field: &Field<'_>) -> Option<RawResponse> {
        self.map(field)?;
        let (headers, body, message, documentation_url) = (None, None, None, None);
        let mut response = RawResponse {
            span: field.value.span,
            headers,
            body,
            message,
            documentation_url,
        };
        for field in self.fields(field.value, Place::Response) {
            match field.name {
                "headers" => response.headers = Some(self.headers(&field)),
                "body" => response.body = self.choice(&field, &words::BODIES),
                "message" => response.message = self.text(&field),
                _ => response.documentation_url = self.text(&field),
            }
        }
        Some(response)
    }

    fn headers(&mut self, field: &Field<'_>) -> Vec<At<HeaderStyle>> {
        let items = self.items(field);
        items
            .iter()
            .filter_map(|value| {
                self.choice(
                    &Field {
                        name: "headers",
                        key: field.key,
                        value,
                    },
                    &words::HEADER_STYLES,
                )
            })
            .collect()
    }

    pub(super) fn overrides(&mut self, field: &Field<'_>) -> Vec<RawOverride> {
        self.items(field)
            .iter()
            .filter_map(|item| self.one_override(item))
            .collect()
    }

    fn one_override(&mut self, node: &Node) -> Option<RawOverride> {
        if !matches!(node.kind, Kind::Map(_)) {
            self.not_a_map(node, "an item of `overrides`", "write `- match: {…}`");
            return None;
        }
        let before = self.faults.errors();
        let mut rule = RawOverride {
            span: node.span,
            matches: Vec::new(),
            limit: None,
            multiply: None,
            requests_per_unit: None,
            burst: None,
            unlimited: None,
            expires_at: None,
            author: None,
            reason: None,
            broken: false,
        };
        let mut matched = false;
        for field in self.fields(node, Place::Override) {
            match field.name {
                "match" => {
                    matched = !matches!(field.value.kind, Kind::Null);
                    rule.matches = self.matches(&field);
                }
                "limit" => rule.limit = self.text(&field),
                "multiply" => rule.multiply = self.factor(&field),
                "requests_per_unit" => rule.requests_per_unit = self.integer(&field),
                "burst" => rule.burst = self.integer(&field),
                "unlimited" => rule.unlimited = self.boolean(&field),
                "expires_at" => rule.expires_at = self.timestamp(&field),
                "author" => rule.author = self.text(&field),
                _ => rule.reason = self.text(&field),
            }
        }
        if !matched {
            self.error(node.span, "this override has no `match`")
                .help("name the entries of the budget it is for, as in `match: {tenant: acme}`");
        }
        rule.broken = self.faults.errors() > before;
        Some(rule)
    }

    fn matches(&mut self, field: &Field<'_>) -> Vec<(At<String>, At<String>)> {
        let entries = self.entries(field);
        if entries.is_empty() && matches!(field.value.kind, Kind::Map(_)) {
            self.error(field.key, "`match` names no entry")
                .help("an override for everybody is a changed limit");
        }
        entries
            .into_iter()
            .filter_map(|(key, value)| {
                let value = self.text(&Field {
                    name: "match",
                    key: key.span,
                    value,
                })?;
                Some((key, value))
            })
            .collect()
    }

    pub(super) fn address(&mut self, field: &Field<'_>) -> Option<RawAddress> {
        self.map(field)?;
        let (ipv4_prefix, ipv6_prefix, trusted_hops) = (None, None, None);
        let mut address = RawAddress {
            span: field.value.span,
            ipv4_prefix,
            ipv6_prefix,
            trusted_hops,
        };
        for field in self.fields(field.value, Place::Address) {
            let number = self.integer(&field);
            match field.name {
                "ipv4_prefix" => address.ipv4_prefix = self.at_most(number, 32, &field),
                "ipv6_prefix" => address.ipv6_prefix = self.at_most(number, 128, &field),
                _ if number.as_ref().is_some_and(|hops| hops.value == 0) => {
                    self.error(field.value.span, "`trusted_hops` counts from 1")
                        .help("1 is the last address, the one that your own proxy saw; leave it out when the value is one address");
                }
                _ => address.trusted_hops = self.at_most(number, 255, &field),
            }
        }
        Some(address)
    }
}
