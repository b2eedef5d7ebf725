//! Calls of a script that counts, on the client of Redis.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::time::Duration;

use cota::clock::Stopwatch;
use cota::store::redis::{CallError, Client, Kind, TlsFiles};
use redis::Value;

use super::redis::PATIENCE;

/// Counts what it did, so that a call that was done twice shows.
pub(crate) const SCRIPT: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1])";

pub(crate) const WITHIN: Duration = Duration::from_millis(50);
/// What the machine may add to a limit of time: two busy cores and a debug build.
pub(crate) const GRACE: Duration = Duration::from_millis(10);
/// Within which a server that is back must be used.
pub(crate) const BACK: Duration = Duration::from_secs(1);

/// A client of the store with this URL.
pub(crate) fn client(url: &str) -> Client {
    Client::start(url.parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap()
}

/// Counts one on a key.
pub(crate) async fn add(client: &Client, key: &str) -> Result<i64, CallError> {
    let value = client.call(key.as_bytes(), &[b"1"], WITHIN).await?;
    match value {
        Value::Int(count) => Ok(count),
        other => panic!("{other:?}"),
    }
}

/// Calls until one succeeds, and says how long that took. The errors on the way go to `see`.
pub(crate) async fn recovers(client: &Client, key: &str, mut see: impl FnMut(CallError)) -> Duration {
    let watch = Stopwatch::start();
    loop {
        match add(client, key).await {
            Ok(_) => return watch.elapsed(),
            Err(error) => see(error),
        }
        assert!(watch.elapsed() < PATIENCE, "{:?}", client.shards());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Calls until one fails in this way.
pub(crate) async fn fails_with(client: &Client, key: &str, kind: Kind) -> CallError {
    let watch = Stopwatch::start();
    loop {
        match add(client, key).await {
            Err(error) if error.kind == kind => return error,
            _ => {}
        }
        assert!(watch.elapsed() < PATIENCE, "{:?}", client.shards());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
