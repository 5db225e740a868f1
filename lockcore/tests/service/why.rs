//! Why an id cannot be had: holders, and what they wait for.

use std::sync::Arc;

use lockcore::{LockingService, MAX_WAITS_LISTED, Target, Uuid, Wait};
use lockcore_conformance::eventually;
use lockcore_memory::MemoryLockDao;

type Locks = LockingService<String, Uuid, Arc<MemoryLockDao>>;

fn id(id: &str) -> Target<String> {
    Target::Id(id.to_owned())
}

/// Takes `has` and waits for `wants` until the test ends.
fn hold_and_wait(locks: &Locks, owner: &'static str, has: &'static str, wants: &'static str) {
    let locks = locks.clone();
    tokio::spawn(async move {
        let _guard = locks.owner(owner).lock([has]).await.unwrap();
        let _never = locks.owner(owner).wait(Wait::forever()).lock([wants]).await;
    });
}

async fn one_waits_for(locks: &Locks, wanted: &str) {
    eventually("one waits", || async {
        (locks.admin().inspect(&id(wanted)).await.unwrap().waiters.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn holders_are_followed_to_what_they_wait_for() {
    let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
    let _last = locks.owner("worker \"3\"").lock(["c"]).await.unwrap();
    hold_and_wait(&locks, "worker 2", "b", "c");
    one_waits_for(&locks, "c").await;
    hold_and_wait(&locks, "worker 1", "a", "b");
    one_waits_for(&locks, "b").await;

    let why = locks.admin().why(&id("a")).await.unwrap();
    let ids: Vec<_> = why.ids.iter().map(|seen| seen.target.clone().unwrap()).collect();
    assert_eq!(ids, [id("a"), id("b"), id("c")]);
    assert_eq!(why.cycle(), None);
    let text = why.to_string();
    assert!(text.contains("\"a\" is held\n  by worker 1, exclusive"), "{text}");
    assert!(text.contains("\"b\" is held, and 1 waits\n  by worker 2, exclusive"), "{text}");
    assert!(text.contains("which waits for \"c\""), "{text}");
    let dot = why.to_dot();
    assert!(dot.contains(r#"id2h0 [label="worker \\\"3\\\""]"#), "{dot}");
    assert!(dot.contains(r#"id0h0 -> id1 [label="waits for"]"#), "{dot}");
}

#[tokio::test]
async fn a_cycle_is_shown() {
    let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
    for (owner, has, wants) in [("1", "a", "b"), ("2", "b", "c"), ("3", "c", "a")] {
        let locks = locks.clone();
        let guard = locks.owner(owner).lock([has]).await.unwrap();
        tokio::spawn(async move {
            let _held = guard;
            let _never = locks.owner(owner).wait(Wait::forever()).lock([wants]).await;
        });
    }
    for wanted in ["a", "b", "c"] {
        one_waits_for(&locks, wanted).await;
    }
    let why = locks.admin().why(&id("b")).await.unwrap();
    assert_eq!(why.cycle().map(|cycle| cycle.len()), Some(3));
    assert!(why.to_string().ends_with("cycle: \"b\" -> \"c\" -> \"a\" -> \"b\""), "{why}");
}

#[tokio::test]
async fn a_free_id_has_no_reason() {
    let locks = LockingService::new(Arc::new(MemoryLockDao::<String>::new()));
    assert_eq!(locks.admin().why(&id("a")).await.unwrap().to_string(), "\"a\" is free");
}

#[tokio::test]
async fn a_label_that_several_calls_share_shows_nothing() {
    let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
    let ids: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    for number in 0..ids.len() {
        let (locks, has, wants) = (locks.clone(), ids[number].clone(), ids[(number + 1) % ids.len()].clone());
        tokio::spawn(async move {
            let _guard = locks.owner("a process").lock([has]).await.unwrap();
            // Others hold all ids by now.
            tokio::task::yield_now().await;
            let _never = locks.owner("a process").wait(Wait::forever()).lock([wants]).await;
        });
    }
    for wanted in &ids {
        one_waits_for(&locks, wanted).await;
    }
    let why = locks.admin().why(&id("0")).await.unwrap();
    assert_eq!((why.ids.len(), &why.waits[..], why.cycle()), (1, &[][..], None), "{why}");
    assert!(!why.is_cut_off);
}

#[tokio::test]
async fn the_waits_that_are_listed_are_bounded() {
    let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
    let half = |name: &str| (0..40).map(|number| format!("{name}{number}")).collect::<Vec<_>>();
    for (owner, has, wants) in [("one", half("a"), half("b")), ("other", half("b"), half("a"))] {
        let guard = locks.owner(owner).lock(&has).await.unwrap();
        let locks = locks.clone();
        tokio::spawn(async move {
            let _held = guard;
            let _never = locks.owner(owner).wait(Wait::forever()).lock(wants).await;
        });
    }
    for wanted in ["a0", "b0"] {
        one_waits_for(&locks, wanted).await;
    }
    // Each of 40 ids of one is held by a context that waits for each of 40 of the other: 3200 waits.
    let why = locks.admin().why(&id("a0")).await.unwrap();
    assert_eq!((why.waits.len(), why.is_cut_off), (MAX_WAITS_LISTED, true));
    assert_eq!(why.cycle().map(|cycle| cycle.len()), Some(2));
    assert!(why.to_string().ends_with("only the first 1000 waits are listed"), "{why}");
}
