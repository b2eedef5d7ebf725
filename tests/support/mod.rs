//! What several test files share; each uses its part.
#![allow(dead_code, reason = "every test crate compiles all of it and uses some")]

pub(crate) mod caller;
pub(crate) mod calls;
pub(crate) mod certificates;
pub(crate) mod envoy;
pub(crate) mod gateway;
pub(crate) mod model;
pub(crate) mod policy;
pub(crate) mod proxy;
pub(crate) mod redis;
