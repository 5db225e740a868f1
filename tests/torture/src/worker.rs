//! A worker: tasks that lock random sets and record what they see.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Display,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    panic::AssertUnwindSafe,
    path::PathBuf,
    pin::Pin,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use futures_util::{FutureExt, future};
use lockcore::{
    FenceGuard, Held, LockDao, LockError, LockingError, LockingService, StoredContext, Target, Uuid, Wait,
};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::history::{self, Claim, Mode, Outcome, Recorder, Stage};

/// What a worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The seed of all choices. The order in which tasks run is not part of it.
    pub seed: u64,
    /// How many tasks lock at once.
    pub actors: u64,
    /// How many operations there are in all.
    pub operations: u64,
    /// How many different ids are locked.
    pub ids: u64,
    /// The lease.
    pub lease: Duration,
    /// Where the resources are that the guarded writes go to.
    pub resources: PathBuf,
    /// One call in so many, at least 1, is dropped before it ends.
    pub dropped: u32,
    /// One callback in so many, at least 1, takes up to one and a half leases.
    pub paused: u32,
    /// A way to cheat, to test the checker.
    pub cheat: Option<Cheat>,
}

/// Ways to break a promise, each of which the checker must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cheat {
    /// Runs the callback without locks.
    NoLock,
    /// Goes on after the release.
    Overstay,
    /// Reports the fence of the grant before.
    OldFence,
    /// Reports fences that go back.
    FallingFence,
    /// Claims slots of a larger limit than it records.
    Overbook,
    /// Never releases.
    Leak,
    /// Does not record the end of a call.
    Stuck,
    /// Passes the queue.
    Jump,
    /// Writes after the release without asking the guard.
    Unguarded,
    /// Reports an outcome that is none of the contract's.
    Untyped,
}

impl Cheat {
    /// All of them.
    pub const ALL: [Cheat; 10] = [
        Cheat::NoLock,
        Cheat::Overstay,
        Cheat::OldFence,
        Cheat::FallingFence,
        Cheat::Overbook,
        Cheat::Leak,
        Cheat::Stuck,
        Cheat::Jump,
        Cheat::Unguarded,
        Cheat::Untyped,
    ];
}

impl FromStr for Cheat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|cheat| format!("{cheat:?}").eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("no such cheat: {name}; there are {:?}", Self::ALL))
    }
}

/// Runs as a worker process of a [`Crew`](crate::crew::Crew): reads its plan from standard input, connects, tried again until that
/// succeeds, and works until all operations have ended. It begins none when standard input has ended: the crew is told to end, or
/// its process was killed.
///
/// # Errors
/// When there is no plan to be read, or the history cannot be created.
pub async fn process<E: Display>(
    connect: impl AsyncFn(&Plan) -> Result<LockingService, E>,
) -> io::Result<()> {
    let mut order = String::new();
    io::stdin().read_line(&mut order)?;
    let (plan, history): (Plan, PathBuf) = serde_json::from_str(&order)?;
    let ended = Arc::new(AtomicBool::new(false));
    let seen = ended.clone();
    thread::spawn(move || {
        // An error is an end, too.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        seen.store(true, Relaxed);
    });
    let recorder = Recorder::create(&history)?;
    let locks = loop {
        match connect(&plan).await {
            Ok(locks) => break locks,
            Err(_) if ended.load(Relaxed) => return Ok(()),
            Err(error) => eprintln!("worker: {error}, tried again"),
        }
        sleep(Duration::from_millis(200)).await;
    };
    run(&locks, &plan, &recorder, &ended).await;
    locks.shutdown(plan.lease * 2).await;
    Ok(())
}

/// Runs all operations, and returns when they have ended; begins none once `ended` is set.
pub async fn run(locks: &LockingService, plan: &Plan, recorder: &Recorder, ended: &AtomicBool) {
    let worker = Worker {
        locks,
        plan,
        recorder,
        ended,
        left: AtomicU64::new(plan.operations),
        fences: Mutex::default(),
        falling: AtomicU64::new(u64::MAX),
    };
    future::join_all((0..plan.actors).map(|actor| worker.actor(actor))).await;
    if plan.cheat == Some(Cheat::Leak)
        && let Ok(guard) = locks.lock(["id-001"]).await
    {
        std::mem::forget(guard);
    }
    recorder.now(0, Stage::Finished);
}

struct Worker<'a> {
    locks: &'a LockingService,
    plan: &'a Plan,
    recorder: &'a Recorder,
    ended: &'a AtomicBool,
    left: AtomicU64,
    /// The last fence of each id, and those of some operations, for cheats.
    fences: Mutex<HashMap<String, u64>>,
    falling: AtomicU64,
}

/// Records the end of an operation that is dropped with the callback around it.
struct Ending<'a> {
    recorder: &'a Recorder,
    op: u64,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.recorder.now(self.op, Stage::Ended { outcome: Outcome::Cancelled });
    }
}

/// One in so many.
fn one_in(rng: &mut Rng, many: u32) -> bool {
    rng.u32(..many) == 0
}

impl Worker<'_> {
    async fn actor(&self, actor: u64) {
        let mut rng = Rng::with_seed(self.plan.seed.wrapping_mul(1_000_003).wrapping_add(actor));
        let next = || self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        while !self.ended.load(Relaxed) && next() {
            self.operation(&mut rng, 0).await;
        }
    }

    /// Chooses a set of ids from `lowest` on.
    fn choose(&self, rng: &mut Rng, lowest: u64) -> Vec<Claim> {
        let count = *rng.choice(&[1, 1, 1, 2, 3, 5]).expect("the choice is not empty");
        let mut numbers: Vec<_> = (0..count).map(|_| rng.u64(lowest..self.plan.ids)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let claim = |number| Claim { id: id(number), mode: mode(rng, number) };
        numbers.into_iter().map(claim).collect()
    }

    /// Returns a boxed future, since an operation may have another one inside.
    fn operation<'s>(
        &'s self,
        rng: &'s mut Rng,
        lowest: u64,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 's>> {
        Box::pin(async move {
            let claims = self.choose(rng, lowest);
            let op = self.recorder.next_op();
            let cheat = self.plan.cheat.filter(|_| one_in(rng, 4));
            let context = Uuid::from_u128(rng.u128(..));
            let wait = match rng.u8(..8) {
                0..3 => Wait::never(),
                3..7 => Wait::up_to(Duration::from_millis(rng.u64(5..2000))),
                _ => Wait::forever(),
            };
            let mut call = self.locks.wait(wait).lease(self.plan.lease).context(context);
            // Below a guard the service does not know that locks are held.
            if lowest > 0 || cheat == Some(Cheat::Jump) {
                call = call.nested();
            }
            let set = self.set(&claims, cheat);
            self.recorder.now(op, Stage::Asked { claims: claims.clone(), nested: lowest > 0 });
            let patience = one_in(rng, self.plan.dropped).then(|| Duration::from_micros(rng.u64(..50_000)));
            let (is_guard, watches) = (one_in(rng, 4), one_in(rng, 4) && claims.len() == 1 && lowest == 0);
            let claims = &claims;
            let work = async {
                if cheat == Some(Cheat::NoLock) {
                    self.callback(rng, op, claims, None, cheat, false).await;
                    return Outcome::Done;
                }
                if is_guard {
                    let guard = match call.lock(set).await {
                        Ok(guard) => guard,
                        Err(error) => return outcome(Err(error)),
                    };
                    self.callback(rng, op, claims, Some(guard.held()), cheat, true).await;
                    return outcome(guard.release().await);
                }
                let callback = |held: Held| async move {
                    self.callback(rng, op, claims, Some(&held), cheat, false).await;
                    Ok::<(), Infallible>(())
                };
                outcome(call.with_held_locks(set, callback).await)
            };
            let work = async {
                match watches {
                    true => future::join(work, self.watch(op, &claims[0].id, context)).await.0,
                    false => work.await,
                }
            };
            let bounded = async {
                match patience {
                    Some(patience) => timeout(patience, work).await.unwrap_or(Outcome::Cancelled),
                    None => work.await,
                }
            };
            let unless_dropped = Ending { recorder: self.recorder, op };
            let mut ended = AssertUnwindSafe(bounded).catch_unwind().await.unwrap_or(Outcome::Panicked);
            std::mem::forget(unless_dropped);
            match cheat {
                Some(Cheat::Stuck) => return,
                Some(Cheat::Untyped) => ended = Outcome::Panicked,
                Some(Cheat::Overstay) => {
                    sleep(Duration::from_millis(20)).await;
                    self.recorder.now(op, Stage::Left);
                }
                Some(Cheat::Unguarded) if ended == Outcome::Done => {
                    sleep(Duration::from_millis(20)).await;
                    for Claim { id, mode } in claims {
                        let fence = self.fence_of(id, op);
                        if let (Mode::Exclusive, Some(fence)) = (mode, fence) {
                            self.recorder.now(op, Stage::Wrote { id: id.clone(), fence, admitted: true });
                        }
                    }
                }
                _ => {}
            }
            self.recorder.now(op, Stage::Ended { outcome: ended });
        })
    }

    fn set(&self, claims: &[Claim], cheat: Option<Cheat>) -> Vec<lockcore::Claim> {
        let more = if cheat == Some(Cheat::Overbook) { 3 } else { 0 };
        let claim = |Claim { id, mode }: &Claim| match *mode {
            Mode::Exclusive => lockcore::Claim::exclusive(id.clone()),
            Mode::Shared => lockcore::Claim::shared(id.clone()),
            Mode::Slots { permits, limit } => {
                lockcore::Claim::slots(id.clone(), limit + more).permits(permits)
            }
        };
        claims.iter().map(claim).collect()
    }

    /// Records that the request was seen in the queue, if it comes to that.
    async fn watch(&self, op: u64, id: &str, context: Uuid) {
        if !self.locks.dao().capabilities().fifo {
            return;
        }
        let target = Target::Id(id.to_owned());
        for _ in 0..20 {
            let Ok(seen) = self.locks.admin().inspect(&target).await else { return };
            if seen.waiters.iter().any(|waiter| waiter.context == StoredContext::Known(context)) {
                return self.recorder.now(op, Stage::Queued);
            }
            if seen.holders.iter().any(|holder| holder.context == StoredContext::Known(context)) {
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// What is done under the locks. `held` is `None` for a cheat.
    async fn callback(
        &self,
        rng: &mut Rng,
        op: u64,
        claims: &[Claim],
        held: Option<&Held>,
        cheat: Option<Cheat>,
        is_guard: bool,
    ) {
        let is_held = || held.is_none_or(|held| held.check().is_ok());
        let at = history::now();
        if !is_held() {
            return;
        }
        let fences = claims.iter().map(|claim| self.fence(op, &claim.id, held, cheat)).collect();
        self.recorder.at(at, op, Stage::Entered { fences });
        for _ in 0..rng.u8(..4) {
            if one_in(rng, 4) {
                sleep(Duration::from_micros(rng.u64(..5000))).await;
            }
            let at = history::now();
            if is_held() {
                self.recorder.at(at, op, Stage::Inside);
            }
        }
        if one_in(rng, self.plan.paused) {
            // Long enough for a renewal or two.
            sleep(self.plan.lease.mul_f64(rng.f64() * 1.5)).await;
        }
        if let Some(held) = held {
            for claim in claims.iter().filter(|claim| claim.mode == Mode::Exclusive) {
                self.write(op, &claim.id, held);
            }
        }
        let highest = claims.iter().filter_map(|claim| claim.id[3..].parse::<u64>().ok()).max();
        if let Some(above) = highest.map(|highest| highest + 1).filter(|above| *above < self.plan.ids)
            && one_in(rng, 20)
        {
            self.operation(rng, above).await;
        }
        // A guard that is released late, as its process stood still, is released: users have to look whether they held it.
        let at = history::now();
        if cheat != Some(Cheat::Overstay) && (!is_guard || is_held()) {
            self.recorder.at(at, op, Stage::Left);
        }
    }

    /// The fence to record.
    fn fence(&self, op: u64, id: &str, held: Option<&Held>, cheat: Option<Cheat>) -> u64 {
        let fence = held.map_or_else(|| history::now() << 8, |held| held.fence(id));
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fences.insert(id.to_owned(), fence);
        if cheat == Some(Cheat::Unguarded) {
            fences.insert(format!("{id} of {op}"), fence);
        }
        match cheat {
            Some(Cheat::OldFence) => before.unwrap_or(fence),
            Some(Cheat::FallingFence) => self.falling.fetch_sub(1, Relaxed),
            _ => fence,
        }
    }

    fn fence_of(&self, id: &str, op: u64) -> Option<u64> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner).get(&format!("{id} of {op}")).copied()
    }

    /// Writes to a resource that remembers the fences it has seen, and refuses those of former holders.
    fn write(&self, op: u64, id: &str, held: &Held) {
        let Some(fence) = held.exclusive_fence(id) else { return };
        let admitted = self.admit(op, id, fence);
        if let Err(error) = admitted {
            panic!("the resource of {id}: {error}");
        }
    }

    fn admit(&self, op: u64, id: &str, fence: lockcore::ExclusiveFence) -> io::Result<()> {
        let path = self.plan.resources.join(id);
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.try_lock().is_err() {
            return Ok(()); // a stopped process has it: the line of others must not wait for that
        }
        let mut seen = String::new();
        file.read_to_string(&mut seen)?;
        let mut numbers = seen.split_whitespace().map(str::parse);
        let mut guard = match (numbers.next(), numbers.next()) {
            (Some(exclusive), Some(highest)) => {
                FenceGuard::restore(exclusive.map_err(io::Error::other)?, highest.map_err(io::Error::other)?)
            }
            _ => FenceGuard::new(),
        };
        let admitted = guard.admit_exclusive(fence).is_ok();
        if admitted {
            file.seek(SeekFrom::Start(0))?;
            // Of one length, so that the end of a longer one before cannot stay behind.
            write!(file, "{:020} {:020}", guard.highest_exclusive(), guard.highest())?;
        }
        self.recorder.now(op, Stage::Wrote { id: id.to_owned(), fence: fence.number(), admitted });
        Ok(())
    }
}

/// Returns the id of a number.
pub fn id(number: u64) -> String {
    format!("id-{number:03}")
}

/// The mode of an id: each third one is for slots, whose limit is the same for all, and the others are shared now and then.
fn mode(rng: &mut Rng, number: u64) -> Mode {
    match number % 3 {
        0 => Mode::Slots { permits: rng.u32(1..=2), limit: 4 },
        _ if one_in(rng, 3) => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// The outcome of a call whose callback does not fail.
pub fn outcome(result: Result<(), LockError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error @ LockingError::NotLocked { .. }) if error.is_contention() => Outcome::Refused,
        Err(LockingError::NotLocked { .. }) => Outcome::Failed,
        Err(LockingError::Lost { .. }) => Outcome::Lost,
        Err(_) => Outcome::Mistaken,
    }
}
