//! Whole sets, atomically, and who excludes whom: sections 2.1 and 2.8.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockcore::Claim;

use crate::{
    Backend, Store, eventually, race,
    store::{exclusive, shared, slot},
};

/// 2.1, seed case: each context locks its own id and is refused the other's until that is released.
pub async fn two_contexts_exclude_each_other<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let a = one.take(["a"]).await;
    let b = two.take(["b"]).await;
    one.refused(["b"]).await;
    two.refused(["a"]).await;
    let again = one.take(["a"]).await;
    assert_eq!(a.locks, again.locks);
    one.free(&a).await;
    two.free(&b).await;
    let b = one.take(["b"]).await;
    let a = two.take(["a"]).await;
    one.free(&b).await;
    two.free(&a).await;
}

/// 2.1: of five contenders for a fresh id exactly one wins, round after round.
pub async fn one_of_five_contenders_wins<B: Backend>(store: Store<B>) {
    let crowd = store.crowd(5).await;
    for round in 0..40 {
        let wins = race(5, |number| {
            let caller = crowd[number].clone();
            async move { caller.try_take([format!("round {round}")]).await.is_ok() }
        })
        .await;
        assert_eq!(wins.iter().filter(|&&won| won).count(), 1, "round {round}: {wins:?}");
    }
}

/// 2.1, seed case: of five messages for one destination at once one gets through and four have to come
/// again; different destinations never block each other.
pub async fn one_of_five_messages_gets_through<B: Backend>(store: Store<B>) {
    let sent = race(10, |message| {
        let caller = store.caller();
        let destination = if message < 5 { "the same".to_owned() } else { format!("another {message}") };
        async move { caller.try_take([destination]).await.is_ok() }
    })
    .await;
    assert_eq!(sent[..5].iter().filter(|&&sent| sent).count(), 1, "{sent:?}");
    assert!(sent[5..].iter().all(|&sent| sent), "{sent:?}");
}

/// 2.1: wherever in the set the conflicting id stands, nothing of the refused set is left behind.
pub async fn a_conflict_at_any_position_leaves_nothing<B: Backend>(store: Store<B>) {
    let set = ["a", "b", "c", "d", "e"];
    for position in 0..set.len() {
        let [holder, refused, next] = store.callers();
        let held = holder.take([set[position]]).await;
        let conflicts = refused.refused(set).await;
        assert_eq!(conflicts.len(), 1);
        let others = set.iter().filter(|&&id| id != set[position]);
        let rest = next.take(others).await;
        next.free(&rest).await;
        holder.free(&held).await;
    }
}

/// 2.1: sets that overlap, asked for in every order, neither deadlock nor are held by two at once.
pub async fn overlapping_sets_never_deadlock<B: Backend>(store: Store<B>) {
    let sets = [["a", "b"], ["b", "a"], ["c", "a"], ["b", "c"]];
    let holders: Arc<[AtomicU64; 3]> = Arc::default();
    let crowd = store.crowd(sets.len()).await;
    race(sets.len(), |number| {
        let (caller, set, holders) = (crowd[number].clone(), sets[number], holders.clone());
        async move {
            let of = |id: &str| &holders[usize::from(id.as_bytes()[0] - b'a')];
            for _ in 0..10 {
                let grant = caller.take_soon(set).await;
                for id in set {
                    assert_eq!(of(id).fetch_add(1, Ordering::SeqCst), 0, "{id} is held by two");
                }
                tokio::task::yield_now().await;
                for id in set {
                    of(id).fetch_sub(1, Ordering::SeqCst);
                }
                caller.free(&grant).await;
            }
        }
    })
    .await;
}

/// 2.1: a counter that is read and written under one lock by many loses nothing.
pub async fn a_counter_under_contention_loses_nothing<B: Backend>(store: Store<B>) {
    const WORKERS: usize = 8;
    const ROUNDS: u64 = 15;
    let counter = Arc::new(AtomicU64::new(0));
    let crowd = store.crowd(WORKERS).await;
    race(WORKERS, |number| {
        let (caller, counter) = (crowd[number].clone(), counter.clone());
        async move {
            for _ in 0..ROUNDS {
                let grant = caller.take_soon(["counter"]).await;
                let read = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(read + 1, Ordering::SeqCst);
                caller.free(&grant).await;
            }
        }
    })
    .await;
    assert_eq!(counter.load(Ordering::SeqCst), WORKERS as u64 * ROUNDS);
}

/// 2.8: shared holders come together, and exclude and are excluded only by exclusive ones.
pub async fn shared_excludes_only_exclusive<B: Backend>(store: Store<B>) {
    if !store.capabilities().shared {
        return;
    }
    let [reader, other, writer] = store.callers();
    let first = reader.take([shared("a")]).await;
    let second = other.take([shared("a")]).await;
    assert_eq!((first.locks[0].granted.in_use, second.locks[0].granted.in_use), (1, 2));
    writer.refused([exclusive("a")]).await;
    reader.free(&first).await;
    writer.refused([exclusive("a")]).await;
    other.free(&second).await;
    let written = writer.take([exclusive("a")]).await;
    reader.refused([shared("a")]).await;
    writer.free(&written).await;
    reader.take([shared("a")]).await;
}

/// 2.1 and 2.8: a set of claims of every kind is taken whole or not at all.
pub async fn a_mixed_set_is_all_or_nothing<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.shared && declared.slots) {
        return;
    }
    let set = || [exclusive("account"), shared("tariff"), slot("export", 2)];
    let [one, two, three] = store.callers();
    let held = one.take(set()).await;
    assert_eq!(two.refused(set()).await.len(), 1, "only the exclusive id is in the way");
    let rest = two.take([shared("tariff"), slot("export", 2)]).await;
    assert_eq!(three.refused(set()).await.len(), 2, "the exclusive id, and the slots");
    one.free(&held).await;
    let more = [exclusive("account"), exclusive("tariff"), slot("export", 1)];
    assert_eq!(three.refused(more).await.len(), 2, "the shared id, and the slots");
    two.free(&rest).await;
    let held = three.take(set()).await;
    three.free(&held).await;
}

/// 11.2: a claim on a path, with a slash at its end or without, excludes those on it, below and above it, and none beside it;
/// whichever was there first.
pub async fn a_subtree_excludes_what_is_below<B: Backend>(store: Store<B>) {
    if !store.capabilities().shared {
        return;
    }
    let path = |path| Claim::subtree("s3://b/", path).expect("it is below the top");
    let [one, two] = store.callers();
    let related =
        ["s3://b/bag/7/data/1", "s3://b/bag/7/x/", "s3://b/bag/7", "s3://b/bag/7/", "s3://b/bag", "s3://b/"];
    for bag in ["s3://b/bag/7", "s3://b/bag/7/"] {
        let held = one.take(path(bag)).await;
        for other in related {
            assert_eq!(two.refused(path(other)).await.len(), 1, "{other} while {bag} is held");
        }
        for beside in ["s3://b/bag/70", "s3://b/bag/8/data/1", "s3://b/x"] {
            let held = two.take(path(beside)).await;
            two.free(&held).await;
        }
        one.free(&held).await;
        for other in related {
            let held = two.take(path(other)).await;
            assert_eq!(one.refused(path(bag)).await.len(), 1, "{bag} while {other} is held");
            two.free(&held).await;
        }
    }
}

/// 2.8: a slot claim and an exclusive one exclude each other; shared and slots go together.
pub async fn slots_and_other_modes<B: Backend>(store: Store<B>) {
    let declared = store.capabilities();
    if !(declared.shared && declared.slots) {
        return;
    }
    let [one, two, three] = store.callers();
    let permit = one.take([slot("a", 1)]).await;
    let read = two.take([shared("a")]).await;
    three.refused([exclusive("a")]).await;
    three.refused([slot("a", 1)]).await;
    one.free(&permit).await;
    let permit = three.take([slot("a", 1)]).await;
    two.free(&read).await;
    one.refused([exclusive("a")]).await;
    three.free(&permit).await;
    let alone = one.take([exclusive("a")]).await;
    two.refused([slot("a", 5)]).await;
    one.free(&alone).await;
}

/// 1: what is locked in one namespace is free in another.
pub async fn namespaces_are_apart<B: Backend>(store: Store<B>) {
    let elsewhere = store.another().await;
    let (here, there) = (store.caller(), elsewhere.caller());
    let mine = here.take(["a"]).await;
    let theirs = there.take(["a"]).await;
    here.free(&mine).await;
    store.caller().take(["a"]).await;
    elsewhere.caller().refused(["a"]).await;
    there.free(&theirs).await;
}

/// 3.4: the global lock excludes those who ask for it, and no others.
pub async fn the_global_lock_excludes_its_askers<B: Backend>(store: Store<B>) {
    let [one, two] = store.callers();
    let everything = one.take([Claim::<String>::global()]).await;
    let other = two.take(["a"]).await;
    let conflicts = two.refused([Claim::<String>::global()]).await;
    assert_eq!(conflicts[0].target, lockcore::Target::Global);
    one.free(&everything).await;
    let everything = two.take([Claim::<String>::global(), exclusive("b")]).await;
    two.free(&everything).await;
    two.free(&other).await;
}

/// 2.1 and seed case: 50 and 100 ids of one context are taken in one step and freed in one.
pub async fn large_sets_are_taken_and_freed<B: Backend>(store: Store<B>) {
    assert!(store.capabilities().max_ids >= 100, "100 ids are possible everywhere");
    for size in [50, 100] {
        let set: Vec<String> = (0..size).map(|number| format!("{size}/{number}")).collect();
        let [one, two] = store.callers();
        let held = one.take(&set).await;
        assert_eq!(two.refused(&set).await.len(), size);
        one.free(&held).await;
        let held = two.take(&set).await;
        two.free(&held).await;
    }
}

/// 2.1: when one taker is refused because another set is just being taken, asking again finds it free or held:
/// nothing stays half taken.
pub async fn racing_overlapping_sets_leave_nothing<B: Backend>(store: Store<B>) {
    let sets = [vec!["a", "b", "c"], vec!["c", "d", "e"], vec!["e", "f", "a"]];
    let crowd = store.crowd(sets.len()).await;
    for _ in 0..15 {
        let grants = race(sets.len(), |number| {
            let (caller, set) = (crowd[number].clone(), sets[number].clone());
            async move { caller.try_take(set).await.ok().map(|grant| (caller, grant)) }
        })
        .await;
        let won: Vec<_> = grants.into_iter().flatten().collect();
        assert_eq!(won.len(), 1, "each two of the sets overlap, and one wins");
        for (caller, grant) in &won {
            caller.free(grant).await;
        }
        let all = store.caller();
        let grant = all.take(["a", "b", "c", "d", "e", "f"]).await;
        all.free(&grant).await;
    }
    eventually("everything is free", || async { store.caller().try_take(["a", "f"]).await.ok() }).await;
}
