//! The Redis backend against real servers, in every set-up and with everything that goes wrong; lines that fail and servers
//! that are killed are `line.rs`.

mod data;
mod interop;
mod messages;
mod moving;
mod odd;
mod peers;
pub(crate) mod place;
mod python;
mod shapes;
pub(crate) mod topology;
mod upkeep;
mod versions;
mod watching;
mod ways;

use lockcore_conformance::servers::{Kind, Trial, trial};

/// A test for each function, named after it, and what is said about it.
macro_rules! trials {
    ($($module:ident { $($test:ident $(: $kind:ident)?,)* })*) => {
        [$($(trial(
            Kind::Redis,
            concat!(stringify!($module), "::", stringify!($test)),
            $module::$test,
        )$(.$kind())?,)*)*]
    };
}

pub(crate) fn trials() -> impl IntoIterator<Item = Trial> {
    trials! {
        shapes {
            one_plain_node,
            databases_are_apart,
            a_unix_socket,
            tls_and_a_user_of_an_access_list,
            the_documented_access_list_is_enough_and_no_more,
            tls_with_certificates_on_both_ends,
            what_is_verified_of_a_certificate_can_be_set,
            a_cluster_of_three_masters,
            a_slot_that_moves_loses_no_lock,
            a_cluster_that_misses_a_node_says_so,
            a_node_out_of_reach_is_named_with_the_one_that_announced_it,
            sentinels,
            a_server_that_cannot_be_reached_is_unavailable,
        }
        interop {
            redis_pys_lock_and_ours_exclude_each_other,
            redlock_pys_lock_and_ours_exclude_each_other: of_liveness,
            a_set_nx_of_redis_py_and_our_lock_exclude_each_other,
            a_held_slot_or_share_keeps_others_out_as_long_as_the_last,
            no_other_process_gets_in_between_while_ours_wait,
            no_other_process_gets_in_when_a_lease_ends_while_ours_wait: of_liveness,
            what_others_free_wakes_our_first_waiter: of_liveness,
            a_lock_of_ours_that_others_delete_is_reported_as_vanished,
            who_comes_late_frees_nothing_of_ours,
            a_foreign_lock_without_an_end_is_shown_and_broken: of_liveness,
            a_counter_that_both_increment_loses_nothing,
        }
        peers {
            what_we_hold_keeps_them_out,
            what_they_hold_keeps_us_out: of_liveness,
        }
        data {
            fences_go_on_after_a_restart_without_persistence,
            fences_go_on_after_flushall,
            fences_go_on_in_a_burst,
            waiters_survive_a_restart: of_liveness,
            a_callback_learns_that_its_lock_went_with_the_data,
            the_end_of_a_lease_wakes_the_first_waiter: of_liveness,
            a_flushed_script_cache_is_no_failure,
            a_replicated_lock_survives_a_failover,
            a_lock_that_was_not_replicated_is_reported_as_lost,
            with_replicas_required_nothing_is_granted_without_them,
            with_replicas_required_a_waiter_waits_for_them_too,
            waiters_survive_a_failover,
            a_new_master_knows_no_script_and_answers_all_the_same,
        }
        messages {
            with_locks_is_two_round_trips_and_three_the_first_time,
            a_call_is_a_small_future,
            the_first_call_of_a_program_is_at_most_three_round_trips,
            a_hand_off_is_one_way_there_and_one_way_back,
            // It keeps the thread busy that renews all locks of a process.
            ten_thousand_waiters_share_a_subscription_and_are_no_stampede: in_own_process,
        }
        watching {
            a_watcher_outlasts_its_connection,
        }
        odd {
            an_evicting_server_is_refused,
            the_doctor_sees_a_policy_that_was_changed_later,
            every_node_of_a_cluster_is_looked_at,
            the_doctor_sees_whether_messages_arrive,
            the_doctor_warns_of_what_loses_locks,
            a_replica_is_refused,
            a_master_that_becomes_a_replica_refuses_clearly,
            what_a_server_refuses_inside_a_script_is_understood,
            a_demoted_master_is_left_and_a_wait_outlasts_it,
            what_waits_outlasts_a_server_that_refuses_writes: of_liveness,
            what_is_refused_for_good_ends_a_sleeping_wait: of_liveness,
            something_else_under_our_key_is_reported,
            a_slow_script_of_others_is_reported_as_busy,
            a_stopped_server_is_a_timeout_in_doubt: of_liveness,
            killed_connections_come_back: of_liveness,
        }
        versions {
            two_versions_share_a_namespace,
        }
        moving {
            keys_that_move_one_by_one_grant_nothing_that_is_held,
            a_reshard_under_load_grants_nothing_that_is_held,
        }
        upkeep {
            what_is_abandoned_ends,
            an_id_of_ones_own_costs_the_same_beside_others,
            ten_thousand_holders_are_no_slower_than_one,
            dead_waiters_are_removed_a_few_at_a_time: of_liveness,
            many_holders_are_read_in_parts,
            waiting_costs_a_script_a_second,
            a_waiter_that_is_not_in_line_any_more_asks_again: of_liveness,
            a_frozen_id_stays_closed_when_its_holders_lease_ends,
        }
        ways {
            without_a_counter_fences_go_by_the_clock,
            ahead_of_the_clock_fences_go_by_the_counter,
            a_counter_that_cannot_be_counted_on_is_refused,
            a_hand_over_raises_the_counter,
            early_in_a_second_a_fence_is_no_shorter,
            after_the_last_waiter_nothing_is_left,
            a_release_after_the_end_of_the_lease_tells_the_loss,
            a_waiter_has_a_grace: of_liveness,
            a_dead_waiter_is_offered_nothing,
            who_died_before_the_clock_was_set_back_is_passed_over,
            nothing_is_handed_over_that_is_foreign,
            a_full_server_keeps_frees_and_hands_over,
            on_a_full_server_a_place_is_kept: of_liveness,
        }
    }
}
