//! Budgets in Redis or Valkey.

mod ask;
mod breaker;
mod client;
mod error;
mod keeper;
mod link;
mod node;
mod slots;
mod target;
mod tls;
mod topology;

pub use client::Client;
pub use error::{CallError, Fate, Kind};
pub use node::{ShardId, ShardState};
pub use target::{BadTarget, Target};
pub use tls::{BadTls, TlsFiles};
