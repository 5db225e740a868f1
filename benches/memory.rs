//! Memory: the whole way through `with_locks`, beside in-process peers.

use std::{
    collections::{BTreeSet, HashMap},
    hint::black_box,
    sync::{Arc, Barrier, Mutex},
    time::{Duration, Instant},
};

use lockable::LockPool;
use lockcore::{
    Claim, ClaimSet, LockDao, LockingService, Mode, Owner, Wait,
    backend::{AcquireRequest, AttemptId},
};
use lockcore_benches::{Case, report, resident_bytes};
use lockcore_memory::MemoryLockDao;
use lockmap::LockMap;
use tokio::{runtime::Runtime, sync::Notify};
use uuid::Uuid;

type Memory = LockingService<String, Uuid, MemoryLockDao<String>>;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut cases = vec![runtime.block_on(one_id())];
    if std::env::args().any(|argument| argument == "--quick") {
        return report(&cases);
    }
    cases.push(runtime.block_on(ten_ids()));
    cases.push(runtime.block_on(hand_off("hand-off between tasks, one thread")));
    cases.push(runtime.block_on(dao_only()));
    let multi = Runtime::new().expect("a runtime");
    cases.push(multi.block_on(hand_off("hand-off between tasks, two threads")));
    report(&cases);
    two_threads();
    runtime.block_on(a_million_held());
    runtime.block_on(many_waiters());
}

fn service() -> Memory {
    LockingService::new(MemoryLockDao::<String>::new())
}

async fn one_id() -> Case {
    let mut case = Case::new("one id, uncontended", &["with_locks", "lockmap", "lockable"]);
    let (locks, map, pool) = (service(), LockMap::<String, ()>::new(), LockPool::<String>::new());
    for _ in 0..2000 {
        case.batch_async(0, 500, async || {
            locks.with_locks([black_box("some/object")], || async {}).await.expect("free");
        })
        .await;
        case.batch(1, 500, || drop(map.entry(black_box("some/object").to_owned())));
        case.batch_async(2, 500, async || drop(pool.async_lock(black_box("some/object").to_owned()).await))
            .await;
    }
    case
}

async fn ten_ids() -> Case {
    let mut case = Case::new("a set of 10", &["with_locks", "lockmap::batch_lock"]);
    let (locks, map) = (service(), LockMap::<String, ()>::new());
    let names: Vec<String> = (0..10).map(|number| format!("some/object/{number}")).collect();
    for _ in 0..2000 {
        case.batch_async(0, 100, async || {
            locks.with_locks(black_box(&names), || async {}).await.expect("free");
        })
        .await;
        case.batch(1, 100, || {
            let keys: BTreeSet<String> = black_box(&names).iter().cloned().collect();
            drop(map.batch_lock::<HashMap<_, _>>(keys));
        });
    }
    case
}

async fn dao_only() -> Case {
    let mut case = Case::new("one id, the backend alone", &["acquire + release", "lockmap"]);
    let (dao, map) = (MemoryLockDao::<String>::new(), LockMap::<String, ()>::new());
    for _ in 0..2000 {
        case.batch_async(0, 500, async || hold_for_ever(&dao, black_box("some/object")).await).await;
        case.batch(1, 500, || drop(map.entry(black_box("some/object").to_owned())));
        async fn hold_for_ever(dao: &MemoryLockDao<String>, id: &str) {
            let request = request(id);
            let lockcore::backend::Acquired::Granted(granted) = dao.acquire(&request).await.expect("memory")
            else {
                panic!("not free")
            };
            let grant = lockcore::Grant::new(request.context, request.claims, granted, None);
            dao.release(&grant).await.expect("memory");
        }
    }
    case
}

fn request(id: &str) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([Claim::exclusive(id)], Mode::Exclusive).expect("a good id"),
        lease: None,
        owner: Owner::default(),
        queue: false,
        nested: false,
        detached: false,
    }
}

/// From when a holder's callback ends to when the waiter's callback runs; beside it, from when one task notifies
/// another to when it is notified back.
async fn hand_off(name: &str) -> Case {
    const ROUNDS: u32 = 20_000;
    let case = Arc::new(Mutex::new(Case::new(
        name,
        &["release -> the waiter's callback", "tokio Notify ping-pong"],
    )));
    let since = Arc::new(Mutex::new(Instant::now()));
    let arrived = |candidate: usize, case: &Mutex<Case>, since: &Mutex<Instant>| {
        let elapsed = since.lock().expect("no panic").elapsed();
        case.lock().expect("no panic").times(candidate).add(elapsed, 1);
    };
    let leaving = |since: &Mutex<Instant>| *since.lock().expect("no panic") = Instant::now();
    for _ in 0..5 {
        let locks = service();
        // Told to come, and told that the other one comes: so each release finds a waiter, and no client is ever runnable
        // but the one whose turn it is.
        let go = Arc::new([Notify::new(), Notify::new()]);
        let coming = Arc::new([Notify::new(), Notify::new()]);
        let players = [0, 1].map(|me: usize| {
            let (locks, case, since) = (locks.clone(), case.clone(), since.clone());
            let (go, coming) = (go.clone(), coming.clone());
            tokio::spawn(async move {
                for round in 0..ROUNDS / 2 {
                    if (me, round) != (0, 0) {
                        go[me].notified().await;
                        coming[1 - me].notify_one();
                    }
                    let callback = async || {
                        if (me, round) != (0, 0) {
                            arrived(0, &case, &since);
                        }
                        if (me, round) != (1, ROUNDS / 2 - 1) {
                            go[1 - me].notify_one();
                            coming[me].notified().await;
                        }
                        leaving(&since);
                    };
                    locks.wait(Wait::forever()).with_locks(["ball"], callback).await.expect("for ever");
                }
            })
        });
        for player in players {
            player.await.expect("no panic");
        }

        let notifies = Arc::new([Notify::new(), Notify::new()]);
        let there = {
            let (notifies, case, since) = (notifies.clone(), case.clone(), since.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    leaving(&since);
                    notifies[1].notify_one();
                    notifies[0].notified().await;
                    arrived(1, &case, &since);
                }
            })
        };
        let back = tokio::spawn(async move {
            for _ in 0..ROUNDS {
                notifies[1].notified().await;
                notifies[0].notify_one();
            }
        });
        for player in [there, back] {
            player.await.expect("no panic");
        }
    }
    Arc::into_inner(case).expect("the players are gone").into_inner().expect("no panic")
}

/// Throughput of two threads on disjoint ids over that of one.
fn two_threads() {
    let ours = |threads| {
        let locks = service();
        throughput(threads, move |thread, operations| {
            let locks = locks.clone();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let name = format!("some/object/{thread}");
            runtime.block_on(async {
                for _ in 0..operations {
                    locks.with_locks([black_box(&name)], || async {}).await.expect("free");
                }
            });
        })
    };
    let peer = |threads| {
        let map = Arc::new(LockMap::<String, ()>::new());
        throughput(threads, move |thread, operations| {
            let name = format!("some/object/{thread}");
            for _ in 0..operations {
                drop(map.entry(black_box(&name).clone()));
            }
        })
    };
    let median = |measure: &dyn Fn() -> f64| {
        let mut ratios: Vec<f64> = (0..9).map(|_| measure()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[4]
    };
    let (ours, peer) = (median(&|| ours(2) / ours(1)), median(&|| peer(2) / peer(1)));
    println!(
        "two threads on disjoint ids, throughput over that of one thread: with_locks {ours:.2}, lockmap {peer:.2}"
    );
}

fn throughput(threads: usize, work: impl Fn(usize, u32) + Clone + Send + 'static) -> f64 {
    const OPERATIONS: u32 = 400_000;
    let barrier = Arc::new(Barrier::new(threads + 1));
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let (barrier, work) = (barrier.clone(), work.clone());
            std::thread::spawn(move || {
                barrier.wait();
                work(thread, OPERATIONS);
            })
        })
        .collect();
    barrier.wait();
    let start = Instant::now();
    for worker in workers {
        worker.join().expect("no panic");
    }
    threads as f64 * f64::from(OPERATIONS) / start.elapsed().as_secs_f64()
}

async fn a_million_held() {
    const LOCKS: usize = 1_000_000;
    let dao = MemoryLockDao::<String>::new();
    let before = resident_bytes();
    let start = Instant::now();
    for number in 0..LOCKS {
        dao.acquire(&request(&format!("some/object/{number:07}"))).await.expect("memory");
    }
    let (bytes, elapsed) = (resident_bytes() - before, start.elapsed());
    println!(
        "1 000 000 locks held: {} bytes a lock, an id of 19 bytes each, taken in {elapsed:.1?}",
        bytes / LOCKS as u64
    );
    drop(dao);
    let locks = service();
    let before = resident_bytes();
    let mut guards = Vec::with_capacity(LOCKS);
    for number in 0..LOCKS {
        guards.push(locks.lock([format!("some/object/{number:07}")]).await.expect("free"));
    }
    println!("the same with a guard for each: {} bytes", (resident_bytes() - before) / LOCKS as u64);
}

/// Ours, and `tokio::sync::Mutex` in the same shape: what the machine's caches make of ten times as many tasks.
async fn many_waiters() {
    let locks = service();
    let ours = async |waiters| {
        let first = locks.lock(["hot"]).await.expect("free");
        let wait = async |number, order: Arc<Mutex<Vec<u32>>>, locks: Memory| {
            let granted = || async { order.lock().expect("no panic").push(number) };
            locks.wait(Wait::forever()).with_locks(["hot"], granted).await.expect("for ever");
        };
        crowd(
            waiters,
            |number, order| wait(number, order, locks.clone()),
            async || first.release().await.expect("held"),
        )
        .await
    };
    let mutex = Arc::new(tokio::sync::Mutex::new(()));
    let peer = async |waiters| {
        let first = mutex.clone().lock_owned().await;
        let wait = async |number, order: Arc<Mutex<Vec<u32>>>, mutex: Arc<tokio::sync::Mutex<()>>| {
            let _held = mutex.lock().await;
            order.lock().expect("no panic").push(number);
        };
        crowd(waiters, |number, order| wait(number, order, mutex.clone()), async || drop(first)).await
    };
    let (mut few, mut many) = ([Duration::MAX; 2], [Duration::MAX; 2]);
    for _ in 0..5 {
        few = [few[0].min(ours(1000).await), few[1].min(peer(1000).await)];
        many = [many[0].min(ours(10_000).await), many[1].min(peer(10_000).await)];
    }
    for (name, few, many) in [("with_locks", few[0], many[0]), ("tokio Mutex", few[1], many[1])] {
        let (few, many) = (few / 1000, many / 10_000);
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!(
            "{name}: waiters on one id, granted in order: {few:.0?} each of 1000, {many:.0?} each of 10 000 ({ratio:.2})"
        );
    }
}

/// Lets `waiters` tasks come to wait, then opens the gate; gives how long it took until all had been there.
async fn crowd<F: Future<Output = ()> + Send + 'static>(
    waiters: u32,
    wait: impl Fn(u32, Arc<Mutex<Vec<u32>>>) -> F,
    open: impl AsyncFnOnce(),
) -> Duration {
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..waiters).map(|number| tokio::spawn(wait(number, order.clone()))).collect();
    // On one thread every task has taken its place when this one runs again.
    tokio::task::yield_now().await;
    let start = Instant::now();
    open().await;
    for task in tasks {
        task.await.expect("no panic");
    }
    let elapsed = start.elapsed();
    let order = order.lock().expect("no panic");
    assert!(order.is_sorted() && order.len() == waiters as usize, "granted in order");
    elapsed
}
