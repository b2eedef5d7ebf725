//! The policy file as it was written: every key, nothing decided.
//!
//! `None` is "not written" (or written as nothing); what that means is settled by the compiler,
//! which knows the defaults. Each value keeps its place for the faults found later.

use std::time::Duration;

use jiff::Timestamp;

use super::fault::Span;
use crate::engine::limit::{Counts, FailureMode, Unit, Value};
use crate::engine::response::Body;

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub span: Span,
}

/// One document: one domain.
#[derive(Debug, Clone, Default)]
pub struct RawPolicy {
    /// Where the document starts.
    pub span: Span,
    /// `domain`; `None` is a fault already noted.
    pub domain: Option<At<String>>,
    /// `descriptors`
    pub descriptors: Vec<RawDescriptor>,
    /// `capacity`
    pub capacity: Option<RawRate>,
    /// `safety_ceiling`
    pub safety_ceiling: Option<RawRate>,
    /// `expected`: callers by limit name.
    pub expected: Vec<(At<String>, Expected)>,
    /// `costs`
    pub costs: Option<RawCosts>,
    /// `defaults`
    pub defaults: RawLimit,
    /// `response`
    pub response: Option<RawResponse>,
    /// `overrides`
    pub overrides: Vec<RawOverride>,
    /// Whether an error was noted while this document was read.
    pub broken: bool,
    /// Whether any key is used that the incumbent does not know; if not, the file was written for it.
    pub uses_new_keys: bool,
}

/// An item of `descriptors`.
#[derive(Debug, Clone, Default)]
pub struct RawDescriptor {
    /// Where the item starts.
    pub span: Span,
    /// `key`; `None` is a fault already noted.
    pub key: Option<At<String>>,
    /// `value`; `None` is any value.
    pub value: Option<At<String>>,
    /// `rate_limit` or the items of `rate_limits`.
    pub limits: Vec<RawLimit>,
    /// Where `rate_limit` or `rate_limits` is written.
    pub limits_key: Option<Span>,
    /// `descriptors`
    pub descriptors: Vec<RawDescriptor>,
    /// The flags that a limit may have as well.
    pub flags: RawFlags,
    /// `address`
    pub address: Option<RawAddress>,
    /// `normalize`
    pub normalize: Option<At<Normalize>>,
    /// Whether its key or value could not be read.
    pub broken: bool,
}

/// Keys of a descriptor that act on its limits; inside a limit they act on that one.
#[derive(Debug, Clone, Default)]
pub struct RawFlags {
    /// `shadow_mode`
    pub shadow_mode: Option<At<bool>>,
    /// `quota_mode`
    pub quota_mode: Option<At<bool>>,
    /// `share_threshold`
    pub share_threshold: Option<At<bool>>,
    /// `detailed_metric`
    pub detailed_metric: Option<At<bool>>,
    /// `value_to_metric`
    pub value_to_metric: Option<At<bool>>,
    /// `metadata`
    pub metadata: Option<At<Value>>,
}

/// A limit, `defaults`, or a row of `plans`: they differ in which keys may be written.
#[derive(Debug, Clone, Default)]
pub struct RawLimit {
    /// Where its map starts.
    pub span: Span,
    /// `name`
    pub name: Option<At<String>>,
    /// `unit`
    pub unit: Option<At<Unit>>,
    /// `period`
    pub period: Option<At<Duration>>,
    /// `requests_per_unit`
    pub requests_per_unit: Option<At<u32>>,
    /// `unlimited`
    pub unlimited: Option<At<bool>>,
    /// `replaces`, its names
    pub replaces: Vec<At<String>>,
    /// `algorithm`
    pub algorithm: Option<At<Algorithm>>,
    /// `burst`
    pub burst: Option<At<u32>>,
    /// `max_wait`
    pub max_wait: Option<At<Duration>>,
    /// `counts`
    pub counts: Option<At<Counts>>,
    /// `overdraft`
    pub overdraft: Option<At<bool>>,
    /// `excess`
    pub excess: Option<RawExcess>,
    /// `failure_mode`
    pub failure_mode: Option<At<FailureMode>>,
    /// `local_barrier`; `None` inside: `off`
    pub local_barrier: Option<At<Option<Factor>>>,
    /// `time_zone`
    pub time_zone: Option<At<String>>,
    /// `plan_entry`
    pub plan_entry: Option<At<String>>,
    /// `plans`, in the order of the file
    pub plans: Vec<(At<String>, RawLimit)>,
    /// `default_plan`
    pub default_plan: Option<At<String>>,
    /// `attribute_to`
    pub attribute_to: Option<At<String>>,
    /// The flags that its descriptor may have as well.
    pub flags: RawFlags,
    /// Whether any of it could not be read.
    pub broken: bool,
}

/// `algorithm`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Algorithm {
    FixedWindow,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
}

/// `excess.action`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ExcessAction {
    Reject,
    Degrade,
    ServeStale,
    AcceptAsync,
}

/// `normalize`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Normalize {
    Path,
}

/// An item of `response.headers`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HeaderStyle {
    Draft03,
    Draft11,
    XRateLimit,
    None,
}

/// A share, in hundredths of a percent: `1.5%` is 150.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u32);

/// A factor, in thousandths: `2.5` is 2500.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(pub u32);

/// `excess`
#[derive(Debug, Clone)]
pub struct RawExcess {
    /// Where its map starts.
    pub span: Span,
    /// `action`
    pub action: Option<At<ExcessAction>>,
    /// `up_to`
    pub up_to: Option<At<Percent>>,
}

/// `address`
#[derive(Debug, Clone)]
pub struct RawAddress {
    /// Where its map starts.
    pub span: Span,
    /// `ipv4_prefix`
    pub ipv4_prefix: Option<At<u32>>,
    /// `ipv6_prefix`
    pub ipv6_prefix: Option<At<u32>>,
    /// `trusted_hops`
    pub trusted_hops: Option<At<u32>>,
}

/// `capacity` or `safety_ceiling`: they differ in which keys may be written.
#[derive(Debug, Clone, Default)]
pub struct RawRate {
    /// Where its map starts.
    pub span: Span,
    /// `unit`
    pub unit: Option<At<Unit>>,
    /// `period`
    pub period: Option<At<Duration>>,
    /// `requests_per_unit`
    pub requests_per_unit: Option<At<u32>>,
    /// `burst`
    pub burst: Option<At<u32>>,
}

/// A value of `expected`: how many callers a limit has.
#[derive(Debug, Clone)]
pub enum Expected {
    /// One number for the limit.
    Callers(At<u32>),
    /// One number a plan.
    ByPlan(Vec<(At<String>, At<u32>)>),
}

/// `costs`
#[derive(Debug, Clone)]
pub struct RawCosts {
    /// Where its map starts.
    pub span: Span,
    /// `entry`
    pub entry: Option<At<String>>,
    /// `default`
    pub default: Option<At<u32>>,
    /// `values`
    pub values: Vec<(At<String>, At<u32>)>,
}

/// `response`
#[derive(Debug, Clone)]
pub struct RawResponse {
    /// Where its map starts.
    pub span: Span,
    /// `headers`; `None` if not written
    pub headers: Option<Vec<At<HeaderStyle>>>,
    /// `body`
    pub body: Option<At<Body>>,
    /// `message`
    pub message: Option<At<String>>,
    /// `documentation_url`
    pub documentation_url: Option<At<String>>,
}

/// An item of `overrides`.
#[derive(Debug, Clone)]
pub struct RawOverride {
    /// Where the item starts.
    pub span: Span,
    /// `match`: entries by key.
    pub matches: Vec<(At<String>, At<String>)>,
    /// `limit`
    pub limit: Option<At<String>>,
    /// `multiply`
    pub multiply: Option<At<Factor>>,
    /// `requests_per_unit`
    pub requests_per_unit: Option<At<u32>>,
    /// `burst`
    pub burst: Option<At<u32>>,
    /// `unlimited`
    pub unlimited: Option<At<bool>>,
    /// `expires_at`
    pub expires_at: Option<At<Timestamp>>,
    /// `author`
    pub author: Option<At<String>>,
    /// `reason`
    pub reason: Option<At<String>>,
    /// Whether any of it could not be read.
    pub broken: bool,
}

impl RawPolicy {
    /// How many limits the domain has, on all levels.
    pub fn limits(&self) -> usize {
        self.descriptors.iter().map(RawDescriptor::limits).sum()
    }
}

impl RawDescriptor {
    /// How many limits stand on this descriptor and below it.
    pub fn limits(&self) -> usize {
        self.limits.len() + self.descriptors.iter().map(RawDescriptor::limits).sum::<usize>()
    }
}
