//! cota: the external rate-limit service that Envoy and Istio call over gRPC.
//!
//! The layers, from the bottom; each may use only what stands before it (`tests/layering.rs` holds it):
//!
//! - [`engine`]: what a request meets and how it is decided; pure.
//! - [`config`]: policy files to policies.
//! - [`clock`]: the time.
//! - [`store`]: keeps budgets.
//! - [`tls`]: the certificates of our ports.
//! - [`limiter`]: the async shell around a decision.
//! - [`answer`]: what Envoy is told of it; pure.
//! - [`overrides`]: what operators change at run time.
//! - [`usage`]: who uses which limit how much; pure.
//! - [`telemetry`]: metric families, traces and the log.
//! - [`grpc`]: the service that Envoy calls.
//! - [`http`]: the port for people, probes and scrapers.
//! - [`app`]: puts them together.
//! - [`cli`]: the command line.

pub mod answer;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod gather;
pub mod grpc;
pub mod http;
pub mod limiter;
pub mod overrides;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod usage;

#[cfg(test)]
extern crate self as cota;

// Unit tests build their values with what the integration tests use.
#[cfg(test)]
#[path = "../tests/support"]
mod support {
    pub(crate) mod model;
    pub(crate) mod policy;
}
