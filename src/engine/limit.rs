//! What a limit is: its algorithm, its numbers, and what decides how it is applied.

use std::collections::BTreeMap;
use std::fmt;

use hashbrown::HashMap;

use super::overrides::OverrideIndex;
use super::time::{Micros, Windows};

/// The largest count the engine keeps: doubles are exact below it, so a script can keep the same state.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The largest `requests_per_unit` or `burst` after every override: products with any period stay
/// exact in 128 bits.
pub const MAX_LIMIT: u64 = 1 << 40;

/// How a budget is spent and comes back.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// A count that starts afresh at each window's edge.
    FixedWindow(Windows),
    /// The previous window weighted by the share of it still in view, plus the current one.
    SlidingWindow(Windows),
    /// Holds `burst` units and refills steadily.
    TokenBucket,
    /// Smooths: each request starts when the one before has taken its cost / rate.
    LeakyBucket,
}

impl Algorithm {
    /// Its name in a policy file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingWindow(_) => "sliding_window",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    /// Its word in keys.
    pub fn code(&self) -> &'static str {
        match self {
            Self::FixedWindow(_) => "fw",
            Self::SlidingWindow(_) => "sw",
            Self::TokenBucket => "tb",
            Self::LeakyBucket => "lb",
        }
    }
}

/// The span that `requests_per_unit` is counted over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// Nominal length: what a bucket refills over, and what `w=` says (a month is 30 days, a year 365).
    pub length: Micros,
    /// Its word, when it was written as `unit`.
    pub unit: Option<Unit>,
    /// How a person reads it: `minute`, or the duration as written (`30s`).
    pub text: Box<str>,
}

/// The words of `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 24 hours, or a calendar day.
    Day,
    /// Seven days from Monday.
    Week,
    /// 30 days, or a calendar month.
    Month,
    /// 365 days, or a calendar year.
    Year,
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// Its word in a policy file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Its word in keys.
    pub fn code(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "m",
            Self::Hour => "h",
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "mo",
            Self::Year => "y",
        }
    }

    /// Its nominal length.
    pub fn length(self) -> Micros {
        Micros::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }

    /// The period of this unit.
    pub fn period(self) -> Period {
        Period {
            length: self.length(),
            unit: Some(self),
            text: self.name().into(),
        }
    }
}

/// The numbers of a limit: all that a plan row or an override may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Units of cost per period.
    pub requests_per_unit: u64,
    /// Capacity of a token bucket, in units. Others ignore it.
    pub burst: u64,
    /// How long an answer may be held instead of refusing. Windows ignore it.
    pub max_wait: Micros,
    /// How much of it replicas may hold taken ahead, all together.
    pub max_overshoot: Share,
    /// No ceiling at all.
    pub unlimited: bool,
}

/// A share of something, in hundredths of a percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(pub u32);

impl Share {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// That share of a number, rounded down.
    pub fn of(self, number: u64) -> u64 {
        let part = u128::from(number) * u128::from(self.0) / 10_000;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

/// What one request costs a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// The weight of the request, or its addend.
    #[default]
    Cost,
    /// One a request, whatever it costs.
    Requests,
    /// The addend as sent, without weights.
    Hits,
}

impl Counts {
    /// As policy files write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Requests => "requests",
            Self::Hits => "hits",
        }
    }
}

/// What a request gets when the store gives no answer in time: decided in advance, limit by limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FailureMode {
    /// This replica enforces its share.
    #[default]
    Local,
    /// It passes: a paying tenant is not punished for our infrastructure.
    Allow,
    /// It is refused: a login is never left open.
    Deny,
}

impl FailureMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    /// Its word in a policy file and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// What a request over the limit but within `up_to` is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExcessAction {
    /// Answer from a cache.
    ServeStale,
    /// Answer with less.
    Degrade,
    /// Take it and do it later.
    AcceptAsync,
}

impl ExcessAction {
    /// Its word in a policy file and in the request header.
    pub fn name(self) -> &'static str {
        match self {
            Self::ServeStale => "serve_stale",
            Self::Degrade => "degrade",
            Self::AcceptAsync => "accept_async",
        }
    }
}

/// The lane beside a budget for requests that are let through marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// What the marked request is told.
    pub action: ExcessAction,
    /// `up_to` in percent of the limit, above 100.
    pub up_to_percent: u32,
}

/// Rows of numbers, one of which an entry of the request picks.
#[derive(Clone, Debug, PartialEq)]
pub struct Plans {
    /// The entry whose value names the row.
    pub entry: Box<str>,
    /// The rows.
    pub rows: HashMap<Box<str>, Numbers>,
    /// The row of everybody else; always one of `rows`.
    pub default_plan: Box<str>,
}

/// One ceiling of the policy.
#[derive(Clone, Debug)]
pub struct Limit {
    /// What it is called in bodies, headers, labels: its `name`, or keys and period (`tenant.route/minute`).
    pub label: Box<str>,
    /// Its `name`, if it has one: the target of `replaces` and of overrides.
    pub name: Option<Box<str>>,
    /// How it is spent and comes back.
    pub algorithm: Algorithm,
    /// The span its numbers are counted over.
    pub period: Period,
    /// Its numbers without plan and override.
    pub numbers: Numbers,
    /// Rows that replace the numbers.
    pub plans: Option<Plans>,
    /// The entry recorded beside refusals and use; never part of the key.
    pub attribute_to: Option<Box<str>>,
    /// What a request costs it.
    pub counts: Counts,
    /// Charge even when refused; the budget may go into debt.
    pub overdraft: bool,
    /// The lane for marked excess.
    pub excess: Option<Excess>,
    /// What a request gets when the store gives no answer in time.
    pub failure_mode: FailureMode,
    /// How many times the limit one replica asks a shared store for, of one budget; `None`: without end.
    pub barrier: Option<Factor>,
    /// Decided and recorded, never enforced.
    pub shadow: bool,
    /// Refuses only together with every other quota descriptor of the request.
    pub quota: bool,
    /// Names of limits that this one drops from a request that meets both.
    pub replaces: Vec<Box<str>>,
    /// The overrides of the policy file that name this limit.
    pub overrides: OverrideIndex,
    /// What tells its budgets from those of other limits: see [`super::key`].
    pub identity: super::key::Identity,
}

impl Limit {
    /// A limit with these numbers and nothing else to it, labelled with its name.
    pub fn plain(
        name: Option<&str>,
        identity: super::key::Identity,
        algorithm: Algorithm,
        period: Period,
        numbers: Numbers,
    ) -> Self {
        Self {
            label: name.unwrap_or_default().into(),
            name: name.map(Into::into),
            algorithm,
            period,
            numbers,
            plans: None,
            attribute_to: None,
            counts: Counts::default(),
            overdraft: false,
            excess: None,
            failure_mode: FailureMode::default(),
            barrier: Some(Factor::BARRIER),
            shadow: false,
            quota: false,
            replaces: Vec::new(),
            overrides: OverrideIndex::default(),
            identity,
        }
    }
}

/// A multiple of a number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// 2.5x is 2,500.
    pub thousandths: u64,
}

impl Factor {
    /// Of a barrier where none is written.
    pub const BARRIER: Self = Self { thousandths: 10_000 };

    /// That many times `n`, as far as the engine counts.
    pub fn times(self, n: u64) -> u64 {
        let product = u128::from(n) * u128::from(self.thousandths) / 1_000;
        u64::try_from(product).unwrap_or(u64::MAX).min(MAX_LIMIT)
    }
}

/// A value of a descriptor's free-form `metadata`.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Any number.
    Number(f64),
    /// Text.
    String(Box<str>),
    /// A list.
    List(Vec<Value>),
    /// A mapping.
    Map(BTreeMap<Box<str>, Value>),
}

/// The windows of a unit: calendar windows from a day upward, even ones below.
pub fn windows_of(unit: Unit, zone: jiff::tz::TimeZone) -> Windows {
    use super::time::CalendarUnit;
    match unit {
        Unit::Second | Unit::Minute | Unit::Hour => Windows::even(unit.length()),
        Unit::Day => Windows::calendar(CalendarUnit::Day, zone),
        Unit::Week => Windows::calendar(CalendarUnit::Week, zone),
        Unit::Month => Windows::calendar(CalendarUnit::Month, zone),
        Unit::Year => Windows::calendar(CalendarUnit::Year, zone),
    }
}
