//! stub
use super::compile::Compiled;
use super::fault::Faults;
use super::raw::RawPolicy;
use crate::engine::time::Timestamp;
pub(super) fn domain(_: &RawPolicy, _: &Compiled<'_>, _: Timestamp, _: &mut Faults<'_>) {}
