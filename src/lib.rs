//! cota: the external rate-limit service that Envoy and Istio call over gRPC.
//!
//! The layers, from the bottom; each may use only what stands before it (`tests/layering.rs` holds it):
//!
//! - [`engine`]: what a request meets and how it is decided; pure.
//! - [`clock`]: the time.
//! - [`store`]: keeps budgets.
//! - [`limiter`]: the async shell around a decision.
//! - [`answer`]: what Envoy is told of it; pure.
//! - [`grpc`]: the service that Envoy calls.

pub mod answer;
pub mod clock;
pub mod engine;
pub mod grpc;
pub mod limiter;
pub mod store;

#[cfg(test)]
extern crate self as cota;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
