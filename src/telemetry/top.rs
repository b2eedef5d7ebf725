//! Who is refused most, and how many are near their ceiling: read at each scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::usage::{Series, Usage};

/// The `caller` of all that have no series of their own. No caller is called so: their names have a `=`.
const OTHER: &str = "other";

/// Registers two families over the use of all limits.
///
/// `cota_top_denied_total`: do few callers make most of the refusals, and which? A caller has a series once
/// it makes a hundredth of its limit's refusals, until others make more or it was not refused for two
/// windows; a refusal counts in one series, so rates add up. A series that ended may start again from 0.
///
/// `cota_near_limit_callers`: how many callers come near a limit's ceiling and were not refused lately?
pub(super) fn register(registry: &mut Registry, usage: Arc<Usage>) {
    registry.register_collector(Box::new(Used(usage)));
}

#[derive(Debug)]
struct Used(Arc<Usage>);

impl Collector for Used {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.0.series();
        let help = "Refusals of the callers refused most, and of all others together.";
        let mut family = encoder.encode_descriptor("cota_top_denied", help, None, MetricType::Counter)?;
        let mut write = |series: &Series, caller: &str, refused: u64| {
            let labels = [
                ("domain", &*series.domain),
                ("limit", &*series.limit),
                ("caller", caller),
            ];
            ConstCounter::new(refused).encode(family.encode_family(&labels)?)
        };
        for series in &all {
            for labelled in &series.labelled {
                write(series, &labelled.caller, labelled.refused)?;
            }
            write(series, OTHER, series.other)?;
        }
        let help = "Callers above 80 % of a limit that were not refused lately.";
        let mut family =
            encoder.encode_descriptor("cota_near_limit_callers", help, None, MetricType::Gauge)?;
        for series in &all {
            let labels = [("domain", &*series.domain), ("limit", &*series.limit)];
            let near = i64::try_from(series.near).unwrap_or(i64::MAX);
            ConstGauge::new(near).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
