//! Many threads at once: whatever the interleaving, no client holds what excludes another, no client is
//! forgotten, and nothing is left.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore::{
    Claim, Grant, LockDao, Mode, Target,
    backend::{Acquired, Wake, Withdraw, Withdrawn},
    rules::InUse,
};
use tokio::time::timeout;

use super::claims::{leased, shared, slots};
use crate::support::*;

const IDS: usize = 5;
const TASKS: u64 = 24;

/// Longer than anything takes here, unless a client was forgotten.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who is inside, as those inside say.
#[derive(Default)]
struct Inside(Mutex<HashMap<Target<String>, Room>>);

/// Who is inside of one id, and the highest fence that was.
type Room = (Vec<Mode>, u64);

impl Inside {
    fn enter(&self, held: &Held) {
        let mut inside = self.0.lock().unwrap();
        for lock in &held.locks {
            let (modes, highest) = inside.entry(lock.target.clone()).or_default();
            let granted = &lock.granted;
            if granted.mode == Mode::Exclusive {
                assert!(granted.fence > *highest, "a later exclusive grant has the higher fence");
            }
            *highest = granted.fence.max(*highest);
            modes.push(granted.mode);
            assert_compatible(modes);
        }
    }

    fn leave(&self, held: &Held) {
        let mut inside = self.0.lock().unwrap();
        for lock in &held.locks {
            let (modes, _) = inside.get_mut(&lock.target).unwrap();
            modes.remove(modes.iter().position(|mode| *mode == lock.granted.mode).unwrap());
        }
    }
}

/// Slot holders may enter in another order than they were granted: the last one granted, a client that it is,
/// had room under its own limit.
fn assert_compatible(modes: &[Mode]) {
    let in_use = InUse::of(modes.iter().copied());
    let limits = modes.iter().filter_map(|mode| match mode {
        Mode::Slots { limit, .. } => Some(*limit),
        _ => None,
    });
    assert!(in_use.exclusive == 0 || modes.len() == 1, "{modes:?}");
    assert!(in_use.permits <= limits.max().unwrap_or(0), "{modes:?}");
}

fn random_claims(random: &mut fastrand::Rng) -> Vec<Claim<String>> {
    let mut ids: Vec<_> = (0..IDS).collect();
    random.shuffle(&mut ids);
    ids.truncate(random.usize(1..=3));
    ids.into_iter()
        .map(|id| {
            let id = format!("id {id}");
            match random.u32(..4) {
                0 | 1 => exclusive(&id),
                2 => shared(&id),
                _ => slots(&id, random.u32(1..=2), random.u32(2..=3)),
            }
        })
        .collect()
}

async fn play(dao: &Dao, inside: &Inside, context: u64, steps: u64, granted: &AtomicUsize) {
    let mut random = fastrand::Rng::with_seed(context);
    for step in 0..steps {
        let mut request = request(context, random_claims(&mut random));
        request.attempt = lockcore::backend::AttemptId(step);
        request.queue = random.u32(..10) > 0;
        let held = match dao.acquire(&request).await.unwrap() {
            Acquired::Granted(granted) => grant(&request, granted),
            Acquired::Refused(_) => continue,
            Acquired::Queued { wakeup, .. } if random.u32(..8) == 0 => {
                // Given up, sometimes with no client listening, sometimes after a moment.
                let listening = random.bool().then_some(wakeup);
                for _ in 0..random.u32(..3) {
                    tokio::task::yield_now().await;
                }
                let how = if random.bool() { Withdraw::Undo } else { Withdraw::KeepIfGranted };
                let withdrawn = dao.withdraw(&request, how).await.unwrap();
                drop(listening);
                match withdrawn {
                    Withdrawn::Left => continue,
                    Withdrawn::Holds(granted) => grant(&request, granted),
                }
            }
            Acquired::Queued { mut wakeup, .. } => {
                match timeout(PATIENCE, wakeup.recv()).await.expect("no waiter is forgotten") {
                    Wake::Offer(offer) => grant(&request, offer.granted),
                    // A client before gave up without listening: its offer can end.
                    Wake::Recheck => ask_until_granted(dao, &request).await,
                }
            }
        };
        inside.enter(&held);
        granted.fetch_add(1, Ordering::Relaxed);
        if random.bool() {
            tokio::task::yield_now().await;
        }
        inside.leave(&held);
        assert_eq!(dao.release(&held).await.unwrap().lost, []);
    }
}

async fn ask_until_granted(dao: &Dao, request: &lockcore::backend::AcquireRequest<String, u64>) -> Held {
    loop {
        match dao.acquire(request).await.unwrap() {
            Acquired::Granted(granted) => return grant(request, granted),
            Acquired::Queued { mut wakeup, .. } => {
                if let Wake::Offer(offer) =
                    timeout(PATIENCE, wakeup.recv()).await.expect("no waiter is forgotten")
                {
                    return grant(request, offer.granted);
                }
            }
            Acquired::Refused(conflicts) => panic!("it has a place: {conflicts:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_holders_exclude_each_other() {
    let dao = Arc::new(Dao::new());
    let inside = Arc::new(Inside::default());
    let granted = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|context| {
            let (dao, inside, granted) = (dao.clone(), inside.clone(), granted.clone());
            tokio::spawn(async move { play(&dao, &inside, context, 800, &granted).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(granted.load(Ordering::Relaxed) > 8000);
    assert!(dao.is_empty(), "{:?}", dao.current());
}

#[test]
fn of_contenders_for_an_expired_lock_exactly_one_wins() {
    let wins = AtomicU64::new(0);
    for round in 0..200 {
        let dao = Dao::new();
        let lease = Duration::from_millis(1);
        let dead = take(&dao, &leased(request(99, [exclusive("a")]), lease));
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for context in 0..4 {
                let (dao, start, wins) = (&dao, &start, &wins);
                scope.spawn(move || {
                    start.wait();
                    let mut request = request(context, [exclusive("a")]);
                    request.queue = false;
                    let deadline = std::time::Instant::now() + PATIENCE;
                    loop {
                        match now(dao.acquire(&request)).unwrap() {
                            Acquired::Granted(_) => return wins.fetch_add(1, Ordering::Relaxed),
                            Acquired::Refused(conflicts) => {
                                let by_the_dead = conflicts.iter().any(|c| format!("{c}").contains("99 "));
                                if !by_the_dead || std::time::Instant::now() > deadline {
                                    return 0;
                                }
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
        assert_eq!(wins.load(Ordering::Relaxed), round + 1);
        assert_eq!(now(dao.release(&dead)).unwrap().lost.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_panic_in_the_users_type_leaves_the_table_usable() {
    /// Cannot be copied while it says so.
    #[derive(PartialEq, Eq, Hash, Debug)]
    struct Fragile(u32);

    impl Clone for Fragile {
        fn clone(&self) -> Self {
            assert_ne!(self.0, 13, "unlucky");
            Fragile(self.0)
        }
    }

    impl lockcore::Ident for Fragile {
        fn stored(&self) -> std::borrow::Cow<'_, str> {
            self.0.to_string().into()
        }

        fn from_stored(stored: &str) -> Option<Self> {
            stored.parse().ok().map(Fragile)
        }
    }

    let dao = Arc::new(lockcore_memory::MemoryLockDao::<Fragile, u64>::new());
    let ask = |id: u32| {
        let claims = lockcore::ClaimSet::new([Claim::exclusive(Fragile(id))], Mode::Exclusive).unwrap();
        lockcore::backend::AcquireRequest {
            context: 1,
            attempt: lockcore::backend::AttemptId(1),
            claims,
            lease: None,
            owner: lockcore::Owner::default(),
            queue: false,
            nested: false,
            detached: false,
        }
    };
    let (shared, unlucky) = (dao.clone(), ask(13));
    tokio::spawn(async move { shared.acquire(&unlucky).await.is_ok() }).await.unwrap_err();
    let request = ask(14);
    let Ok(Acquired::Granted(granted)) = dao.acquire(&request).await else { panic!("it is free") };
    let held = Grant::new(1, request.claims, granted, None);
    assert_eq!(dao.release(&held).await.unwrap().lost, []);
    assert!(dao.is_empty());
}
