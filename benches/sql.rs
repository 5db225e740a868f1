//! SQL servers over the loopback: the whole way through `with_locks`, by routines and by plain statements, beside the bare statements
//! at the same durability, a lock of the database's own, and a bare wake-up.
//!
//! `cargo bench -p lockcore-benches --bench sql -- postgres pairs` runs some of it: words choose servers and parts (`pairs`,
//! `hand-off`, `crowd`, `queues`, `line`, `full`).

#[path = "sql/bare.rs"]
mod bare;
#[path = "sql/crowd.rs"]
mod crowd;
#[path = "sql/full.rs"]
mod full;
#[path = "sql/line.rs"]
mod line;
#[path = "sql/mysql.rs"]
mod mysql;
#[path = "sql/postgres.rs"]
mod postgres;

use std::time::{Duration, Instant};

use lockcore::{LockDao, LockingService, Target, Wait};
use lockcore_benches::{Case, report};
use lockcore_conformance::servers::{Kind, Server, ServerError, Way};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::{
    bare::{Bare, Commits, Database, Notifier},
    mysql::Mysql,
    postgres::Postgres,
};

type Locks<L> = LockingService<String, Uuid, L>;

fn main() {
    run::<Postgres>(Kind::Postgres);
    run::<Mysql>(Kind::MariaDb);
    run::<Mysql>(Kind::MySql);
}

/// Whether the arguments choose `word` of `others`, or none of these.
fn chosen(word: &str, others: &[&str]) -> bool {
    let mut words = std::env::args().skip(1).filter(|argument| others.contains(&&**argument)).peekable();
    words.peek().is_none() || words.any(|argument| argument == word)
}

fn run<D: Database>(kind: Kind) {
    if !chosen(kind.name(), &["postgres", "mariadb", "mysql"]) {
        return;
    }
    let chosen = |part| chosen(part, &["pairs", "hand-off", "crowd", "queues", "line", "full"]);
    let many = Runtime::new().expect("a runtime");
    let server = many.block_on(start(kind)).expect("a server");
    let url = server.url();
    println!("\n{kind}");
    // On one thread: what it costs, not how fast one thread wakes another.
    let one = Builder::new_current_thread().enable_all().build().expect("a runtime");
    if chosen("pairs") {
        let mut cases = Vec::new();
        for commits in [Commits::Usual, Commits::Async] {
            for ids in [1, 10, 100] {
                cases.push(one.block_on(pair::<D>(&url, commits, ids)));
                cases.push(many.block_on(fresh_pair::<D>(&url, commits, ids)));
            }
        }
        report(&cases);
    }
    if chosen("hand-off") {
        let hand_off = async |commits| hand_off::<D>(&url, commits).await;
        report(&[one.block_on(hand_off(Commits::Usual)), one.block_on(hand_off(Commits::Async))]);
    }
    if chosen("crowd") {
        many.block_on(crowd::throughput::<D>(&url));
    }
    if chosen("queues") {
        many.block_on(crowd::queues::<D>(&url));
    }
    if chosen("line") {
        many.block_on(line::messages::<D>(&server));
    }
    if chosen("full") {
        report(&one.block_on(full::cases::<D>(&url)));
    }
}

/// A process on the loopback, if there is one: a container's network would be measured too.
async fn start(kind: Kind) -> Result<Server, ServerError> {
    match Server::start_by(kind, Way::Process).await {
        Err(ServerError::Unavailable { .. }) => Server::start(kind).await,
        found => found,
    }
}

async fn service<D: Database>(url: &str, commits: Commits) -> Locks<D::Dao> {
    LockingService::new(D::open(url, commits, "lockcore_").await)
}

async fn by_statements<D: Database>(url: &str, commits: Commits) -> Locks<D::Statements> {
    LockingService::new(D::open_without_routines(url, commits, "statements_").await)
}

fn names(ids: usize) -> Vec<String> {
    (0..ids).map(|number| format!("some/object/{number:03}")).collect()
}

/// Returns ids that were never seen before, sorted.
fn fresh(ids: usize) -> Vec<String> {
    let mut names: Vec<_> = (0..ids).map(|_| format!("some/object/{}", Uuid::new_v4())).collect();
    names.sort();
    names
}

/// Takes and releases a set, uncontended. Each candidate has a connection of its own, and five turns at a time: what comes
/// first after another one also tells how long the server takes to get a thread going that others kept from the processor.
async fn pair<D: Database>(url: &str, commits: Commits, ids: usize) -> Case {
    let rounds = if ids == 100 { 60 } else { 200 };
    let turns = 5;
    let candidates = [
        "with_locks",
        "upsert + delete",
        "rows kept for a fence: UPDATE + UPDATE",
        "upsert + delete, one by one",
        D::PEER,
        "with_locks, any of three times as many ids",
        "by statements",
        "by statements, any of three times as many ids",
    ];
    let mut case = Case::new(format!("{ids} ids, {commits}"), &candidates);
    let (locks, names) = (service::<D>(url, commits).await, names(ids));
    let (changing, mut pool) = (service::<D>(url, commits).await, self::names(4 * ids).split_off(ids));
    let [statements, others_by_statements] =
        [by_statements::<D>(url, commits).await, by_statements::<D>(url, commits).await];
    let [mut bare, mut kept, mut others] =
        [D::bare(url, commits).await, D::bare(url, commits).await, D::bare(url, commits).await];
    for round in 0..rounds {
        for _ in 0..turns {
            case.once(0, async { locks.with_locks(&names, || async {}).await.expect("free") }).await;
        }
        for _ in 0..turns {
            case.once(1, async {
                bare.take(&names).await;
                bare.free(&names).await;
            })
            .await;
        }
        for _ in 0..turns {
            case.once(2, async {
                kept.take_kept(&names).await;
                kept.free_kept(&names).await;
            })
            .await;
        }
        for _ in 0..turns {
            fastrand::shuffle(&mut pool);
            let names = &pool[..ids];
            case.once(5, async { changing.with_locks(names, || async {}).await.expect("free") }).await;
        }
        for _ in 0..turns {
            case.once(6, async { statements.with_locks(&names, || async {}).await.expect("free") }).await;
        }
        for _ in 0..turns {
            fastrand::shuffle(&mut pool);
            let call = others_by_statements.with_locks(&pool[..ids], || async {});
            case.once(7, async { call.await.expect("free") }).await;
        }
        // The others cost more with many ids, and are seldom asked then.
        if round % ids.min(10) == 0 {
            case.once(3, async {
                for name in &names {
                    others.take(std::slice::from_ref(name)).await;
                }
                for name in &names {
                    others.free(std::slice::from_ref(name)).await;
                }
            })
            .await;
            case.once(4, async {
                for name in &names {
                    others.peer(name).await;
                }
            })
            .await;
        }
    }
    case
}

/// Takes and releases ids that were never seen before, as programs that write objects do: the same as [`pair`], in a task of a
/// runtime with several threads.
async fn fresh_pair<D: Database>(url: &str, commits: Commits, ids: usize) -> Case {
    let (rounds, turns) = (if ids == 100 { 60 } else { 200 }, 5);
    let candidates = ["with_locks", "upsert + delete", "by statements"];
    let mut case = Case::new(format!("{ids} ids never seen before, {commits}"), &candidates);
    let (locks, mut bare) = (service::<D>(url, commits).await, D::bare(url, commits).await);
    let statements = by_statements::<D>(url, commits).await;
    for _ in 0..rounds {
        for _ in 0..turns {
            let names = fresh(ids);
            case.once(0, async { locks.with_locks(&names, || async {}).await.expect("free") }).await;
        }
        for _ in 0..turns {
            let names = fresh(ids);
            case.once(2, async { statements.with_locks(&names, || async {}).await.expect("free") }).await;
        }
        for _ in 0..turns {
            let names = fresh(ids);
            case.once(1, async {
                bare.take(&names).await;
                bare.free(&names).await;
            })
            .await;
        }
    }
    case
}

/// From when a holder's release is called to when the callback of a waiter runs that came through another connection,
/// as another process would.
async fn hand_off<D: Database>(url: &str, commits: Commits) -> Case {
    const ROUNDS: usize = 1000;
    let candidates = ["release -> the waiter's callback", D::WAKING, D::WRITING, "by statements"];
    let mut case = Case::new(format!("hand-off, {commits}"), &candidates);
    let services = [service::<D>(url, commits).await, service::<D>(url, commits).await];
    let statements = [by_statements::<D>(url, commits).await, by_statements::<D>(url, commits).await];
    let mut notifier = D::notifier(url, commits).await;
    for round in 0..ROUNDS {
        case.times(0).add(hand_over(&services, round).await, 1);
        case.times(1).add(notifier.notify().await, 1);
        case.times(2).add(notifier.write_and_notify().await, 1);
        // It takes long where there is nothing to listen to.
        if round % 5 == 0 {
            case.times(3).add(hand_over(&statements, round).await, 1);
        }
    }
    case
}

/// One hand-off: from the call of the release to the callback.
async fn hand_over<L: LockDao<String, Uuid>>(services: &[Locks<L>; 2], round: usize) -> Duration {
    let (holder, waiter) = (&services[round % 2], &services[(round + 1) % 2]);
    let guard = holder.lock(["ball"]).await.expect("free");
    let callback = || async { Instant::now() };
    let waiting = waiter.wait(Wait::forever());
    let waiting = waiting.run_locked(["ball"], callback);
    let release = async {
        let target = Target::Id("ball".to_owned());
        while holder.admin().inspect(&target).await.expect("an answer").waiters.is_empty() {}
        let released = Instant::now();
        guard.release().await.expect("held");
        released
    };
    let (granted, released) = tokio::join!(waiting, release);
    granted.expect("for ever").duration_since(released)
}
