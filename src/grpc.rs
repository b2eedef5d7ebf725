//! The gRPC side: what Envoy sends and receives.

mod complaints;
mod connection;
pub mod convert;
pub mod encode;
pub mod proto;
pub mod rate_limit;
pub mod server;
mod service;
pub mod socket;
