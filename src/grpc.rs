//! The gRPC side: what Envoy sends and receives.

mod arrival;
mod backlog;
mod call;
mod complaints;
mod connection;
pub mod convert;
pub mod decode;
pub mod encode;
pub mod proto;
pub mod rate_limit;
pub mod server;
pub mod socket;
