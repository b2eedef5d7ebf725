//! The escrow of a budget: which blocks of units replicas hold of it.
//!
//! A key of its own, in the slot of the budget's caller. It is gone two seconds after the last block.

use redis::Value;
use sha2::{Digest as _, Sha256};

use super::error::CallError;
use super::{Redis, key};
use crate::engine::key::BudgetKey;
use crate::engine::lease::{Ask, HELD_FOR};

/// The script. It is sent whole each time: a block stands for many requests.
const SCRIPT: &str = include_str!("../escrow.lua");

/// No key is longer. The few callers whose own key comes close have no leases.
const LONGEST: usize = 512;

impl Redis {
    /// Strikes off the blocks that were spent and reserves one; says how much of it.
    ///
    /// # Errors
    /// When there was no answer in time.
    pub async fn reserve(&self, budget: &BudgetKey<'_>, id: u64, ask: &Ask) -> Result<u64, CallError> {
        let numbers = [ask.units, ask.least, ask.bound];
        Ok(self.escrow(budget, id, numbers, &ask.spent).await?.0)
    }

    /// Strikes off a block; says whether it stood there.
    ///
    /// # Errors
    /// When there was no answer in time.
    pub async fn strike(&self, budget: &BudgetKey<'_>, id: u64) -> Result<bool, CallError> {
        Ok(self.escrow(budget, id, [0; 3], &[id]).await?.1 > 0)
    }

    async fn escrow(
        &self,
        budget: &BudgetKey<'_>,
        id: u64,
        numbers: [u64; 3],
        struck: &[u64],
    ) -> Result<(u64, u64), CallError> {
        let key = escrow_key(budget);
        let key = key.as_bytes();
        if key.len() > LONGEST {
            return Ok((0, 0));
        }
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(key).arg(id);
        for number in numbers
            .into_iter()
            .chain([HELD_FOR.0])
            .chain(struck.iter().copied())
        {
            command.arg(number);
        }
        let answer = self.client.command(key, &command, self.timeout).await?;
        let number = |value: &Value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let read = match &answer {
            Value::Array(parts) => match parts.as_slice() {
                [units, struck] => number(units).zip(number(struck)),
                _ => None,
            },
            _ => None,
        };
        read.ok_or_else(|| self.client.nonsense(key, "no units of an escrow"))
    }
}

/// The key of a budget's escrow: its caller's, and sixteen digits for the budget. Two budgets of a caller
/// that met there would only bound each other.
pub(super) fn escrow_key(budget: &BudgetKey<'_>) -> String {
    use std::fmt::Write as _;
    let mut key = key::key(budget);
    key.push('~');
    for byte in &Sha256::digest(budget.text())[..8] {
        let _ = write!(key, "{byte:02x}");
    }
    key
}
