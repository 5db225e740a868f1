//! Writes that come late, lose their answers, or are not needed.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use lockcore::{LockDao, backend::Acquired};
use tokio::time::sleep;
use uuid::Uuid;

use super::{
    Locks, SECOND,
    cells::{Way, World},
    id, request, take,
};
use crate::{CellLockDao, CellSettings};

/// Case 14: a process knows its own write again for as long as it looks for it.
#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_is_lost_for_minutes_is_no_loss() {
    let world = World::new();
    let dao = world.dao_with(world.process(), Duration::from_secs(300)).await;
    let lossy = dao.cell().clone();
    let locks = Locks::new(dao);
    let held = locks.lease(3600 * SECOND).lock(["a"]).await.expect("it is free");
    lossy.loses_answers.store(true, Relaxed);
    let releasing = tokio::spawn(held.release());
    let (other, _) = world.service().await;
    for _ in 0..150 {
        sleep(SECOND).await;
        other.lock(["b"]).await.expect("it is free").release().await.expect("it is held");
    }
    lossy.loses_answers.store(false, Relaxed);
    releasing.await.expect("no panic").expect("it was released");
}

/// Case 18: a namespace that is in use is not probed again, and a pair costs two writes.
#[tokio::test(start_paused = true)]
async fn a_pair_of_a_new_process_is_two_writes() {
    let world = World::new();
    let (first, _) = world.service().await;
    first.lock(["a"]).await.expect("it is free").release().await.expect("it is held");
    let before = world.counts();
    let (second, _) = world.service().await;
    second.lock(["a"]).await.expect("it is free").release().await.expect("it is held");
    let (reads, writes) = world.counts();
    assert_eq!((reads - before.0, writes - before.1), (1, 2));
    // A copy of the namespace, or another way to it, may ignore conditions.
    let settings =
        CellSettings { way: "elsewhere".to_owned(), ..CellSettings::new("cells", "cells in memory") };
    CellLockDao::<_, String, Uuid>::open(world.process(), settings).await.expect("it keeps conditions");
    assert!(world.counts().1 > writes, "it is probed");
}

/// 2.6: a refusal is true though a write of before, in which the request was granted, arrives after it.
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_granted_by_a_late_write() {
    let world = World::new();
    let dao = std::sync::Arc::new(world.dao_with(world.process(), 10 * SECOND).await);
    let held = take(&dao, "x").await;
    // While a slow write is under way the release and, much later, the request come into the next one, which is late.
    *dao.cell().next_writes.lock().expect("no panic") =
        [Way::Slow(8 * SECOND), Way::Late(6 * SECOND)].into_iter().collect();
    let slow = dao.clone();
    let slow = tokio::spawn(async move { slow.freeze(&id("z"), true).await });
    sleep(SECOND / 10).await;
    let (releasing, of) = (dao.clone(), held.clone());
    let releasing = tokio::spawn(async move { releasing.release(&of).await });
    sleep(76 * SECOND / 10).await;
    let wanted = request(&["x"]);
    let refused = dao.acquire(&wanted).await.expect("the store answers");
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    slow.await.expect("no panic").expect("the store answers");
    assert!(releasing.await.expect("no panic").is_err(), "its outcome is in doubt");
    sleep(10 * SECOND).await;
    let holders = dao.inspect(&id("x")).await.expect("the store answers").holders;
    assert_eq!(holders.iter().map(|holder| holder.fence).collect::<Vec<_>>(), [held.locks[0].granted.fence]);
}

/// An id stays thawed though an earlier request to freeze it, which was given up, arrives after that.
#[tokio::test(start_paused = true)]
async fn what_is_thawed_is_not_frozen_by_a_late_write() {
    let world = World::new();
    let dao = std::sync::Arc::new(world.dao_with(world.process(), 10 * SECOND).await);
    *dao.cell().next_writes.lock().expect("no panic") =
        [Way::Slow(8 * SECOND), Way::Late(6 * SECOND)].into_iter().collect();
    let slow = dao.clone();
    let slow = tokio::spawn(async move { slow.freeze(&id("z"), true).await });
    sleep(SECOND / 10).await;
    let given_up = dao.freeze(&id("x"), true).await.expect_err("its answer is late");
    assert!(given_up.in_doubt(), "{given_up}");
    slow.await.expect("no panic").expect("the store answers");
    dao.freeze(&id("x"), false).await.expect("the store answers");
    sleep(10 * SECOND).await;
    assert!(!dao.inspect(&id("x")).await.expect("the store answers").frozen);
}
