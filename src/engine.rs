//! The pure part: what a request meets and how it is decided. Values in, values out; no clock, no
//! I/O, no async, no randomness. The same sequence of requests gives the same states, bit for bit,
//! wherever it runs.

pub mod budget;
pub mod decision;
pub mod descriptor;
pub mod found;
pub mod key;
pub mod lease;
pub mod limit;
pub mod overrides;
pub mod policy;
pub mod reset;
pub mod resolve;
pub mod response;
pub mod time;

#[cfg(test)]
pub(crate) mod testing;
