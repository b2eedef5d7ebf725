//! What several tests build on.

pub mod model;
pub mod policy;
