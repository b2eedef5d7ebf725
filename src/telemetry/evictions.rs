//! `cota_evictions_total`: does the bound of the memory store cost callers their state, and whose?

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;

/// Registers `cota_evictions_total{kind}`. A store counts its evictions itself; `read` is asked at each
/// scrape how many there were of a kind, and `kinds` gives the word of each.
pub fn register_evictions<K, const N: usize>(
    registry: &mut Registry,
    kinds: [(&'static str, K); N],
    read: impl Fn(K) -> u64 + Send + Sync + 'static,
) where
    K: Copy + Send + Sync + 'static,
{
    registry.register_collector(Box::new(Evictions { kinds, read }));
}

struct Evictions<K, R, const N: usize> {
    kinds: [(&'static str, K); N],
    read: R,
}

impl<K, R, const N: usize> fmt::Debug for Evictions<K, R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evictions").finish_non_exhaustive()
    }
}

impl<K, R, const N: usize> Collector for Evictions<K, R, N>
where
    K: Copy + Send + Sync + 'static,
    R: Fn(K) -> u64 + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "cota_evictions",
            "Budgets that left a full memory store before their time.",
            None,
            MetricType::Counter,
        )?;
        for (word, kind) in self.kinds {
            let labels = [("kind", word)];
            ConstCounter::new((self.read)(kind)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
