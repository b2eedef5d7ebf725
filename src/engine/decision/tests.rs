//! How the verdicts of a request fold into one answer.

use super::*;
use crate::engine::testing::{NO_LIMIT, T0, World, ok, over_limit};

mod excess;
mod fold;
mod shadow;

const MINUTE: Micros = Micros::from_secs(60);

fn remaining(world: &mut World, descriptor: &str) -> u64 {
    let look = format!("{descriptor} addend 0");
    world.ask(&[&look]).budgets[0].2
}

fn retry_after(decision: &Decision, charge: usize) -> Option<Micros> {
    match decision.verdicts[charge].outcome {
        Outcome::Deny { retry_after } => retry_after,
        other => panic!("not refused: {other:?}"),
    }
}
