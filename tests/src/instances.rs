//! Which checks run on which store. The suite is as large as the architecture asks for: a check of a DAO runs on every store, and
//! one of the service, which is written once over any DAO, where it can see something of the store. `LOCKCORE_TEST_SQUARE=1` runs
//! every check on every store.

use std::env;

use crate::registry::{ALL_CHECKS, SERVICE};

/// The checks of one kind, of the DAO or of the service, that an instance runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of the kind.
    All,
    /// Those of the kind that a list names.
    Those(&'static [&'static str]),
    /// None of the kind.
    None,
}

/// A store that this repository runs the suite on.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    /// Its name, with which the names of its tests begin.
    pub name: &'static str,
    /// The checks of the DAO.
    pub dao: Part,
    /// The checks of the service.
    pub service: Part,
    /// Why just these.
    pub reason: &'static str,
}

/// The table: a row for each store.
pub const INSTANCES: &[Instance] = &[
    Instance {
        name: "memory",
        dao: Part::All,
        service: Part::All,
        reason: "all abilities but sharing, under a paused clock",
    },
    Instance {
        name: "map",
        dao: Part::All,
        service: Part::All,
        reason: "no ability at all: the other branch of each, under a paused clock",
    },
    Instance {
        name: "object",
        dao: Part::All,
        service: Part::Those(SEE_THE_STORE),
        reason: "the engine of buckets, under a paused clock",
    },
    Instance {
        name: "rows",
        dao: Part::All,
        service: Part::None,
        reason: "the same engine over the adapter that the book shows, in real time",
    },
    Instance {
        name: "sqlite",
        dao: Part::All,
        service: Part::Those(SEE_THE_STORE),
        reason: "a store of its own: steps in this process, a file that others share",
    },
    Instance {
        name: "postgres",
        dao: Part::All,
        service: Part::All,
        reason: "the witness: the service over a real network, with queue, push and sharing",
    },
    Instance {
        name: "mysql",
        dao: Part::All,
        service: Part::Those(SEE_THE_STORE),
        reason: "routines of its own",
    },
    Instance {
        name: "mariadb",
        dao: Part::All,
        service: Part::None,
        reason: "the routines of MySQL, by another server: what the DAO does above them is MySQL's",
    },
    Instance {
        name: "postgres-statements",
        dao: Part::All,
        service: Part::Those(SEE_THE_STORE),
        reason: "the engine of `object` over statements: what a guard undoes, several cells at once, notifications",
    },
    Instance {
        name: "mysql-statements",
        dao: Part::All,
        service: Part::None,
        reason: "the same by the statements of MySQL",
    },
    Instance {
        name: "mariadb-statements",
        dao: Part::All,
        service: Part::None,
        reason: "the same by another server, whose locks differ",
    },
    Instance {
        name: "redis",
        dao: Part::All,
        service: Part::Those(SEE_THE_STORE),
        reason: "scripts of its own",
    },
    Instance {
        name: "cluster",
        dao: Part::Those(SAMPLE),
        service: Part::None,
        reason: "the same scripts, by another connection: one check of each step",
    },
    Instance {
        name: "oldest",
        dao: Part::Those(SAMPLE),
        service: Part::None,
        reason: "the same scripts on the oldest server that is supported",
    },
    Instance {
        name: "dynamodb",
        dao: Part::All,
        service: Part::Those(SEE_THE_STORE),
        reason: "conditional writes of its own",
    },
    Instance {
        name: "dynoxide",
        dao: Part::Those(SAMPLE),
        service: Part::None,
        reason: "the same writes on another engine",
    },
    Instance {
        name: "s3",
        dao: Part::Those(SAMPLE),
        service: Part::Those(SEE_THE_STORE),
        reason: "the engine of `object` over HTTP: what a conditional PUT answers, sizes, histories",
    },
    Instance {
        name: "share",
        dao: Part::Those(SAMPLE),
        service: Part::Those(SEE_THE_STORE),
        reason: "the engine of `object` over files: what a link answers, real time, threads that wait",
    },
    Instance {
        name: "sshfs",
        dao: Part::Those(SAMPLE),
        service: Part::None,
        reason: "the same files through the caches of two mounts",
    },
    Instance {
        name: "etcd",
        dao: Part::Those(SAMPLE),
        service: Part::Those(SEE_THE_STORE),
        reason: "the engine of `object` over transactions: what the gateway answers, real time, watches",
    },
    Instance {
        name: "moto",
        dao: Part::Those(SAMPLE),
        service: Part::None,
        reason: "the same on another emulator",
    },
];

/// The checks of the service that see what the DAO's contract cannot show: who owns the connection, the runtime and the thread.
pub const SEE_THE_STORE: &[&str] = &[
    // A future that is dropped at each poll: drivers differ in their polls.
    "releasing::a_call_dropped_at_any_poll_leaves_nothing",
    "releasing::a_waiting_call_dropped_at_any_poll_leaves_nothing",
    // Connections belong to a runtime.
    "releasing::clean_up_works_without_a_runtime",
    "releasing::a_resting_runtime_keeps_no_lock",
    "blocking::calls_work_without_a_runtime",
    "blocking::calls_work_inside_a_runtime",
    "blocking::long_calls_are_renewed",
    "keeping::a_blocked_runtime_is_renewed",
    // Time that the store carries.
    "losing::nothing_runs_past_the_deadline",
    "losing::a_stopped_holder_is_taken_over_and_does_nothing_more",
    "losing::a_release_that_is_answered_late_is_no_loss",
    "keeping::the_default_lease_works",
    "keep_for::no_renewal_has_to_succeed",
    "keep_for::what_was_waited_for_is_kept_from_the_start",
    "keep_for::a_longer_lease_is_cut_short",
    // What lasts after its process: a part of a set, whose lease is longer than it was.
    "once::one_of_three_hosts_runs_it",
    "once::a_failed_job_is_run_by_the_next",
    "once::a_crash_in_the_middle_costs_a_lease",
    "once::what_ran_is_kept_for_its_time",
    "once::a_store_that_comes_back_keeps_it",
    "once::a_store_that_is_away_at_the_end_is_told",
    "once::a_period_runs_it_once",
    "once::clocks_that_differ_change_nothing",
    // Notifications arrive.
    "waiting::a_wait_ends_with_the_release",
    "waiting::waiting_calls_are_served_in_order",
    // The real order of requests.
    "releasing::a_late_request_takes_nothing",
    "losing::a_guarded_write_stops_a_former_holder",
    "outcomes::ten_callers_share_three_slots",
];

/// One check of each step of a DAO and the histories, for a store that differs from another instance by its connection or its
/// release.
pub const SAMPLE: &[&str] = &[
    "exclusion::one_of_five_contenders_wins",
    "exclusion::a_counter_under_contention_loses_nothing",
    "exclusion::overlapping_sets_never_deadlock",
    "exclusion::namespaces_are_apart",
    "exclusion::large_sets_are_taken_and_freed",
    "sizes::all_of_it_or_nothing_is_taken",
    "sizes::nothing_else_is_freed",
    "sizes::what_is_over_is_free",
    "sizes::a_withdrawn_set_is_not_taken",
    "sizes::what_is_freed_is_handed_over",
    "refusal::every_conflicting_id_is_listed",
    "refusal::many_holders_are_capped_but_counted",
    "reentrancy::a_stronger_mode_is_a_new_grant",
    "release::a_partial_loss_frees_the_rest",
    "release::release_context_finds_everything",
    "renewal::a_partial_loss_extends_the_rest",
    "withdrawal::undo_refuses_a_late_request",
    "withdrawal::undo_settles_a_race",
    "expiry::one_of_five_takes_an_expired_id",
    "slots::ten_workers_never_exceed_three_slots",
    "resizing::the_documented_trace",
    "fences::fences_grow_across_reopening",
    "queue::a_release_hands_over",
    "queue::a_dead_waiter_is_skipped_in_time",
    "sweep::only_expired_locks_are_swept_in_batches",
    "admin::ids_are_listed_by_pages",
    "ids::odd_ids_are_different_locks",
    "ids::ids_of_the_greatest_length_work",
    "cancellation::a_dropped_acquire_leaves_nothing",
    "histories::random_histories_agree_with_the_model",
];

/// The checks that run in real time also where a store's time is virtual, as groups or single checks. They block a thread for as
/// long as a lease lasts, need a second thread, wait for the library's own thread, which knows no virtual time, or compare what
/// the service counts, the larger of virtual and real time, with virtual time alone.
pub const IN_REAL_TIME: &[&str] = &[
    "blocking",
    "histories::histories_with_deaths_agree_with_the_model",
    "histories::random_histories_agree_with_the_model",
    "keep_for",
    "keeping::a_blocked_runtime_is_renewed",
    "keeping::a_service_sweeps",
    "keeping::a_slow_hook_costs_no_lock",
    "keeping::blocking_code_is_renewed",
    "losing::a_late_callback_is_not_polled_again",
    "losing::a_stopped_holder_is_taken_over_and_does_nothing_more",
    "losing::plain_code_sees_the_loss",
    "once::plain_code_runs_once",
    "releasing::a_resting_runtime_keeps_no_lock",
    "releasing::clean_up_works_without_a_runtime",
];

/// The checks of liveness, as groups or single checks: leases are renewed, or offers confirmed, in real time.
pub const LIVENESS: &[&str] = &[
    "admin::a_watcher_sees_what_others_do",
    "blocking::long_calls_are_renewed",
    "election",
    "guards::a_guard_is_renewed",
    "guards::a_guard_that_is_left_is_renewed",
    "keep_for",
    "keeping",
    "losing",
    "once",
    "queue::a_confirmed_offer_lasts",
    "queue::a_place_is_kept_for_long",
    "queue::an_offer_found_by_asking_lasts",
    "outcomes::ten_callers_share_three_slots",
    "renewal::a_waiter_notices_a_shorter_lease",
    "waiting::a_wait_that_is_over_tells_so",
    "waiting::own_waiters_do_not_stampede",
];

impl Instance {
    /// The row of a store.
    ///
    /// # Panics
    /// If the table has none.
    pub fn named(name: &str) -> &'static Instance {
        let found = INSTANCES.iter().find(|instance| instance.name == name);
        found.unwrap_or_else(|| panic!("the table of instances has no row for {name}"))
    }

    /// Whether the check, `group::check`, runs on this store by the table.
    pub fn has(&self, check: &str) -> bool {
        match if of_service(check) { self.service } else { self.dao } {
            Part::All => true,
            Part::Those(those) => those.contains(&check),
            Part::None => false,
        }
    }

    /// Whether it is to be run now: by the table, or because `LOCKCORE_TEST_SQUARE=1` asks for all; and unless
    /// `LOCKCORE_TEST_PART`, `dao` or `service`, asks for the others only.
    pub fn runs(&self, check: &str) -> bool {
        let is = |name, wanted| env::var_os(name).is_some_and(|value| value == wanted);
        let other = if of_service(check) { "dao" } else { "service" };
        (is("LOCKCORE_TEST_SQUARE", "1") || self.has(check)) && !is("LOCKCORE_TEST_PART", other)
    }
}

/// Whether it is a check of the service, and not of the DAO.
fn of_service(check: &str) -> bool {
    SERVICE.contains(&group(check))
}

/// Whether a list of groups and single checks has this one.
pub fn listed(list: &[&str], check: &str) -> bool {
    list.iter().any(|&name| name == check || name == group(check))
}

fn group(check: &str) -> &str {
    check.split_once("::").map_or(check, |(group, _)| group)
}

/// Every name in the lists is one of a check or of a group.
///
/// # Errors
/// A name that is not.
pub fn names_are_known() -> Result<(), &'static str> {
    let known = |name: &str| ALL_CHECKS.iter().any(|&check| check == name || group(check) == name);
    let lists = [SEE_THE_STORE, SAMPLE, IN_REAL_TIME, LIVENESS];
    lists.iter().copied().flatten().copied().find(|name| !known(name)).map_or(Ok(()), Err)
}
