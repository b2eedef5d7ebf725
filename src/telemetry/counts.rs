//! What others count, read at each scrape: evictions, errors of the store, whether it is degraded.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::histogram::DurationHistogram;
use crate::engine::time::{Micros, Timestamp};

/// A family of counters over a closed set of kinds.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    name: &'static str,
    help: &'static str,
}

/// `cota_evictions_total{kind}`: does the bound of what is kept in memory cost callers their state, and whose?
pub const EVICTIONS: Counts = Counts {
    name: "cota_evictions",
    help: "Budgets that left a full memory store before their time.",
};

/// `cota_store_errors_total{kind}`: why does the store give no answers?
pub const STORE_ERRORS: Counts = Counts {
    name: "cota_store_errors",
    help: "Calls of the store that gave no answer, by kind.",
};

/// Registers a family. `read` is asked at each scrape how many there were of a kind, and `kinds` gives the
/// word of each.
pub fn register_counts<K, const N: usize>(
    registry: &mut Registry,
    family: Counts,
    kinds: [(&'static str, K); N],
    read: impl Fn(K) -> u64 + Send + Sync + 'static,
) where
    K: Copy + Send + Sync + 'static,
{
    registry.register_collector(Box::new(Read { family, kinds, read }));
}

/// Registers `cota_store_degraded`: are decisions made without the store now? 1 while a shard gives no
/// answers.
pub fn register_degraded(registry: &mut Registry, read: impl Fn() -> bool + Send + Sync + 'static) {
    registry.register_collector(Box::new(Degraded(read)));
}

/// Registers `cota_overrides_active`: is anybody's limit not what the policy says, and for how many? And
/// `cota_overrides_next_expiry_timestamp_seconds`: when does the next of them end? `read` says both.
pub fn register_overrides(
    registry: &mut Registry,
    read: impl Fn() -> (usize, Option<Timestamp>) + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(Overrides(read)));
}

/// Registers `cota_store_duration_seconds{store}`: how much of a decision's time is the store's? Returns
/// what is to be called with the time of each call.
pub fn register_store_duration(
    registry: &mut Registry,
    store: &'static str,
) -> impl Fn(Duration) + Send + Sync + 'static {
    let histogram = DurationHistogram::default();
    let registry = registry.sub_registry_with_label(("store".into(), store.into()));
    registry.register(
        "cota_store_duration_seconds",
        "Time of each call of the store",
        histogram.clone(),
    );
    move |duration| histogram.observe(duration)
}

struct Read<K, R, const N: usize> {
    family: Counts,
    kinds: [(&'static str, K); N],
    read: R,
}

impl<K, R, const N: usize> fmt::Debug for Read<K, R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Read").field(&self.family).finish()
    }
}

impl<K, R, const N: usize> Collector for Read<K, R, N>
where
    K: Copy + Send + Sync + 'static,
    R: Fn(K) -> u64 + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Counts { name, help } = self.family;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (word, kind) in self.kinds {
            let labels = [("kind", word)];
            ConstCounter::new((self.read)(kind)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

struct Degraded<R>(R);

impl<R> fmt::Debug for Degraded<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Degraded")
    }
}

impl<R: Fn() -> bool + Send + Sync + 'static> Collector for Degraded<R> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Whether a shard of the store gives no answers.";
        let family = encoder.encode_descriptor("cota_store_degraded", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from((self.0)())).encode(family)
    }
}

struct Overrides<R>(R);

impl<R> fmt::Debug for Overrides<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overrides")
    }
}

impl<R: Fn() -> (usize, Option<Timestamp>) + Send + Sync + 'static> Collector for Overrides<R> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Overrides in force, of policy files and set at run time.";
        let family = encoder.encode_descriptor("cota_overrides_active", help, None, MetricType::Gauge)?;
        let (active, next) = (self.0)();
        ConstGauge::new(i64::try_from(active).unwrap_or(i64::MAX)).encode(family)?;
        // Without one there is no series.
        let Some(next) = next else { return Ok(()) };
        let (name, help) = (
            "cota_overrides_next_expiry_timestamp_seconds",
            "When the next override ends, in seconds since 1970.",
        );
        let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(next.0 / Micros::SECOND.0).unwrap_or(i64::MAX)).encode(family)
    }
}
