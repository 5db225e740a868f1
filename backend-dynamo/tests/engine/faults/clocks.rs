//! Wrong clocks: this machine's, one of the service's hosts', another client's.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lockcore::{ConflictReason, Grant};
use lockcore_conformance::{judge::in_time, servers::TestResult};
use uuid::Uuid;

use crate::engine::front::{
    Fault,
    rig::{Rig, SET, operation_of},
};

pub(super) async fn a_clock_an_hour_off_works_and_takes_nothing_early() -> TestResult {
    for ahead in [3600, -3600] {
        let rig = Rig::new().await?;
        rig.front.check_signatures();
        let off = rig.table.builder().own_clock().pretend_ahead(ahead).open().await?;
        let off = rig.store.caller().through(&Arc::new(off));
        let lease = Duration::from_secs(5);
        let holder = rig.caller().with_lease(lease);
        let begun = Instant::now();
        holder.take(["a"]).await;
        off.take_soon(["a"]).await;
        assert!(
            begun.elapsed() >= lease,
            "taken over after {:?} with a clock {ahead} s ahead",
            begun.elapsed()
        );
        // And the other way: what it writes ends for the others when it should.
        let begun = Instant::now();
        let short = off.clone().with_lease(lease);
        short.take(["b"]).await;
        rig.caller().take_soon(["b"]).await;
        let taken_over = begun.elapsed();
        assert!(taken_over >= lease, "{taken_over:?}");
        in_time(taken_over, lease + Duration::from_secs(6));
    }
    Ok(())
}

/// The signature of a write is refused for its time; the next one is made with what was learned from that.
pub(super) async fn a_clock_that_is_set_between_two_writes_is_learned_anew() -> TestResult {
    for ids in [&SET[..1], &SET] {
        let rig = Rig::new().await?;
        rig.front.check_signatures();
        let (first, second) = (rig.caller(), rig.caller());
        let held = first.take(ids.iter().copied()).await;
        first.free(&held).await;
        rig.front.shift_date(3600);
        rig.front.counted();
        second.take(ids.iter().copied()).await;
        assert_eq!(rig.front.counted(), [(operation_of(ids.len()).to_owned(), 2)].into());
    }
    Ok(())
}

pub(super) async fn an_answer_with_a_wrong_date_takes_nothing_early() -> TestResult {
    let rig = Rig::new().await?;
    let holder = rig.caller();
    holder.take(["a"]).await;
    let other = rig.other().await;
    other.refused(["a"]).await;
    // One answer from a host whose clock is off.
    rig.front.shift_date(3600);
    other.refused(["a"]).await;
    rig.front.shift_date(0);
    for _ in 0..3 {
        other.refused(["a"]).await;
    }
    Ok(())
}

/// A proxy whose clock is off answers while the service cannot be reached: its `Date` is not the service's time.
pub(super) async fn answers_of_a_proxy_tell_no_time() -> TestResult {
    let rig = Rig::with(|builder| builder.timeout(Duration::from_millis(1500))).await?;
    let holder = rig.store.caller();
    for ids in [&SET[..1], &SET[1..]] {
        holder.take(ids.iter().copied()).await;
        rig.front.next(operation_of(ids.len()), Fault::Proxy(502, 3600), usize::MAX);
        let error = rig.acquire(ids).await.expect_err("the service cannot be reached");
        assert!(error.is_retryable(), "{error}");
        rig.front.lift();
        rig.caller().refused(ids.iter().copied()).await;
    }
    Ok(())
}

/// Some answers of a host of the service whose clock is ahead, right after each other: they agree, and are still wrong.
pub(super) async fn a_burst_of_answers_with_a_wrong_date_takes_nothing_early() -> TestResult {
    let rig = Rig::new().await?;
    rig.store.caller().take(["a"]).await;
    rig.front.shift_date(3600);
    for _ in 0..5 {
        rig.caller().refused(["a"]).await;
    }
    rig.front.shift_date(0);
    rig.caller().refused(["a"]).await;
    Ok(())
}

pub(super) async fn a_grant_from_the_future_counts_from_now() -> TestResult {
    let rig = Rig::new().await?;
    rig.front.shift_date(3600);
    let lease = Duration::from_secs(5);
    let ahead = rig.other().await.with_lease(lease);
    ahead.take(["a"]).await;
    // The service's clock is set back.
    rig.front.shift_date(0);
    let later = rig.other().await;
    let conflicts = later.refused(["a"]).await;
    let ConflictReason::Held { holders, .. } = &conflicts[0].reason else { panic!("{conflicts:?}") };
    assert!(holders[0].remaining.is_some_and(|left| left <= lease), "{holders:?}");
    let begun = Instant::now();
    later.take_soon(["a"]).await;
    in_time(begun.elapsed(), lease + Duration::from_secs(6));
    Ok(())
}

pub(super) async fn a_fence_ahead_of_our_clock_is_topped() -> TestResult {
    let rig = Rig::new().await?;
    for ids in [&SET[..1], &SET] {
        rig.front.shift_date(60);
        let ahead = rig.other().await;
        let grant = ahead.take(ids.iter().copied()).await;
        ahead.free(&grant).await;
        rig.front.shift_date(0);
        let fence = |grant: &Grant<String, Uuid>| grant.locks[0].granted.fence;
        let other = rig.other().await;
        let later = other.take(ids.iter().copied()).await;
        assert!(fence(&later) > fence(&grant), "{later:?} after {grant:?}");
        // For this id alone.
        let beside = other.take(["beside"]).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let ahead = Duration::from_micros(fence(&beside)).saturating_sub(now);
        assert!(ahead < Duration::from_secs(10), "{ahead:?} ahead of the service's clock");
        other.free(&beside).await;
        other.free(&later).await;
    }
    Ok(())
}

/// Its bounds are wide by then: by them its leases would end too late for others, and its fences be ahead.
pub(super) async fn who_was_idle_for_long_looks_before_it_takes() -> TestResult {
    let idle = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let rig = Rig::new().await?;
            for (hours, ids, look) in [(1, &SET[..1], "GetItem"), (2, &SET, "BatchGetItem")] {
                tokio::time::pause();
                tokio::time::advance(Duration::from_secs(3600)).await;
                tokio::time::resume();
                rig.front.shift_date(hours * 3600);
                rig.front.counted();
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                let grant = rig.caller().take(ids.iter().copied()).await;
                let write = operation_of(ids.len());
                assert_eq!(rig.front.counted(), [(look.to_owned(), 1), (write.to_owned(), 1)].into());
                let now = now + Duration::from_secs(3600) * hours as u32;
                let ahead = Duration::from_micros(grant.locks[0].granted.fence).saturating_sub(now);
                assert!(ahead < Duration::from_secs(3), "{ahead:?} ahead of the service's clock");
                rig.caller().free(&grant).await;
            }
            TestResult::Ok(())
        })
    };
    tokio::task::spawn_blocking(idle).await?
}
