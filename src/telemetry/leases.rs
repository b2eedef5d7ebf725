//! What this replica holds of leased limits, read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// One limit that may be leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitLeases {
    /// Of the policy.
    pub domain: Box<str>,
    /// The limit's label.
    pub limit: Box<str>,
    /// Units held here of all its budgets.
    pub units: u64,
    /// What all replicas together may hold of the same budgets.
    pub bound: u64,
}

/// Registers `cota_lease_units{domain,limit}` and `cota_lease_bound_units{domain,limit}`: how far could what
/// passes be from the limit just now, and how far at most? The first, summed over replicas, stays below the
/// second of any replica that holds the same budgets. `read` names every limit of the policy that may be leased.
pub fn register_leases(registry: &mut Registry, read: impl Fn() -> Vec<LimitLeases> + Send + Sync + 'static) {
    registry.register_collector(Box::new(Leases(read)));
}

struct Leases<R>(R);

impl<R> fmt::Debug for Leases<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leases")
    }
}

impl<R: Fn() -> Vec<LimitLeases> + Send + Sync + 'static> Collector for Leases<R> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let limits = (self.0)();
        let mut gauge = |name, help, value: fn(&LimitLeases) -> u64| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for leases in &limits {
                let labels = [("domain", &*leases.domain), ("limit", &*leases.limit)];
                let value = i64::try_from(value(leases)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
            Ok(())
        };
        gauge(
            "cota_lease_units",
            "Units charged ahead and not spent, held by this replica.",
            |leases| leases.units,
        )?;
        gauge(
            "cota_lease_bound_units",
            "The most units that all replicas may hold of the budgets this one holds units of.",
            |leases| leases.bound,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_shows_what_is_held_and_what_may_be() {
        let mut registry = Registry::default();
        let limit = |limit: &str, units, bound| LimitLeases {
            domain: "api".into(),
            limit: limit.into(),
            units,
            bound,
        };
        register_leases(&mut registry, move || {
            vec![limit("tenant", 40, 300), limit("route", 0, 0)]
        });
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                r#"cota_lease_units{domain="api",limit="tenant"} 40"#,
                r#"cota_lease_units{domain="api",limit="route"} 0"#,
                r#"cota_lease_bound_units{domain="api",limit="tenant"} 300"#,
                r#"cota_lease_bound_units{domain="api",limit="route"} 0"#,
            ]
        );
    }
}
