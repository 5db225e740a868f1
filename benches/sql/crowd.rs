//! 32 clients at once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockcore::Wait;
use tokio::sync::Mutex;

use crate::{
    Locks,
    bare::{Bare, Commits, Database},
    service,
};

const CLIENTS: usize = 32;
const LASTS: Duration = Duration::from_millis(1500);
const TIMES: usize = 3;

/// Pairs per second: on ids of their own; and with waiters, two clients for each id, which come by different services, as
/// different processes would. The bare statements wait for nothing: in the second case mutexes of this process keep them apart.
pub(crate) async fn throughput<D: Database>(url: &str) {
    for commits in [Commits::Usual, Commits::Async] {
        let services = [service::<D>(url, commits).await, service::<D>(url, commits).await];
        let bare = join_all((0..CLIENTS).map(|_| D::bare(url, commits))).await;
        let bare: Vec<_> = bare.into_iter().map(Mutex::new).collect();
        let turns: Vec<_> = (0..CLIENTS / 2).map(|_| Mutex::new(())).collect();
        let (mut ours, mut floor, mut waiting, mut in_turn) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TIMES {
            ours.push(rate(async |client| pair::<D>(&services[client % 2], client).await).await);
            floor.push(rate(async |client| bare_pair(&bare[client], client).await).await);
            waiting.push(rate(async |client| pair::<D>(&services[client % 2], client / 2).await).await);
            let in_turn_pair = async |client: usize| {
                let _turn = turns[client / 2].lock().await;
                bare_pair(&bare[client], client / 2).await;
            };
            in_turn.push(rate(in_turn_pair).await);
        }
        let [ours, floor, waiting, in_turn] = [ours, floor, waiting, in_turn].map(median);
        println!(
            "{CLIENTS} clients, {commits}: {ours:.0} pairs/s on ids of their own, {:.0} % of the {floor:.0} of bare statements; \
             with waiters, two for each id, {waiting:.0}, {:.0} % of those, {:.0} % of the {in_turn:.0} of bare statements that wait too",
            100.0 * ours / floor,
            100.0 * waiting / floor,
            100.0 * waiting / in_turn,
        );
    }
}

async fn pair<D: Database>(locks: &Locks<D>, id: usize) {
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
async fn rate(work: impl AsyncFn(usize)) -> f64 {
    let begun = Instant::now();
    let clients = join_all((0..CLIENTS).map(async |client| {
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
