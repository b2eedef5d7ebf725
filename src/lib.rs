//! cota: the external rate-limit service for Envoy and Istio.

pub mod grpc;
