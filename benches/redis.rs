//! Redis over the loopback: the whole way through `with_locks`, beside the same scripts called by the bare client, minimal
//! scripts, a bare PUBLISH, and the crate `rlock`.

#[path = "redis/bare.rs"]
mod bare;
#[path = "redis/crowd.rs"]
mod crowd;
#[path = "redis/holders.rs"]
mod holders;
#[path = "redis/line.rs"]
mod line;
#[path = "redis/turns.rs"]
mod turns;

use std::time::Instant;

use lockcore::{LockingService, Wait};
use lockcore_benches::{Case, report};
use lockcore_conformance::servers::{Kind, Server, ServerError, Way};
use lockcore_redis::RedisLockDao;
use rlock::{LockKeys, async_lock::RLock};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::{
    bare::{Bare, Channel, Minimal},
    turns::Turns,
};

type Locks = LockingService<String, Uuid, RedisLockDao<String>>;

fn main() {
    let many = Runtime::new().expect("a runtime");
    let server = many.block_on(start()).expect("a server");
    let url = server.url();
    // On one thread: what it costs, not how fast one thread wakes another.
    let one = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut cases = Vec::new();
    for (part, ids) in [("pair", Ids::Repeated), ("fresh", Ids::Fresh)] {
        if !wanted(part) {
            continue;
        }
        for count in [1, 10, 100] {
            cases.push(one.block_on(pair("one thread", &url, ids, count)));
            // As a task: `block_on` itself would be on a thread of its own.
            let (of_many, url) = (many.handle().clone(), url.clone());
            let task = of_many.spawn(async move { pair("two threads", &url, ids, count).await });
            cases.push(many.block_on(task).expect("no panic"));
        }
    }
    if wanted("scripts") {
        for ids in [1, 10, 100] {
            cases.push(one.block_on(server_time(&url, ids)));
        }
    }
    if wanted("holders") {
        for holders in [1, 1000, 10_000] {
            cases.push(one.block_on(holders::of_one_id(&url, holders)));
        }
    }
    if wanted("hand-off") {
        cases.push(one.block_on(hand_off("hand-off, one thread", &url)));
        cases.push(many.block_on(hand_off("hand-off, two threads", &url)));
    }
    if wanted("line") {
        cases.push(many.block_on(line::hand_off(&server)));
        many.block_on(line::messages(&server));
    }
    report(&cases);
    if wanted("hot") {
        many.block_on(crowd::hot_ids(&url));
    }
    if wanted("crowd") {
        many.block_on(crowd::ten_thousand(&url));
    }
}

/// Whether the arguments name this part, or none.
fn wanted(part: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|argument| argument == part)
}

/// A process on the loopback: a container's network would be measured too.
async fn start() -> Result<Server, ServerError> {
    match Server::start_by(Kind::Redis, Way::Process).await {
        Err(ServerError::Unavailable { .. }) => Server::start(Kind::Redis).await,
        found => found,
    }
}

async fn service(url: &str) -> Locks {
    LockingService::new(RedisLockDao::<String>::open(url).await.expect("the server answers"))
}

fn names(ids: usize) -> Vec<String> {
    (0..ids).map(|number| format!("some/object/{number:03}")).collect()
}

/// Which ids a pair takes.
#[derive(Clone, Copy, PartialEq)]
enum Ids {
    /// The same again and again.
    Repeated,
    /// Such as were never seen before, as programs that write objects do.
    Fresh,
}

/// Takes and releases a set, uncontended.
async fn pair(runtime: &str, url: &str, ids: Ids, count: usize) -> Case {
    const ROUNDS: usize = 3000;
    let candidates = ["with_locks", "two bare EVALSHA, the same scripts", "rlock"];
    let kind = if ids == Ids::Fresh { "ids never seen before" } else { "ids" };
    let mut case = Case::new(format!("{count} {kind}, take and release, {runtime}"), &candidates);
    let make = || (0..count).map(|_| format!("some/object/{}", Uuid::new_v4())).collect::<Vec<_>>();
    let lock_keys = |names: &[String]| {
        LockKeys::new(names.iter().map(|name| format!("rlock:{name}"))).expect("different keys")
    };
    let (locks, mut names) = (service(url).await, make());
    let mut bare = Bare::of(url, &locks, &names).await;
    let peer = RLock::new(url).await.expect("the server answers");
    let mut keys = lock_keys(&names);
    // What one leaves to be done, such as tasks that end, falls on the next: so each comes as often after each.
    const ORDER: [usize; 9] = [0, 0, 1, 0, 2, 1, 1, 2, 2];
    for candidate in ORDER.iter().cycle().take(3 * ROUNDS) {
        if ids == Ids::Fresh {
            // Made for all, so that the caches are as warm.
            names = make();
            bare = bare.with_ids(&names);
            keys = lock_keys(&names);
        }
        match candidate {
            0 => case.once(0, async { locks.with_locks(&names, || async {}).await.expect("free") }).await,
            1 => {
                let pair = async {
                    bare.take().await;
                    bare.free().await;
                };
                case.once(1, pair).await;
            }
            _ => {
                let pair = async {
                    match keys.as_slice() {
                        [key] => {
                            let mut guard = peer.acquire_mutex(key).await.expect("free");
                            guard.release().await.expect("held");
                        }
                        _ => {
                            let mut guard = peer.acquire_multi_key_mutex(&keys).await.expect("free");
                            guard.release().await.expect("held");
                        }
                    }
                };
                case.once(2, pair).await;
            }
        }
    }
    peer.shutdown().await;
    case
}

/// What the server spends on the two scripts, by its own account.
async fn server_time(url: &str, ids: usize) -> Case {
    let candidates = ["both scripts, server time", "check-and-set and compare-and-delete", "rlock's scripts"];
    let mut case = Case::new(format!("{ids} ids, scripts only"), &candidates);
    let (locks, names) = (service(url).await, names(ids));
    let mut bare = Bare::of(url, &locks, &names).await;
    let mut minimal = Minimal::new(url, &names).await;
    let peer = RLock::new(url).await.expect("the server answers");
    let keys = LockKeys::new(names.iter().map(|name| format!("rlock:{name}"))).expect("different keys");
    for _ in 0..60 {
        let times = case.times(0);
        bare.server_time(times, async |bare| {
            bare.take().await;
            bare.free().await;
        })
        .await;
        minimal.server_time(case.times(1)).await;
        bare.server_time(case.times(2), async |_| {
            let mut guard = peer.acquire_multi_key_mutex(&keys).await.expect("free");
            guard.release().await.expect("held");
        })
        .await;
    }
    peer.shutdown().await;
    case
}

/// From when a holder's release is called to when the callback of a waiter runs that came through another connection,
/// as another process would.
async fn hand_off(name: &str, url: &str) -> Case {
    const ROUNDS: usize = 2000;
    let candidates = [
        "release -> the waiter's callback",
        "bare PUBLISH -> message",
        "bare release -> offer, the same scripts",
        "rlock",
    ];
    let mut case = Case::new(name, &candidates);
    let services = [service(url).await, service(url).await];
    let mut channel = Channel::open(url).await;
    let turns = [Turns::new(url, &services[0]).await, Turns::new(url, &services[0]).await];
    let peers = [RLock::new(url).await.expect("an answer"), RLock::new(url).await.expect("an answer")];
    for round in 0..ROUNDS {
        let (holder, waiter) = (&services[round % 2], services[(round + 1) % 2].clone());
        case.times(0).add(hand_over(holder, waiter).await, 1);
        case.times(1).add(channel.message().await, 1);
        case.times(2).add(take_turns(&services[0], &turns[round % 2], &turns[(round + 1) % 2]).await, 1);
        // It polls every 100 ms.
        if round % 40 == 0 {
            let (holder, waiter) = (&peers[round % 2], &peers[(round + 1) % 2]);
            let mut guard = holder.acquire_mutex("rlock:ball").await.expect("free");
            let waiting = waiter.acquire_mutex("rlock:ball");
            tokio::pin!(waiting);
            let asked = tokio::time::sleep(std::time::Duration::from_millis(5 + round as u64 % 97));
            tokio::select! { biased; _ = &mut waiting => panic!("it is held"), () = asked => {} }
            let released = Instant::now();
            let (freed, granted) = tokio::join!(guard.release(), waiting);
            freed.expect("held");
            let mut granted = granted.expect("for ever");
            case.times(3).add(released.elapsed(), 1);
            granted.release().await.expect("held");
        }
    }
    case
}

/// One hand-off: from the call of the release to the callback.
async fn hand_over(holder: &Locks, waiter: Locks) -> std::time::Duration {
    let guard = holder.lock(["ball"]).await.expect("free");
    let waiting = tokio::spawn(async move {
        waiter
            .wait(Wait::forever())
            .run_locked(["ball"], || async { Instant::now() })
            .await
            .expect("for ever")
    });
    while !is_waited_for(holder, "ball").await {}
    let released = Instant::now();
    guard.release().await.expect("held");
    waiting.await.expect("no panic").duration_since(released)
}

/// The same without a service.
async fn take_turns(locks: &Locks, holder: &Turns, waiter: &Turns) -> std::time::Duration {
    let (mut holder, mut waiter) = (holder.clone(), waiter.clone());
    let held = holder.take("bare ball").await;
    let waiting = tokio::spawn(async move {
        let turn = waiter.take("bare ball").await;
        let begun = Instant::now();
        waiter.free(turn).await;
        begun
    });
    while !is_waited_for(locks, "bare ball").await {}
    let released = Instant::now();
    holder.free(held).await;
    waiting.await.expect("no panic").duration_since(released)
}

async fn is_waited_for(locks: &Locks, id: &str) -> bool {
    let target = lockcore::Target::Id(id.to_owned());
    !locks.admin().inspect(&target).await.expect("redis").waiters.is_empty()
}
