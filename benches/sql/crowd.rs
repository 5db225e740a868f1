//! 32 clients at once, and long queues.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockcore::{LockDao, Target, Wait};
use lockcore_benches::{Case, report};
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use crate::{
    Locks,
    bare::{Bare, Commits, Database},
    by_statements, service,
};

const CLIENTS: usize = 32;
const SERVICES: usize = 8;
const LASTS: Duration = Duration::from_millis(1500);
const TIMES: usize = 3;

/// The loads of ours: how many clients, and for each of them by which service it comes, as another process would, and for which id.
type Load = (&'static str, usize, fn(usize) -> (usize, usize));
const LOADS: [Load; 5] = [
    ("one client", 1, |_| (0, 0)),
    ("32 clients, each on an id of its own", CLIENTS, |client| (client % 2, client)),
    ("with a waiter for each of the 32 ids", 2 * CLIENTS, |client| (client / CLIENTS, client % CLIENTS)),
    ("8 clients of one id, in one process", SERVICES, |_| (0, CLIENTS)),
    ("8 clients of one id, each by a service of its own", SERVICES, |client| (client, CLIENTS)),
];

/// Pairs per second of 32 clients, beside 32 bare ones, each on an id of its own. First ours are alone on theirs, too.
/// Then each of the 32 ids has a holder and, always, a waiter: two clients take it in turn, who come by different services,
/// as different processes would; so every pair is a hand-over. It is compared with the bare ones that wait for no client, at the
/// same durability: what waiting costs is what is asked for. On the disk as it is, and with commits that take 5 ms: there
/// a client that lets only one commit at a time reach the disk falls far behind. Each of it by routines and by plain statements.
pub(crate) async fn throughput<D: Database>(url: &str) {
    for (commits, slow) in [(Commits::Usual, false), (Commits::Usual, true), (Commits::Async, false)] {
        let disk = match slow {
            true => match D::slow_commits(url, true).await {
                Some(name) => format!(", {name}"),
                None => continue,
            },
            false => String::new(),
        };
        let routines = join_all((0..SERVICES).map(|_| service::<D>(url, commits))).await;
        let statements = join_all((0..SERVICES).map(|_| by_statements::<D>(url, commits))).await;
        let bare = join_all((0..CLIENTS).map(|_| D::bare(url, commits))).await;
        let bare: Vec<_> = bare.into_iter().map(Mutex::new).collect();
        let mut rates = LOADS.map(|_| [const { Vec::new() }; 3]);
        for _ in 0..TIMES {
            for (load, rates) in LOADS.iter().zip(&mut rates) {
                rates[0].push(rate_of(&routines, load).await);
                rates[1].push(rate_of(&statements, load).await);
                // No bare client waits.
                let clients = load.1.min(CLIENTS);
                rates[2].push(rate(clients, async |client| bare_pair(&bare[client], client).await).await);
            }
        }
        for ((load, clients, _), rates) in LOADS.iter().zip(rates) {
            let [routines, statements, floor] = rates.map(median);
            println!(
                "{load}, {commits}{disk}: {routines:.0} pairs/s, {:.0} %, and by statements {statements:.0}, {:.0} %, of the \
                 {floor:.0} of {} bare clients on ids of their own",
                100.0 * routines / floor,
                100.0 * statements / floor,
                clients.min(&CLIENTS),
            );
        }
        if slow {
            D::slow_commits(url, false).await;
        }
    }
}

async fn rate_of<L: LockDao<String, Uuid>>(services: &[Locks<L>], (_, clients, of): &Load) -> f64 {
    rate(*clients, async |client| {
        let (service, id) = of(client);
        pair(&services[service], id).await;
    })
    .await
}

/// How long a hand-over takes in a queue of 64 waiters, and in one of 10 000: by turns, the first 64 of each.
pub(crate) async fn queues<D: Database>(url: &str) {
    /// How many waiters, and how often in each round: a queue of 64 is over in a moment.
    const QUEUES: [(usize, usize); 2] = [(64, 10), (10_000, 1)];
    const SERVED: usize = 64;
    let locks = service::<D>(url, Commits::Usual).await;
    let mut case = Case::new("hand-over of one id".to_owned(), &["64 waiters", "10 000 waiters"]);
    for round in 0..TIMES {
        let queues = QUEUES.into_iter().enumerate();
        let each = queues
            .flat_map(|(candidate, (waiters, times))| (0..times).map(move |time| (candidate, waiters, time)));
        for (candidate, waiters, time) in each {
            let id = format!("queue/{round}/{waiters}/{time}");
            let target = Target::Id(id.clone());
            let (served, mut turns) = mpsc::unbounded_channel();
            let held = locks.lock([&id]).await.expect("it is free");
            let begun = Instant::now();
            let tasks: Vec<_> = (0..waiters)
                .map(|_| {
                    let (locks, id, served) = (locks.clone(), id.clone(), served.clone());
                    tokio::spawn(async move {
                        let call = locks.wait(Wait::forever());
                        call.with_locks([id], || async { served.send(Instant::now()) }).await
                    })
                })
                .collect();
            while locks.admin().inspect(&target).await.expect("an answer").waiters.len() < waiters {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            println!("{waiters} waiters are queued after {:.1?}", begun.elapsed());
            let mut last = Instant::now();
            held.release().await.expect("it is held");
            for _ in 0..SERVED {
                let turn = turns.recv().await.expect("there are more waiters");
                case.times(candidate).add(turn - last, 1);
                last = turn;
            }
            for task in &tasks {
                task.abort();
            }
            // Each of them withdraws, so that this one may find no connection free.
            while locks.admin().inspect(&target).await.map_or(true, |seen| !seen.waiters.is_empty()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    report(&[case]);
}

async fn pair<L: LockDao<String, Uuid>>(locks: &Locks<L>, id: usize) {
    let name = format!("crowd/{id}");
    locks.wait(Wait::forever()).with_locks([name], || async {}).await.expect("for ever");
}

async fn bare_pair(bare: &Mutex<impl Bare>, id: usize) {
    let name = [format!("crowd/{id}")];
    let mut bare = bare.lock().await;
    bare.take(&name).await;
    bare.free(&name).await;
}

/// How often all clients together can do it in a second.
async fn rate(clients: usize, work: impl AsyncFn(usize)) -> f64 {
    let begun = Instant::now();
    let clients = join_all((0..clients).map(async |client| {
        let mut done = 0_u32;
        while begun.elapsed() < LASTS {
            work(client).await;
            done += 1;
        }
        done
    }));
    let done: u32 = clients.await.into_iter().sum();
    f64::from(done) / begun.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
