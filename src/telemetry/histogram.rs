//! Histograms: of short durations, and of shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Upper bounds in microseconds: 1, 2, 5 in each decade from 5 µs to 1 s. A decision in memory takes some
/// 10 µs, one over the network 200 µs to 2 ms, Envoy gives up at 20 ms unless told otherwise; a quantile
/// read from these buckets is off by a factor of 2.5 at most wherever it falls among these.
const BOUNDS: [u64; 17] = [
    5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000,
];

/// Durations by size. Not the library's histogram, because that one takes a lock for each observation,
/// the same for all cores; the price is that a scrape may see an observation in its bucket and not yet in
/// the sum.
#[derive(Clone, Debug, Default)]
pub(super) struct DurationHistogram(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    /// One for each bound, and one for what is longer.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl DurationHistogram {
    pub(super) fn observe(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|&bound| bound * 1_000 < nanoseconds);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = BOUNDS
            .iter()
            .map(|&bound| bound as f64 / 1e6)
            .chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = self.0.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Upper bounds of shares, in thousandths. The lower ones show limits that nobody needs, the upper ones how
/// close those come that are never refused. Few, since every limit has a histogram of its own.
const SHARES: [u32; 6] = [100, 250, 500, 750, 900, 1_000];

/// Shares by size.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareHistogram(Arc<Shares>);

#[derive(Debug, Default)]
struct Shares {
    counts: [AtomicU64; SHARES.len()],
    thousandths: AtomicU64,
}

impl ShareHistogram {
    /// Takes in a share in thousandths; what is above 1 is 1.
    pub(super) fn observe(&self, thousandths: u32) {
        let thousandths = thousandths.min(1_000);
        let bucket = SHARES.partition_point(|&bound| bound < thousandths);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0
            .thousandths
            .fetch_add(u64::from(thousandths), Ordering::Relaxed);
    }
}

impl TypedMetric for ShareHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for ShareHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = SHARES.iter().map(|&bound| f64::from(bound) / 1_000.0);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let mut buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        buckets.push((f64::INFINITY, 0));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.thousandths.load(Ordering::Relaxed) as f64 / 1_000.0;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
