//! The gRPC side: what Envoy sends and receives.

pub mod convert;
pub mod proto;
pub mod rate_limit;
pub mod server;
pub mod socket;
