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

/// Counts one on a key, in a short time.
pub(crate) async fn add(client: &Client, key: &str) -> Result<i64, CallError> {
    add_within(client, key, WITHIN).await
}

/// The same where only the answer matters, in a time that no stall of the machine takes up.
pub(crate) async fn add_at_leisure(client: &Client, key: &str) -> Result<i64, CallError> {
    add_within(client, key, Duration::from_secs(2)).await
}

async fn add_within(client: &Client, key: &str, within: Duration) -> Result<i64, CallError> {
    let value = client.call(key.as_bytes(), &[b"1"], within).await?;
    match value {
        Value::Int(count) => Ok(count),
        other => panic!("{other:?}"),
    }
}

/// How many calls there were, and how many took longer than they should.
#[derive(Default)]
pub(crate) struct Punctual {
    calls: u32,
    late: u32,
}

impl Punctual {
    pub(crate) fn saw(&mut self, took: Duration, limit: Duration) {
        self.calls += 1;
        self.late += u32::from(took >= limit + GRACE);
    }

    /// A machine that stalls now and then makes few late. A client that waits does so for all.
    pub(crate) fn assert(&self) {
        assert!(
            self.late <= 3 + self.calls / 20,
            "{} of {} were late",
            self.late,
            self.calls
        );
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
