//! What requests meet: rules in the incumbent's notation, the letters and numbers are those of its
//! documented behaviour (M1-M20, W1-W12, X1-X5).

use super::*;
use crate::engine::testing::{NO_LIMIT, Status, T0, World, ok, over_limit, request};

mod asks;
mod identity;
mod matching;

/// Asks a fresh world once and compares the statuses.
fn check(rules: &[&str], descriptors: &[&str], statuses: &[Status]) {
    let answer = World::new(rules).ask(descriptors);
    assert_eq!(answer.statuses, statuses, "{descriptors:?} of {rules:?}");
}

fn found(rules: &[&str], descriptor: &str) -> Found {
    let domain = crate::engine::testing::domain(rules);
    let request = request(&[descriptor]);
    resolve(Some(&domain), &request, false, T0).met[0].found
}
