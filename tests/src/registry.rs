//! The one list of all checks, and what is made of it: a test for each, and a registry.

use std::{sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use tokio::runtime::{Builder, Runtime};

use crate::{
    Backend, Store,
    instances::{IN_REAL_TIME, LIVENESS, listed},
    judge::{self, Promise, late},
};

/// No check takes longer, however slow the store: a check that hangs fails, and says so.
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);

/// The groups of checks of the service; all others are checks of the DAO.
pub const SERVICE: &[&str] = &[
    "outcomes",
    "releasing",
    "nesting",
    "waiting",
    "keeping",
    "losing",
    "guards",
    "keep_for",
    "once",
    "election",
    "blocking",
    "requests",
];

/// A check of the suite for one backend.
pub struct Check<B: Backend> {
    /// Its name, `group::check`.
    pub name: &'static str,
    /// Runs it on a store of its own; panics if a promise is broken.
    pub run: fn(Store<B>) -> LocalBoxFuture<'static, ()>,
}

impl<B: Backend> Check<B> {
    /// What it is about.
    pub fn promise(&self) -> Promise {
        promise(self.name)
    }

    /// Whether it runs under tokio's paused clock.
    pub fn virtual_time(&self) -> bool {
        virtual_time::<B>(self.name)
    }
}

/// Runs one check to its end on a runtime of its own.
pub fn run<B: Backend, F: Future<Output = ()>>(backend: B, check: impl FnOnce(Store<B>) -> F) {
    block_on(false, backend, check);
}

/// Runs a check of the suite as a test of the standard harness.
#[doc(hidden)]
pub fn run_as_test<B: Backend, F: Future<Output = ()>>(
    name: &str,
    backend: impl Fn() -> B,
    check: impl Fn(Store<B>) -> F,
) {
    judge::settle(&judge::this_test(), promise(name), || {
        block_on(virtual_time::<B>(name), backend(), &check);
    });
}

fn promise(check: &str) -> Promise {
    if listed(LIVENESS, check) { Promise::Liveness } else { Promise::Safety }
}

fn virtual_time<B: Backend>(check: &str) -> bool {
    B::VIRTUAL_TIME && !listed(IN_REAL_TIME, check)
}

fn block_on<B: Backend, F: Future<Output = ()>>(
    virtual_time: bool,
    backend: B,
    check: impl FnOnce(Store<B>) -> F,
) {
    runtime(virtual_time).block_on(async {
        let store = Store::new(Arc::new(backend)).await;
        within_limit(virtual_time, check(store)).await;
    });
}

/// Ends a check that hangs, in real time: where nothing else is to be waited for, virtual time would end it at once.
pub(crate) async fn within_limit(virtual_time: bool, check: impl Future<Output = ()>) {
    if virtual_time {
        return check.await;
    }
    tokio::time::timeout(CHECK_TIMEOUT, check).await.unwrap_or_else(|_| late("the check ends"));
}

/// A runtime for one test: with two workers, or with tokio's paused clock.
pub(crate) fn runtime(virtual_time: bool) -> Runtime {
    let runtime = match virtual_time {
        true => Builder::new_current_thread().enable_all().start_paused(true).build(),
        false => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    };
    runtime.expect("a runtime can be made")
}

/// Calls a macro with every check: `$callback! { [args] group { check, .. } .. }`.
#[macro_export]
macro_rules! for_each_check {
    ($callback:path $(, $($arg:tt)*)?) => {
        $callback! {
            [$($($arg)*)?]
            exclusion {
                two_contexts_exclude_each_other,
                one_of_five_contenders_wins,
                one_of_five_messages_gets_through,
                a_conflict_at_any_position_leaves_nothing,
                overlapping_sets_never_deadlock,
                a_counter_under_contention_loses_nothing,
                shared_excludes_only_exclusive,
                a_mixed_set_is_all_or_nothing,
                a_subtree_excludes_what_is_below,
                slots_and_other_modes,
                namespaces_are_apart,
                the_global_lock_excludes_its_askers,
                large_sets_are_taken_and_freed,
                racing_overlapping_sets_leave_nothing,
            }
            sizes {
                all_of_it_or_nothing_is_taken,
                nothing_else_is_freed,
                what_is_over_is_free,
                a_withdrawn_set_is_not_taken,
                what_is_freed_is_handed_over,
            }
            refusal {
                every_conflicting_id_is_listed,
                the_holder_is_described,
                many_holders_are_capped_but_counted,
                full_slots_tell_how_full,
                queued_behind_names_the_head,
            }
            reentrancy {
                the_same_again_is_one_lock,
                the_same_again_refreshes_the_lease,
                a_shorter_lease_cuts_nothing_short,
                a_weaker_mode_keeps_the_stronger,
                a_stronger_mode_is_a_new_grant,
                a_stronger_mode_never_waits,
                a_full_slot_is_granted_again,
                another_number_of_permits_is_a_new_grant,
                a_refused_set_leaves_what_was_held,
                an_expired_lock_is_granted_anew,
                fewer_permits_serve_the_next,
            }
            release {
                releasing_twice_is_fine,
                another_context_frees_nothing,
                a_stale_grant_frees_nothing,
                a_partial_loss_frees_the_rest,
                only_what_is_held_is_handed_on,
                a_part_can_be_released,
                releasing_an_expired_lock_tells_so,
                release_context_finds_everything,
                release_context_leaves_the_queues,
            }
            renewal {
                renewal_outlives_the_lease,
                without_renewal_the_lease_ends,
                renewal_never_resurrects,
                renewal_resurrects_nothing_that_is_waited_for,
                renewal_after_release_changes_nothing,
                a_partial_loss_extends_the_rest,
                a_taken_over_lock_is_reported_as_lost,
                a_lease_is_cut_short,
                a_waiter_notices_a_shorter_lease,
            }
            withdrawal {
                undo_frees_what_the_attempt_got,
                undo_refuses_a_late_request,
                undo_refuses_a_very_late_request,
                undo_refuses_a_repeated_request,
                undo_leaves_earlier_attempts,
                undo_takes_no_permits_from_others,
                undo_restores_the_permits,
                undo_settles_a_race,
                the_same_attempt_is_the_same_try,
                keep_if_granted_tells_what_is_held,
                leaving_with_a_part_holds_nothing,
                keep_if_granted_of_nothing_has_left,
                a_waiter_that_left_gets_nothing,
                a_leaving_waiter_serves_the_next,
                undo_serves_the_next,
                giving_up_leaves_or_holds,
            }
            expiry {
                an_expired_id_is_taken_at_once,
                one_of_five_takes_an_expired_id,
                an_expired_part_is_not_in_the_way,
                expired_units_make_room,
                what_remains_shrinks,
                a_lock_from_the_future_lasts_its_lease,
                the_shortest_lease_is_kept,
                permanent_locks_last,
            }
            slots {
                full_slots_are_refused_until_one_is_freed,
                the_lowest_free_permit_is_given,
                several_permits_are_taken_together,
                ten_workers_never_exceed_three_slots,
                permits_given_back_serve_the_next,
                a_dead_holders_slot_goes_to_the_head,
            }
            resizing {
                the_documented_trace,
                shrinking_is_full_until_it_fits,
                growing_lets_the_larger_view_in,
                concurrent_resizes_lose_no_unit,
            }
            fences {
                fences_are_as_high_as_the_clock,
                fences_grow_across_releases,
                fences_grow_under_contention,
                fences_grow_among_holders_at_once,
                fences_grow_across_expiry,
                fences_grow_across_a_sweep,
                fences_grow_across_breaks,
                fences_grow_across_reopening,
                fences_grow_across_loss_of_data,
            }
            queue {
                a_hundred_waiters_are_served_in_order,
                waiters_for_slots_are_served_in_order,
                a_release_hands_over,
                a_confirmed_offer_lasts,
                an_offer_lasts_as_long_as_it_says,
                an_offer_found_by_asking_lasts,
                asking_again_keeps_the_place,
                a_place_is_kept_for_long,
                without_waiting_the_queue_is_obeyed,
                shared_passes_only_shared,
                larger_limits_pass_smaller_ones,
                a_release_serves_a_larger_limit_behind,
                the_same_limit_does_not_pass,
                a_set_passes_on_every_common_id,
                nested_requests_pass_the_queue,
                waiters_that_gave_up_are_skipped,
                a_dead_waiter_is_skipped_in_time,
                a_dead_waiting_set_is_skipped_in_time,
                a_vanished_waiter_is_skipped_in_time,
                a_dead_holder_costs_its_lease,
                shared_waiters_come_in_together,
                re_entry_obeys_no_queue,
            }
            waiting_sets {
                a_waiting_set_holds_back_its_ids_only,
                those_that_may_pass_a_waiting_set_are_served,
                one_release_serves_several_sets,
                of_two_set_free_the_earlier_is_served,
                a_waiting_set_holds_nothing,
                an_offer_is_true_of_what_is_kept,
                many_overlapping_waiters_are_all_served,
            }
            sweep {
                only_expired_locks_are_swept_in_batches,
                one_of_many_sweeps,
                a_sweep_leaves_the_queue_alone,
            }
            admin {
                ids_are_listed_by_pages,
                an_inspection_shows_holders_and_waiters,
                an_inspection_shows_all_units,
                an_inspection_shows_renewals,
                a_watcher_sees_each_change,
                a_watcher_sees_what_others_do,
                what_is_over_is_not_shown,
                a_break_stops_the_renewal,
                a_broken_lock_is_freed_by_its_holder,
                a_break_now_frees_at_once,
                a_break_is_guarded_by_the_fence,
                a_break_leaves_the_rest_of_the_set,
                breaks_are_recorded,
                a_frozen_id_is_not_granted,
                a_frozen_id_is_not_handed_over,
                migrating_and_looking_change_nothing,
                what_cannot_be_read_stops_no_other,
            }
            ids {
                odd_ids_are_different_locks,
                odd_ids_come_back_unchanged,
                ids_of_the_greatest_length_work,
                owner_labels_come_back_unchanged,
            }
            capabilities {
                the_declaration_is_sound,
                a_shared_store_is_shared,
                locks_outlive_the_dao,
                undeclared_abilities_are_refused,
            }
            cancellation {
                a_dropped_acquire_leaves_nothing,
                a_dropped_waiter_leaves_nothing,
                a_turn_that_is_not_taken_is_passed_on,
                a_dropped_withdrawal_can_be_repeated,
                a_dropped_release_can_be_repeated,
                a_dropped_release_hands_over,
                a_dropped_renewal_loses_nothing,
                dropped_administration_can_be_repeated,
            }
            histories {
                random_histories_agree_with_the_model,
                histories_with_deaths_agree_with_the_model,
            }
            outcomes {
                exactly_the_set_is_locked_inside,
                mixed_sets_are_locked,
                the_callbacks_error_comes_back,
                contention_is_reported_per_id,
                an_outage_is_not_contention,
                panics_go_on_after_the_release,
                a_failed_release_still_gives_the_value,
                a_lost_release_answer_is_a_success,
                a_lost_acquire_answer_leaves_nothing,
                an_empty_set_locks_nothing,
                the_global_lock_excludes_its_callers,
                callbacks_may_borrow,
                application_errors_take_both_kinds,
                one_of_five_calls_gets_through,
                ten_callers_share_three_slots,
            }
            releasing {
                a_call_dropped_at_any_poll_leaves_nothing,
                a_waiting_call_dropped_at_any_poll_leaves_nothing,
                a_late_request_takes_nothing,
                a_call_dropped_in_its_release_is_released,
                an_outage_is_cleaned_up_after,
                clean_up_works_without_a_runtime,
                a_resting_runtime_keeps_no_lock,
                a_shutdown_waits_for_all_locks,
                a_shutdown_ends_after_its_grace,
            }
            nesting {
                further_ids_are_taken_nested,
                the_same_id_nested_is_refused,
                what_an_enclosing_call_does_not_keep_out_is_granted,
                a_refused_nested_call_leaves_the_outer,
                another_task_is_not_nested,
                nested_calls_pass_the_queue,
                a_context_in_use_is_refused,
            }
            waiting {
                never_asks_once,
                a_wait_ends_with_the_release,
                a_wait_that_is_over_tells_so,
                a_silent_store_is_distinguished,
                a_passing_failure_is_waited_out,
                what_was_not_done_is_not_withdrawn,
                retries_are_counted,
                pauses_stay_within_their_bounds,
                a_custom_pause_gets_the_attempt,
                retries_take_no_place,
                waiting_calls_are_served_in_order,
                own_waiters_do_not_stampede,
            }
            keeping {
                locks_outlive_their_lease,
                the_deadline_counts_from_the_request,
                blocking_code_is_renewed,
                a_blocked_runtime_is_renewed,
                a_failing_renewal_is_tried_again,
                a_slow_hook_costs_no_lock,
                a_callback_that_hangs_is_stopped,
                the_handle_tells_what_is_held,
                the_default_lease_works,
                a_service_sweeps,
            }
            losing {
                nothing_runs_past_the_deadline,
                a_late_callback_is_not_polled_again,
                a_grant_that_comes_too_late_runs_nothing,
                a_stopped_holder_is_taken_over_and_does_nothing_more,
                a_broken_lock_is_reported,
                a_vanished_lock_is_reported,
                a_loss_found_at_the_release_is_reported,
                a_release_that_is_answered_late_is_no_loss,
                the_callback_may_go_on_after_a_loss,
                plain_code_sees_the_loss,
                a_guarded_write_stops_a_former_holder,
                a_guarded_write_is_refused_after_any_later_holder,
                after_a_partial_loss_the_rest_is_renewed,
            }
            guards {
                a_guard_holds_until_released,
                a_dropped_guard_releases,
                a_guard_is_renewed,
                a_guard_that_is_left_stays_locked,
                a_guard_that_is_left_leaves_no_request,
                a_guard_that_is_left_is_renewed,
                a_guard_is_like_any_holder,
                a_grant_is_checked_elsewhere,
            }
            once {
                one_of_three_hosts_runs_it,
                a_failed_job_is_run_by_the_next,
                a_crash_in_the_middle_costs_a_lease,
                what_ran_is_kept_for_its_time,
                a_store_that_comes_back_keeps_it,
                a_store_that_is_away_at_the_end_is_told,
                a_waiting_host_runs_what_failed,
                a_period_runs_it_once,
                clocks_that_differ_change_nothing,
                a_lost_fire_is_reported,
                fires_are_apart,
                plain_code_runs_once,
            }
            keep_for {
                a_release_before_that_leaves_it_locked,
                a_dropped_call_leaves_it_locked,
                a_later_release_frees_it,
                a_release_now_frees_it,
                a_longer_lease_is_cut_short,
                no_renewal_has_to_succeed,
                what_was_waited_for_is_kept_from_the_start,
                a_context_cannot_be_given,
                what_is_lost_is_not_kept,
            }
            election {
                candidates_lead_one_after_the_other,
                observers_see_each_leader,
                a_lost_term_is_reported,
            }
            blocking {
                calls_work_without_a_runtime,
                callbacks_run_outside_the_runtime_of_the_library,
                long_calls_are_renewed,
                blocking_calls_nest,
                calls_work_inside_a_runtime,
                what_a_blocked_thread_wakes_goes_on,
                panics_go_on,
            }
            requests {
                bad_ids_are_refused,
                bad_slots_are_refused,
                bad_settings_are_refused,
                options_are_checked_when_a_service_is_built,
                undeclared_claims_are_refused,
                undeclared_administration_is_refused,
            }
        }
    };
}

/// Emits one `#[test]` for every check of the suite: `conformance!(name, backend)`, where `name` becomes
/// the module of the tests and `backend` is an expression that gives a [`Backend`](crate::Backend).
#[macro_export]
macro_rules! conformance {
    ($name:ident, $backend:expr) => {
        fn $name() -> impl $crate::Backend {
            $backend
        }

        mod $name {
            $crate::for_each_check!($crate::emit_tests, super::super::$name());
        }
    };
}

/// Part of [`conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! emit_tests {
    ([$backend:expr] $($group:ident { $($check:ident,)* })*) => {
        $(mod $group {
            $(#[test]
            fn $check() {
                let name = concat!(stringify!($group), "::", stringify!($check));
                $crate::run_as_test(name, || $backend, $crate::checks::$group::$check);
            })*
        })*

        /// Fails if this backend was instantiated with another list of checks than the suite has.
        #[test]
        fn no_check_is_missing() {
            let here: &[&str] = &[$($(concat!(stringify!($group), "::", stringify!($check)),)*)*];
            assert_eq!(here, $crate::ALL_CHECKS);
        }
    };
}

macro_rules! emit_registry {
    ([] $($group:ident { $($check:ident,)* })*) => {
        /// The names of all checks.
        pub const ALL_CHECKS: &[&str] =
            &[$($(concat!(stringify!($group), "::", stringify!($check)),)*)*];

        /// All checks for one backend, for a harness other than `#[test]`.
        pub fn all<B: Backend>() -> Vec<Check<B>> {
            vec![$($(Check {
                name: concat!(stringify!($group), "::", stringify!($check)),
                run: |store| Box::pin(crate::checks::$group::$check(store)),
            },)*)*]
        }
    };
}

for_each_check!(emit_registry);
