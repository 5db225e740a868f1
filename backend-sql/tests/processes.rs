//! Several processes on one file: death, suspension, order, and how fast a hand-off arrives.

use std::time::{Duration, Instant};

use crate::child::{self, Child, PATIENCE, eventually, lock, now, open, request};
use lockcore::{ConflictReason, LockDao, Severity, backend::Acquired};
use lockcore_conformance::{judge::in_time, servers::Trial};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn trials() -> Vec<Trial> {
    tests![
        "processes",
        a_killed_holder_is_taken_over_at_once,
        a_detached_lock_outlives_its_process,
        a_killed_holder_wakes_the_next_waiter,
        a_killed_waiter_is_skipped,
        a_stopped_waiter_passes_its_turn_and_asks_again,
        all_waiters_of_a_stopped_process_together_cost_no_more,
        waiters_of_several_processes_are_served_in_order,
        a_program_that_ends_leaves_no_session_behind,
        a_hand_off_to_another_process_is_fast,
        processes_that_create_the_file_at_once_all_succeed,
        no_increment_of_any_process_is_lost
    ]
    .into_iter()
    .map(Trial::of_liveness)
    .collect()
}

async fn a_killed_holder_is_taken_over_at_once() {
    let (_folder, file) = database();
    let holder = Child::start("hold a 3600 attached", &file);
    let old: u64 = holder.says("held").parse().expect("a fence");
    let dao = open(&file).await;
    let request = request("a", HOUR, false);
    assert!(matches!(dao.acquire(&request).await.expect("an answer"), Acquired::Refused(_)));
    holder.kill();
    let acquired = dao.acquire(&request).await.expect("an answer");
    assert!(child::granted(&request, acquired).locks[0].granted.fence > old);
}

async fn a_detached_lock_outlives_its_process() {
    let (_folder, file) = database();
    let holder = Child::start("hold a 2 detached", &file);
    holder.says("held");
    let dao = open(&file).await;
    holder.kill();
    let swept = dao.sweep(100, None).await.expect("an answer");
    assert_eq!(swept.removed, 0);
    let request = request("a", HOUR, false);
    let Acquired::Refused(conflicts) = dao.acquire(&request).await.expect("an answer") else {
        panic!("taken from a holder whose lease lasts");
    };
    let ConflictReason::Held { holders, .. } = &conflicts[0].reason else { panic!("{conflicts:?}") };
    assert!(holders[0].remaining.is_some_and(|left| left <= Duration::from_secs(2)));
    eventually(&dao, &request).await;
}

async fn a_killed_holder_wakes_the_next_waiter() {
    let (_folder, file) = database();
    let holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let waiter = Child::start("wait a", &file);
    waiter.says("queued");
    let killed = Instant::now();
    holder.kill();
    waiter.says("granted");
    in_time(killed.elapsed(), Duration::from_secs(3));
}

async fn a_killed_waiter_is_skipped() {
    let (_folder, file) = database();
    let mut holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let dead = Child::start("wait a", &file);
    dead.says("queued");
    let waiter = Child::start("wait a", &file);
    waiter.says("queued");
    dead.kill();
    let released = Instant::now();
    holder.go_on();
    waiter.says("granted");
    in_time(released.elapsed(), Duration::from_secs(1));
}

async fn a_stopped_waiter_passes_its_turn_and_asks_again() {
    let (_folder, file) = database();
    let mut holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let stopped = Child::start("wait a", &file);
    stopped.says("queued");
    let mut waiter = Child::start("wait a", &file);
    waiter.says("queued");
    stopped.stop(&file);
    let released = Instant::now();
    holder.go_on();
    waiter.says("granted");
    in_time(released.elapsed(), Duration::from_secs(5));
    stopped.resume();
    let resumed = Instant::now();
    stopped.says("queued");
    in_time(resumed.elapsed(), Duration::from_secs(3));
    waiter.go_on();
    waiter.says("released []");
    stopped.says("granted");
}

/// An offer to each of them would take 2 s: without a sign of life from their process they all lapse.
async fn all_waiters_of_a_stopped_process_together_cost_no_more() {
    let (_folder, file) = database();
    let mut holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let stopped = Child::start("crowd a", &file);
    (0..4).for_each(|_| drop(stopped.says("queued")));
    let waiter = Child::start("wait a", &file);
    waiter.says("queued");
    stopped.stop(&file);
    let released = Instant::now();
    holder.go_on();
    waiter.says("granted");
    in_time(released.elapsed(), Duration::from_secs(6));
}

async fn waiters_of_several_processes_are_served_in_order() {
    let (_folder, file) = database();
    let mut holder = Child::start("hold a 3600 attached", &file);
    holder.says("held");
    let mut waiters: Vec<Child> = Vec::new();
    for _ in 0..5 {
        let waiter = Child::start("wait a", &file);
        waiter.says("queued");
        waiters.push(waiter);
    }
    // A client that came last and does not wait does not pass them either.
    let dao = open(&file).await;
    holder.go_on();
    holder.says("released");
    for waiter in &mut waiters {
        waiter.says("granted");
        let acquired = dao.acquire(&request("a", HOUR, false)).await.expect("an answer");
        assert!(matches!(acquired, Acquired::Refused(_)), "{acquired:?}");
        waiter.go_on();
        waiter.says("released []");
    }
}

async fn processes_that_create_the_file_at_once_all_succeed() {
    for _ in 0..3 {
        let (_folder, file) = database();
        let children: Vec<Child> = (0..6).map(|_| Child::start("open", &file)).collect();
        for child in &children {
            child.says("open");
        }
    }
}

async fn a_program_that_ends_leaves_no_session_behind() {
    let (folder, file) = database();
    let counter = folder.path().join("counter");
    std::fs::write(&counter, "0").expect("a file");
    for _ in 0..10 {
        let child = Child::start(&format!("count {} 1", counter.display()), &file);
        child.says("done");
        child.ends();
    }
    let findings = open(&file).await.doctor().await.expect("it can be looked at");
    let sessions = findings.iter().find(|finding| finding.check == "sessions").expect("it is looked at");
    assert_eq!(sessions.severity, Severity::Ok, "{sessions:?}");
}

async fn no_increment_of_any_process_is_lost() {
    let (folder, file) = database();
    let counter = folder.path().join("counter");
    std::fs::write(&counter, "0").expect("a file");
    let role = format!("count {} 50", counter.display());
    let children: Vec<Child> = (0..4).map(|_| Child::start(&role, &file)).collect();
    for child in &children {
        child.says("done");
    }
    assert_eq!(std::fs::read_to_string(&counter).expect("a file"), "200");
}

/// Prints how long it takes from a release here until the waiter of another process has confirmed.
async fn a_hand_off_to_another_process_is_fast() {
    let (_folder, file) = database();
    let dao = open(&file).await;
    let mut waiter = Child::start("wait a", &file);
    waiter.says("granted");
    waiter.go_on();
    waiter.says("released []");
    let mut latencies = Vec::new();
    for _ in 0..50 {
        let grant = lock(&dao, "a", || ()).await;
        waiter.go_on();
        waiter.says("queued");
        let released = now();
        dao.release(&grant).await.expect("an answer");
        let granted: i64 = waiter.says("granted").parse().expect("a time");
        latencies.push(granted - released);
        waiter.go_on();
        waiter.says("released []");
    }
    latencies.sort_unstable();
    let (median, worst) = (latencies[latencies.len() / 2], latencies[latencies.len() - 1]);
    println!("hand-off between processes: p50 {median} us, worst {worst} us");
    // Without a notification it would be half of the interval of polling, 125 ms.
    assert!(median < 50_000, "{latencies:?}");
    assert!(Duration::from_micros(worst.unsigned_abs()) < PATIENCE);
}

fn database() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    (folder, file)
}
