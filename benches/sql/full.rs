//! A table with a million locks that are held and a million whose leases are over, beside an empty one.

use std::time::{Duration, Instant};

use lockcore::{
    ClaimSet, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_benches::Case;
use uuid::Uuid;

use crate::bare::{Commits, Database};

const MANY: usize = 1_000_000;
const ROUNDS: usize = 400;
const SWEEPS: usize = 200;
const BATCH: usize = 100;
/// Of the locks that are held, and of those that are over.
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(100);

pub(crate) async fn cases<D: Database>(url: &str) -> Vec<Case> {
    D::make_room(url).await;
    let full = D::open(url, Commits::Async, "full_").await;
    let empty = D::open(url, Commits::Async, "empty_").await;
    let swept = D::open(url, Commits::Async, "swept_").await;
    let begun = Instant::now();
    fill(&full, MANY, 2 * MANY, LONG).await;
    fill(&full, 0, MANY, SHORT).await;
    fill(&swept, 0, SWEEPS * BATCH, SHORT).await;
    println!("{} rows written in {:.0?}", 2 * MANY, begun.elapsed());
    // What is over is swept eight leases later at the earliest.
    tokio::time::sleep(10 * SHORT).await;
    D::settle(url).await;
    let candidates = ["1 000 000 held + 1 000 000 over", "empty"];
    let mut cases = Vec::new();
    for ids in [1, 10] {
        let mut acquire = Case::new(format!("acquire of {ids}"), &candidates);
        let mut release = Case::new(format!("release of {ids}"), &candidates);
        for round in 0..ROUNDS {
            for (candidate, dao) in [&full, &empty].into_iter().enumerate() {
                // New ones, anywhere between the others.
                let names = (0..ids).map(|number| format!("{}/{ids}", row((round * ids + number) * 2477)));
                let request = request(names.collect(), LONG);
                let begun = Instant::now();
                let grant = granted(dao, &request).await;
                acquire.times(candidate).add(begun.elapsed(), 1);
                let begun = Instant::now();
                assert!(dao.release(&grant).await.expect("an answer").lost.is_empty());
                release.times(candidate).add(begun.elapsed(), 1);
            }
        }
        cases.extend([acquire, release]);
    }
    let mut sweep = Case::new(format!("sweep of {BATCH}"), &candidates);
    for _ in 0..SWEEPS {
        for (candidate, dao) in [&full, &swept].into_iter().enumerate() {
            let begun = Instant::now();
            let removed = dao.sweep(BATCH, None).await.expect("an answer").removed;
            sweep.times(candidate).add(begun.elapsed(), 1);
            assert_eq!(removed, BATCH);
        }
    }
    cases.push(sweep);
    cases
}

/// Takes the rows of these numbers.
async fn fill(dao: &impl LockDao<String, Uuid>, from: usize, to: usize, lease: Duration) {
    const SET: usize = 1000;
    for first in (from..to).step_by(SET) {
        let names = (first..to.min(first + SET)).map(|number| row(number * 7));
        granted(dao, &request(names.collect(), lease)).await;
    }
}

/// Held ones and others lie in turn: 7 is prime to both.
fn row(number: usize) -> String {
    format!("row/{:07}", number % (2 * MANY))
}

fn request(names: Vec<String>, lease: Duration) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(names, Mode::Exclusive).expect("valid claims"),
        lease: Some(lease),
        owner: "bench".into(),
        queue: false,
        nested: false,
        detached: false,
    }
}

async fn granted(
    dao: &impl LockDao<String, Uuid>,
    request: &AcquireRequest<String, Uuid>,
) -> Grant<String, Uuid> {
    match dao.acquire(request).await {
        Ok(Acquired::Granted(granted)) => {
            Grant::new(request.context, request.claims.clone(), granted, request.lease)
        }
        other => panic!("it is free: {other:?}"),
    }
}
