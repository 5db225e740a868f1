//! Every fault of the service is a typed outcome, and nothing is left behind longer than its lease.

mod answers;
mod clocks;
mod doubled;
mod refusals;
mod removals;
mod tables;

use lockcore::Grant;
use lockcore_conformance::servers::{Kind, Trial, trial};
use uuid::Uuid;

use crate::engine::front::{Fault, rig::Rig};

macro_rules! trials {
    ($($module:ident::$name:ident)*) => {
        vec![$(trial(Kind::DynamoDb, concat!("faults::", stringify!($module), "::", stringify!($name)), || $module::$name()),)*]
    };
}

pub(crate) fn tests() -> impl Iterator<Item = Trial> {
    let tests = trials! {
        refusals::throttling_is_waited_out
        refusals::expired_credentials_are_denied
        refusals::an_item_that_is_full_is_reported_as_such
        refusals::a_join_counts_what_came_in_between
        answers::a_failure_before_the_write_is_tried_again
        answers::a_repeat_that_the_service_does_not_know_again_is_tried_with_another_token
        answers::a_failure_after_the_write_is_found_to_be_a_success
        answers::a_release_after_whose_lost_answer_another_takes_the_ids_is_no_loss
        answers::a_loss_among_what_is_freed_is_reported_after_silence_too
        answers::a_loss_after_a_doubt_that_ended_is_reported
        answers::unprocessed_reads_are_asked_for_again
        answers::undoing_a_change_goes_back_to_what_was_held
        tables::a_missing_table_is_reported
        tables::administration_creates_no_table
        tables::another_key_schema_is_refused
        tables::replicas_in_other_regions_are_refused
        clocks::a_clock_that_is_set_between_two_writes_is_learned_anew
        clocks::an_answer_with_a_wrong_date_takes_nothing_early
        clocks::a_burst_of_answers_with_a_wrong_date_takes_nothing_early
        clocks::a_fence_ahead_of_our_clock_is_topped
        removals::strict_fences_outlast_it_within_the_bounds_too
        removals::a_release_of_what_was_lost_gives_back_no_permits_of_others
        removals::a_collected_lock_is_reported_and_taken_once
        removals::a_step_goes_on_where_its_items_are_collected
    };
    // With timeouts, leases or bounds of some seconds, in real time.
    let timed = trials! {
        refusals::throttling_to_the_end_is_busy_and_never_held
        refusals::conflicts_of_transactions_are_tried_again
        refusals::a_connection_that_is_refused_is_certain
        answers::a_lost_answer_is_found_to_be_a_success
        answers::a_release_whose_answer_is_lost_is_one
        answers::a_renewal_whose_answer_is_lost_is_one
        answers::silence_is_a_timeout_in_doubt
        answers::a_refusal_after_silence_is_in_doubt
        answers::what_cannot_be_withdrawn_ends_with_its_lease
        tables::every_error_says_which_table_and_where
        clocks::a_clock_an_hour_off_works_and_takes_nothing_early
        clocks::answers_of_a_proxy_tell_no_time
        clocks::who_was_idle_for_long_looks_before_it_takes
        clocks::a_grant_from_the_future_counts_from_now
        removals::fences_outlast_the_collection_of_free_items
        removals::what_remembers_a_withdrawn_attempt_is_not_collected
        removals::a_mark_beside_others_moves_the_end_of_its_item
        removals::what_is_held_is_never_collected
    };
    tests.into_iter().chain(timed.into_iter().map(Trial::of_liveness)).chain(doubled::tests())
}

/// Takes the ids under a fault of the operation that this needs.
async fn under(rig: &Rig, ids: &[&str], single: Fault, set: Fault, times: usize) -> Grant<String, Uuid> {
    match ids.len() {
        1 => rig.front.next("UpdateItem", single, times),
        _ => rig.front.next("TransactWriteItems", set, times),
    }
    rig.caller().take(ids.iter().copied()).await
}
