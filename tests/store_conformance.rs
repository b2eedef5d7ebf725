//! What every store does, whatever it keeps budgets in: one suite, and a line for each store that runs it.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]
#![allow(unreachable_pub, reason = "nothing outside can reach a test")]

use cota::clock::ManualClock;
use cota::engine::time::Timestamp;
use cota::store::memory::Memory;

#[path = "store_conformance/cases.rs"]
mod cases;
#[path = "store_conformance/harness.rs"]
mod harness;
#[path = "store_conformance/in_redis.rs"]
mod in_redis;
#[path = "store_conformance/several.rs"]
mod several;
mod support;
#[path = "store_conformance/trace.rs"]
mod trace;

use harness::Harness;

struct InMemory {
    store: Memory<ManualClock>,
    clock: ManualClock,
}

impl Harness for InMemory {
    type Store = Memory<ManualClock>;

    async fn begin(now: Timestamp) -> Self {
        let clock = ManualClock::at(now);
        Self {
            store: Memory::new(clock.clone(), 100_000),
            clock,
        }
    }

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn set_clock(&self, now: Timestamp) {
        self.clock.set(now);
    }

    async fn forget_expired(&self) {
        for part in 0..self.store.sweeps() {
            self.store.sweep(part);
        }
    }

    async fn kept(&self) -> usize {
        self.store.len()
    }
}

/// Every case as a test, for one harness.
macro_rules! conformance {
    ($name:ident, $harness:ty) => {
        conformance! { $name, $harness, cases:
            a_fixed_window_admits_its_limit_and_starts_afresh
            a_sliding_window_weighs_the_one_before
            a_token_bucket_refills_steadily
            a_leaky_bucket_holds_each_until_its_turn
            a_wait_is_charged_at_arrival_and_never_longer_than_the_cap
            a_cost_fits_whole_or_is_not_charged
            what_can_never_be_paid_is_refused_for_good
            a_weight_of_nothing_neither_charges_nor_is_refused
            refunds_stop_at_the_full_budget
            a_refund_is_applied_before_a_spend_beside_it
            a_look_charges_and_keeps_nothing
            debt_is_taken_on_and_paid_off_at_the_rate
            the_debt_of_a_window_is_carried_over
            a_look_is_refused_by_a_budget_in_debt_only
            excess_fills_its_own_lane
            changed_numbers_keep_what_was_spent
            a_lane_taken_away_and_given_again_is_as_full_as_it_was
            a_state_that_is_initial_again_is_gone
            a_clock_that_steps_back_hands_nothing_out
            a_clock_that_was_far_ahead_locks_nobody_out
        }
        conformance! { $name, $harness, several:
            one_refusing_limit_keeps_all_uncharged
            several_callers_are_charged_together_or_not_at_all
            one_budget_met_twice_is_charged_once
            of_several_charges_on_one_budget_the_largest_counts
            overdraft_is_charged_beside_a_refusal
            shadow_is_charged_for_itself
            a_descriptor_over_its_quota_is_not_charged
            the_longest_wait_counts
            what_was_held_in_vain_is_given_back
            what_was_charged_to_a_lane_is_given_back_to_the_lane
            a_window_that_turned_takes_nothing_back
            a_bucket_takes_back_only_what_has_not_drained
            a_lane_takes_back_only_what_has_not_drained
            a_request_refused_elsewhere_leaves_every_budget_as_it_was
            quotas_of_several_callers_refuse_together
            hostile_values_share_nothing
            limits_sent_along_are_budgets_of_their_own
        }
        conformance! { $name, $harness, trace:
            any_trace_is_decided_as_by_the_engine_alone
            what_was_forgotten_is_never_missed
        }
    };
    ($name:ident, $harness:ty, $module:ident: $($case:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test]
                async fn $case() {
                    crate::$module::$case::<$harness>().await;
                }
            )*
        }
    };
}

mod redis_live {
    use super::in_redis::InRedis;

    conformance! { redis_live, InRedis }
}

mod in_memory {
    use super::InMemory;

    conformance! { in_memory, InMemory }
}
