//! What is taken out of the table: by TTL, at any moment, an item whose `expires` is past, whether its id is free or its
//! lease over; by a release, what is its own.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    error::ProvideErrorMetadata,
    types::AttributeValue,
};
use lockcore::{
    Claim, LockDao, LossReason, Target,
    backend::{Acquired, Withdraw, Withdrawn},
};
use lockcore_conformance::{eventually, race, servers::TestResult, store::MEASURED};
use tokio::sync::Notify;

use crate::engine::front::{
    Fault,
    rig::{Rig, SET, impatient, operation_of},
};

/// By how much the estimates of two clients that know nothing of each other can make fences differ, as the crate's front
/// page says, and a little for this machine.
const BOUND: Duration = Duration::from_millis(2_500);

/// What ended longer ago TTL leaves alone, in seconds.
const FIVE_YEARS: u64 = 5 * 365 * 24 * 3600;

/// Collects, as the service's TTL does: but at once.
#[derive(Clone)]
pub(super) struct Collector {
    client: Client,
    table: String,
    prefix: String,
}

impl Collector {
    pub(super) fn of(rig: &Rig) -> Self {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(Region::new("eu-central-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .endpoint_url(rig.engine.trim_end_matches('/'));
        let (table, prefix) = rig.keys();
        Collector { client: Client::from_conf(config.build()), table, prefix }
    }

    /// Puts so many bytes into the item of an id, in an attribute that no client uses.
    pub(super) async fn fill(&self, id: &str, bytes: usize) {
        let key = AttributeValue::S(format!("{}{id}", self.prefix));
        let update = self.client.update_item().table_name(&self.table).key("id", key);
        let update = update.update_expression("SET filling=:f");
        let update = update.expression_attribute_values(":f", AttributeValue::S("x".repeat(bytes)));
        update.send().await.expect("the engine takes that much");
    }

    /// What stands in the namespace, but for what the suite left there at its start.
    async fn items(&self) -> Vec<HashMap<String, AttributeValue>> {
        let scan = self.client.scan().table_name(&self.table).consistent_read(true);
        let scan = scan.filter_expression("begins_with(id,:p) AND NOT contains(id,:m)");
        let scan = scan.expression_attribute_values(":p", AttributeValue::S(self.prefix.clone()));
        let scan = scan.expression_attribute_values(":m", AttributeValue::S(MEASURED.to_owned()));
        let pages = scan.into_paginator().items().send().collect::<Result<Vec<_>, _>>().await;
        pages.expect("the engine answers")
    }

    /// Removes what is past, and returns how many items that were.
    async fn collect(&self) -> usize {
        self.collect_in(0).await
    }

    /// Removes what will be past in so many seconds.
    async fn collect_in(&self, seconds: u64) -> usize {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs() + seconds;
        let mut removed = 0;
        for item in self.items().await {
            let expires = item.get("expires").and_then(|expires| expires.as_n().ok()?.parse::<u64>().ok());
            if expires.is_none_or(|expires| expires >= now || expires < now - FIVE_YEARS) {
                continue;
            }
            let delete = self.client.delete_item().table_name(&self.table).key("id", item["id"].clone());
            let delete = delete.condition_expression("expires<:n");
            let delete = delete.expression_attribute_values(":n", AttributeValue::N(now.to_string()));
            match delete.send().await {
                Ok(_) => removed += 1,
                // It was taken in between.
                Err(error) => {
                    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
                    assert_eq!(code, Some("ConditionalCheckFailedException"), "{error:?}");
                }
            }
        }
        removed
    }
}

pub(super) async fn fences_outlast_the_collection_of_free_items() -> TestResult {
    let rig = Rig::new().await?;
    let collector = Collector::of(&rig);
    let mut last = 0;
    for round in 0..3 {
        // Each as a process of its own, which has just learned the service's time.
        let caller = rig.other().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let grant = caller.take(SET).await;
        for lock in &grant.locks {
            let fence = lock.granted.fence;
            assert!(fence > last, "round {round}: {fence} after {last}");
            let ahead =
                Duration::from_micros(fence).checked_sub(now).expect("never behind the service's clock");
            assert!(ahead < BOUND, "{ahead:?} ahead of the service's clock");
        }
        last = grant.locks.iter().map(|lock| lock.granted.fence).max().expect("there are some");
        caller.free(&grant).await;
        assert_eq!(collector.collect().await, SET.len(), "a free item may be collected at once");
        tokio::time::sleep(BOUND).await;
    }
    // The same process keeps above its own last fence, however soon.
    let caller = rig.caller();
    for _ in 0..5 {
        let grant = caller.take(["a"]).await;
        assert!(grant.locks[0].granted.fence > last);
        last = grant.locks[0].granted.fence;
        caller.free(&grant).await;
        assert_eq!(collector.collect().await, 1);
    }
    Ok(())
}

pub(super) async fn strict_fences_outlast_it_within_the_bounds_too() -> TestResult {
    let rig = Rig::with(|builder| builder.strict_fence(true)).await?;
    let collector = Collector::of(&rig);
    let mut last = 0;
    for ahead in [2, 1, 0, 0, 0] {
        // Within the bounds: one whose estimate is at the upper end of them, then one at the lower.
        rig.front.shift_date(ahead);
        let strict = rig.table.builder().own_clock().strict_fence(true).open().await?;
        let caller = rig.store.caller().through(&Arc::new(strict));
        let grant = caller.take(SET).await;
        let fence = |position: usize| grant.locks[position].granted.fence;
        assert!((0..SET.len()).all(|position| fence(position) > last), "{grant:?} after {last}");
        last = (0..SET.len()).map(fence).max().expect("there are some");
        caller.free(&grant).await;
        rig.front.shift_date(0);
        assert_eq!(collector.collect().await, SET.len(), "the ids' items alone");
    }
    Ok(())
}

/// The grant names three; two of them went to another while it had fewer, so that it was lost with the undoing of that change.
pub(super) async fn a_release_of_what_was_lost_gives_back_no_permits_of_others() -> TestResult {
    let rig = Rig::new().await?;
    let [first, shrinking, other] = [rig.store.caller(), rig.store.caller(), rig.store.caller()];
    first.take([Claim::slots("a", 5)]).await;
    let three = shrinking.take([Claim::slots("a", 5).permits(3)]).await;
    let fewer = shrinking.request([Claim::slots("a", 5)]);
    assert!(matches!(shrinking.send(&fewer).await, Acquired::Granted(_)));
    let two = other.take([Claim::slots("a", 5).permits(2)]).await;
    assert_eq!(shrinking.withdraw(&fewer, Withdraw::Undo).await, Withdrawn::Left);
    assert_eq!(rig.store.dao().release(&three).await?.lost.len(), 1);
    let items = Collector::of(&rig).items().await;
    let taken = items[0].get("slots").and_then(|slots| slots.as_m().ok()).ok_or("permits are noted")?;
    assert_eq!(taken.len(), 3, "of the first and the last: {taken:?}");
    for permit in &two.locks[0].granted.permits {
        assert!(taken.contains_key(&format!("p{permit}")), "{permit} of {taken:?}");
    }
    Ok(())
}

/// While a request of it may be on its way: whether the id is free, taken and freed by others, or of a holder that died.
pub(super) async fn what_remembers_a_withdrawn_attempt_is_not_collected() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let collector = Collector::of(&rig);
    for ids in [&SET[..1], &SET] {
        // Remembered for ten times what its tries may take, as that is longer than this lease.
        let caller = rig.caller().with_lease(Duration::from_secs(5));
        let request = caller.request(ids.iter().copied());
        assert_eq!(caller.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
        assert_eq!(collector.collect().await, 0, "free");
        caller.refused_as_withdrawn(&request).await;
        // A holder that dies: for so long that its end is past by any clock, and the attempt still remembered.
        let dead = rig.store.caller().with_lease(Duration::from_secs(5));
        dead.take(ids.iter().copied()).await;
        let begun = Instant::now();
        eventually("its lease is over", || async {
            assert_eq!(collector.collect().await, 0, "of a dead holder");
            (begun.elapsed() > Duration::from_secs(8)).then_some(())
        })
        .await;
        caller.refused_as_withdrawn(&request).await;
        let claims =
            |shared| ids.iter().map(move |&id| if shared { Claim::shared(id) } else { Claim::exclusive(id) });
        for shared in [false, true] {
            let next = rig.store.caller();
            let grant = next.take(claims(shared).collect::<Vec<_>>()).await;
            next.keep(&grant).await;
            next.free(&grant).await;
            assert_eq!(collector.collect().await, 0, "taken and freed, shared: {shared}");
            caller.refused_as_withdrawn(&request).await;
        }
        // Together, and left one after the other.
        let [one, two] = [rig.store.caller(), rig.store.caller()];
        let together = [
            one.take(claims(true).collect::<Vec<_>>()).await,
            two.take(claims(true).collect::<Vec<_>>()).await,
        ];
        one.keep(&together[0]).await;
        one.free(&together[0]).await;
        two.free(&together[1]).await;
        assert_eq!(collector.collect().await, 0, "left by several");
        caller.refused_as_withdrawn(&request).await;
        // A client that uses the ids later cleans up.
        rig.front.shift_date(60);
        let later = rig.other().await;
        later.free(&later.take(ids.iter().copied()).await).await;
        rig.front.shift_date(0);
        assert!(
            collector.items().await.iter().all(|item| !item.contains_key("marks")),
            "it is remembered for ever"
        );
        assert_eq!(collector.collect_in(70).await, ids.len(), "free, and forgotten");
    }
    Ok(())
}

/// Marks are added to an item that has some without replacing it; the item must be kept for the longest of them.
pub(super) async fn a_mark_beside_others_moves_the_end_of_its_item() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let collector = Collector::of(&rig);
    let holder = rig.store.caller().with_lease(Duration::from_secs(5));
    for ids in [&SET[..1], &["d", "e", "f"]] {
        // One item that is held, one that is free, one of which nothing is known.
        let held = holder.take([ids[0]]).await;
        if let Some(free) = ids.get(1) {
            holder.free(&holder.take([*free]).await).await;
        }
        for seconds in [30, 60, 90, 40] {
            let caller = rig.caller().with_lease(Duration::from_secs(seconds));
            let request = caller.request(ids.iter().copied());
            assert_eq!(caller.withdraw(&request, Withdraw::Undo).await, Withdrawn::Left);
            caller.refused_as_withdrawn(&request).await;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        for item in collector.items().await {
            let key = item["id"].as_s().map_err(|_| "a string")?;
            let Some(position) = ids.iter().position(|id| key.ends_with(&format!("#{id}"))) else { continue };
            assert_eq!(item["marks"].as_m().map(HashMap::len), Ok(4), "{item:?}");
            let expires: u64 = item["expires"].as_n().map_err(|_| "a number")?.parse()?;
            match position {
                0 => assert!((now + 80..now + 105).contains(&expires), "{expires} at {now}"),
                _ => assert_eq!(expires, 0, "free for others, and too old to be collected"),
            }
        }
        holder.free(&held).await;
    }
    Ok(())
}

pub(super) async fn what_is_held_is_never_collected() -> TestResult {
    let rig = Rig::new().await?;
    let collector = Collector::of(&rig);
    let lease = Duration::from_secs(5);
    let (one, two) = (rig.caller().with_lease(lease), rig.caller().with_lease(lease));
    let alone = one.take(["a"]).await;
    let claims = || [Claim::shared("b"), Claim::slots("c", 3)];
    let together = [one.take(claims()).await, two.take(claims()).await];
    rig.dao.freeze(&Target::Id("d".to_owned()), true).await?;
    for _ in 0..8 {
        tokio::time::sleep(lease / 5).await;
        assert_eq!(collector.collect().await, 0);
        one.keep(&alone).await;
        one.keep(&together[0]).await;
        two.keep(&together[1]).await;
    }
    two.refused(["a"]).await;
    two.refused(["d"]).await;
    one.free(&alone).await;
    one.free(&together[0]).await;
    assert_eq!(collector.collect().await, 1, "what is free, and not what another still holds");
    two.free(&together[1]).await;
    Ok(())
}

pub(super) async fn a_collected_lock_is_reported_and_taken_once() -> TestResult {
    let rig = Rig::new().await?;
    let collector = Collector::of(&rig);
    let holder = rig.caller().with_lease(Duration::from_secs(5));
    let held = holder.take(SET).await;
    eventually("the lease is over and collected", || async {
        (collector.collect().await == SET.len()).then_some(())
    })
    .await;
    let rivals: Vec<_> = (0..5).map(|_| rig.caller()).collect();
    let taken = race(rivals.len(), |number| {
        let rival = rivals[number].clone();
        async move { rival.try_take(SET).await.ok() }
    })
    .await;
    let taken: Vec<_> = taken.into_iter().flatten().collect();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert!(taken[0].locks[0].granted.fence > held.locks[0].granted.fence);
    let lost = holder.renew(&held).await.lost;
    assert_eq!(lost.len(), SET.len());
    assert!(lost.iter().all(|lost| lost.reason == LossReason::Vanished), "{lost:?}");
    assert_eq!(holder.release(&held).await.lost.len(), SET.len());
    rig.caller().refused(SET).await;
    Ok(())
}

/// Between what a step reads and what it writes, and between any two steps of many workers.
pub(super) async fn a_step_goes_on_where_its_items_are_collected() -> TestResult {
    let rig = Rig::new().await?;
    let collector = Collector::of(&rig);
    // A withdrawal has read free items, which are gone when it writes.
    for ids in [&["g"][..], &["h", "i", "j"]] {
        let caller = rig.caller();
        let before = caller.take(ids.iter().copied()).await;
        caller.free(&before).await;
        let request = caller.request(ids.iter().copied());
        let gate = Arc::new(Notify::new());
        let write = operation_of(ids.len());
        rig.front.counted();
        rig.front.next(write, Fault::Wait(gate.clone()), 1);
        let withdrawal = tokio::spawn({
            let (caller, request) = (caller.clone(), request.clone());
            async move { caller.withdraw(&request, Withdraw::Undo).await }
        });
        eventually("it is about to write", || async {
            rig.front.counted().contains_key(write).then_some(())
        })
        .await;
        assert_eq!(collector.collect().await, ids.len());
        gate.notify_one();
        assert_eq!(withdrawal.await?, Withdrawn::Left);
        caller.refused_as_withdrawn(&request).await;
        let next = rig.caller().take(ids.iter().copied()).await;
        rig.caller().free(&next).await;
    }
    // Workers whose items vanish whenever they may.
    let (inside, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let collecting = tokio::spawn({
        let (collector, done) = (collector.clone(), done.clone());
        async move {
            let mut removed = 0;
            while !done.load(SeqCst) {
                removed += collector.collect().await;
            }
            removed
        }
    });
    let workers: Vec<_> = (0..4).map(|_| rig.caller()).collect();
    race(workers.len(), |number| {
        let (worker, inside) = (workers[number].clone(), inside.clone());
        async move {
            for round in 0..15 {
                let together = worker.take_soon([Claim::shared("e"), Claim::slots("f", 4)]).await;
                let alone = worker.take_soon(&SET[round % 2..]).await;
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold the set");
                worker.keep(&alone).await;
                assert_eq!(inside.fetch_sub(1, SeqCst), 1);
                worker.free(&alone).await;
                worker.free(&together).await;
            }
        }
    })
    .await;
    done.store(true, SeqCst);
    let removed = collecting.await?;
    assert!(removed > 10, "{removed} items were collected");
    Ok(())
}
