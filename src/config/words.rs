//! The words that a value may be, for those keys that take one of a few.

use super::raw::{Algorithm, ExcessAction, HeaderStyle, Normalize};
use crate::engine::limit::Counts;
use crate::engine::response::Body;

pub(super) const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_window", Algorithm::SlidingWindow),
    ("token_bucket", Algorithm::TokenBucket),
    ("leaky_bucket", Algorithm::LeakyBucket),
];

pub(super) const COUNTS: [(&str, Counts); 3] = [
    (Counts::Cost.name(), Counts::Cost),
    (Counts::Requests.name(), Counts::Requests),
    (Counts::Hits.name(), Counts::Hits),
];

pub(super) const EXCESS_ACTIONS: [(&str, ExcessAction); 4] = [
    ("reject", ExcessAction::Reject),
    ("degrade", ExcessAction::Degrade),
    ("serve_stale", ExcessAction::ServeStale),
    ("accept_async", ExcessAction::AcceptAsync),
];

pub(super) const BODIES: [(&str, Body); 3] = [
    ("json", Body::Json),
    ("problem", Body::Problem),
    ("none", Body::None),
];

pub(super) const HEADER_STYLES: [(&str, HeaderStyle); 4] = [
    ("draft-03", HeaderStyle::Draft03),
    ("draft-11", HeaderStyle::Draft11),
    ("x-ratelimit", HeaderStyle::XRateLimit),
    ("none", HeaderStyle::None),
];

pub(super) const NORMALIZE: [(&str, Normalize); 1] = [("path", Normalize::Path)];
