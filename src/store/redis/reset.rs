//! Budgets that start afresh: a caller's key goes, or the fields of some of its budgets.

use std::collections::BTreeMap;

use redis::{Value, cmd, from_redis_value};

use super::error::CallError;
use super::escrow::escrow_key;
use super::{BEAT, Redis, key};
use crate::engine::reset::Target;

impl Redis {
    /// Makes the budgets that are meant start afresh; `whole` says that they are all that their callers have.
    ///
    /// # Errors
    /// When the store gave no answer. Some may have been reset: to reset twice does no harm.
    pub async fn reset(&self, targets: &[Target], whole: bool) -> Result<(), CallError> {
        for target in targets.iter().filter(|target| target.is_one()) {
            // First, so that no block of the old budget is given back to the new one. Where the budgets of a
            // target cannot be named, replicas forget their blocks when they hear of the reset.
            let escrow = escrow_key(&target.key(&target.values()));
            self.about("DEL", &escrow, &[]).await?;
        }
        let mut callers: BTreeMap<String, Vec<&Target>> = BTreeMap::new();
        for target in targets {
            let caller = key::key(&target.key(&target.values()));
            callers.entry(caller).or_default().push(target);
        }
        for (caller, targets) in callers {
            if whole {
                self.about("DEL", &caller, &[]).await?;
                continue;
            }
            let held = self.about("HKEYS", &caller, &[]).await?;
            let Ok(mut fields) = from_redis_value::<Vec<Vec<u8>>>(held) else {
                return Err(self.client.nonsense(caller.as_bytes(), "no fields"));
            };
            fields.retain(|field| targets.iter().any(|target| key::is_meant(field, target)));
            if !fields.is_empty() {
                self.about("HDEL", &caller, &fields).await?;
            }
        }
        Ok(())
    }

    async fn about(&self, verb: &str, key: &str, fields: &[Vec<u8>]) -> Result<Value, CallError> {
        let mut command = cmd(verb);
        command.arg(key).arg(fields);
        // Off the way of requests: it may take as long as it is useful.
        self.client.command(key.as_bytes(), &command, BEAT / 2).await
    }
}
