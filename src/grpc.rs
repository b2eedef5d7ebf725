//! The gRPC side: what Envoy sends and receives.

pub mod proto;
