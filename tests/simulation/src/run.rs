//! The loop of a run: drives all processes in small steps of virtual time, and causes the faults.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::join_all;
use lockcore::{LockDao, LockingService, simulated};
use lockcore_cell::{CellLockDao, CellSettings};
use lockcore_judge::{
    check::{self, AUDIT},
    history::{Line, Outcome, Stage},
};
use lockcore_memory::MemoryLockDao;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    actor::Actor,
    cells::{Cells, SimulatedCell},
    dynamo::{self, Table},
    faults::{Fault, Faults, Kind},
    history::{Shared, lock},
    liveness,
    net::{Net, Store},
    plan::{Plan, World},
    reached::Reached,
};

/// The longest step. A process may be so far ahead of the others.
const LONGEST_TICK: Duration = Duration::from_millis(64);

/// The id of processes that died: what is dropped with them reaches no store.
const NO_PROCESS: u32 = u32::MAX;

/// Something that must not be in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The rule that was broken.
    pub rule: String,
    /// The operations and moments.
    pub details: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.details)
    }
}

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was recorded, in the order of time.
    pub history: Vec<(Arc<str>, Line)>,
    /// What must not be.
    pub failures: Vec<Failure>,
    /// How often rare branches were reached.
    pub reached: Reached,
    /// How many operations began.
    pub operations: u64,
    /// How they ended.
    pub outcomes: BTreeMap<Option<Outcome>, u64>,
    /// The virtual time.
    pub took: Duration,
    /// The writes to the store, if the plan asks for them.
    pub writes: String,
}

impl Run {
    /// Returns the history as text: the same bytes for the same plan.
    ///
    /// # Panics
    /// Never: what is recorded has a form in JSON.
    pub fn text(&self) -> String {
        let line = |(process, line): &(Arc<str>, Line)| {
            format!("{process} {}\n", serde_json::to_string(line).expect("plain data has a form in JSON"))
        };
        self.history.iter().map(line).collect()
    }
}

/// Runs a plan, and judges what was recorded.
///
/// # Panics
/// If a runtime cannot be made.
pub fn run(plan: &Plan) -> Run {
    fastrand::seed(plan.seed);
    let shared = Arc::new(Shared::new(plan));
    match plan.world {
        World::Memory => {
            let open = |_| boxed(async { Ok(Arc::new(MemoryLockDao::<String, u64>::new())) });
            Loop::new(plan, shared, None::<Arc<Net<Cells>>>, open).run()
        }
        World::Cell | World::Cells => {
            let net = Arc::new(Cells::net(plan));
            let lease = plan.lease;
            let cells = net.clone();
            let open = move |process| {
                let cell = SimulatedCell::new(&cells, process);
                let mut settings = CellSettings::new("simulated", "simulated");
                settings.capabilities.min_lease = settings.capabilities.min_lease.min(lease);
                boxed(async move { CellLockDao::<_, String, u64>::open(cell, settings).await.map(Arc::new) })
            };
            Loop::new(plan, shared, Some(net), open).run()
        }
        World::Dynamo => {
            let net = Arc::new(Table::net(plan));
            let (service, strict_fence) = (net.clone(), plan.seed.is_multiple_of(3));
            let open = move |process| boxed(dynamo::open(service.clone(), process, strict_fence));
            Loop::new(plan, shared, Some(net), open).run()
        }
    }
}

type Opening<D> = Pin<Box<dyn Future<Output = Result<D, lockcore::BackendError>> + Send>>;

fn boxed<D>(open: impl Future<Output = Result<D, lockcore::BackendError>> + Send + 'static) -> Opening<D> {
    Box::pin(open)
}

/// A simulated process.
struct Process<D: LockDao<String, u64>> {
    name: Arc<str>,
    /// Unlike that of any other.
    number: u32,
    runtime: Runtime,
    started: Instant,
    /// How far its clock has gone.
    local: Duration,
    rate: f64,
    /// The time for which it was suspended.
    suspended: Duration,
    /// It stands still until then, and since then.
    still: Option<Still>,
    finished: Arc<AtomicBool>,
    actor: Arc<Mutex<Option<Actor<D>>>>,
}

#[derive(Clone, Copy)]
struct Still {
    since: Duration,
    until: Duration,
    suspended: bool,
}

impl<D: LockDao<String, u64>> Process<D> {
    fn play(&self) {
        simulated::play(self.number, Duration::from_secs(1) + self.local + self.suspended);
    }

    fn drive(&mut self, step: Duration) {
        self.local += step.mul_f64(self.rate);
        self.play();
        let until = self.started + self.local;
        self.runtime.block_on(async { sleep_until(until).await });
        simulated::stop();
    }

    /// Goes on after it stood still.
    fn resume(&mut self, still: Still, now: Duration) {
        let stood = (now - still.since).mul_f64(self.rate);
        if still.suspended {
            self.suspended += stood;
        } else {
            self.local += stood;
            self.play();
            self.runtime.block_on(tokio::time::advance(stood));
            simulated::stop();
        }
    }

    /// Ends without another step.
    fn die(self) {
        let Process { runtime, actor, suspended, local, .. } = self;
        simulated::play(NO_PROCESS, Duration::from_secs(1) + local + suspended);
        drop(lock(&actor).take());
        drop(runtime);
        simulated::stop();
    }
}

struct Loop<D: LockDao<String, u64>, O, S: Store> {
    plan: Plan,
    shared: Arc<Shared>,
    net: Option<Arc<Net<S>>>,
    open: O,
    now: Duration,
    /// The length of this step.
    tick: Duration,
    rng: Rng,
    /// By place; `None` while a process is dead.
    places: Vec<Option<Process<D>>>,
    /// When the process of a place starts again.
    restarts: Vec<Option<Duration>>,
    lives: u32,
    names: BTreeMap<u32, Arc<str>>,
}

impl<D, O, S> Loop<D, O, S>
where
    S: Store,
    D: LockDao<String, u64> + Clone + 'static,
    O: Fn(u32) -> Opening<D> + Clone + Send + 'static,
{
    fn new(plan: &Plan, shared: Arc<Shared>, net: Option<Arc<Net<S>>>, open: O) -> Self {
        Loop {
            plan: plan.clone(),
            shared,
            net,
            open,
            now: Duration::ZERO,
            tick: plan.tick,
            rng: Rng::with_seed(plan.seed ^ 0x100b),
            places: Vec::new(),
            restarts: vec![None; plan.processes as usize],
            lives: 0,
            names: BTreeMap::new(),
        }
    }

    fn run(mut self) -> Run {
        let mut faults = Faults::new(&self.plan).peekable();
        for place in 0..self.plan.processes {
            let process = self.start(&format!("p{place}"), Job::Work);
            self.places.push(Some(process));
        }
        // Far more than any run needs.
        let longest = self.plan.lease * u32::try_from(self.plan.operations).unwrap_or(u32::MAX).max(100);
        let (mut calm_until, mut thaws): (Option<Duration>, _) = (None, false);
        loop {
            self.step();
            if self.now > longest {
                self.shared.take_all();
            }
            let is_over = self.shared.is_over();
            if !is_over {
                while let Some(fault) = faults.next_if(|fault| fault.at <= self.now) {
                    self.cause(fault);
                }
            }
            if is_over {
                let until = *calm_until.get_or_insert_with(|| {
                    if let Some(net) = &self.net {
                        net.heal();
                    }
                    self.now + self.plan.lease * 12 + Duration::from_secs(60)
                });
                thaws = thaws || self.thaw_rest();
                let mut open = self.places.iter().flatten().filter(|process| !process.finished.load(Relaxed));
                if open.next().is_none() || self.now > until {
                    break;
                }
            }
        }
        for process in self.places.iter().flatten() {
            self.shared.record(&process.name, 0, Stage::Finished);
        }
        self.audit();
        self.judge()
    }

    fn step(&mut self) {
        // While nothing is on its way, the processes wait for their own timers.
        let is_quiet = self.net.as_ref().is_some_and(|net| net.is_quiet());
        self.tick = if is_quiet { (self.tick * 2).min(LONGEST_TICK) } else { self.plan.tick };
        self.now += self.tick;
        self.shared.set_now(self.now);
        if let Some(net) = &self.net {
            net.set_now(self.now);
        }
        let mut order: Vec<_> = (0..self.places.len()).collect();
        self.rng.shuffle(&mut order);
        for place in order {
            if self.restarts[place].is_some_and(|at| at <= self.now) {
                self.restarts[place] = None;
                let process = self.start(&format!("p{place}.{}", self.lives), Job::Work);
                self.places[place] = Some(process);
            }
            let Some(process) = &mut self.places[place] else { continue };
            if let Some(still) = process.still {
                if still.until > self.now {
                    continue;
                }
                process.still = None;
                process.resume(still, self.now);
            } else {
                process.drive(self.tick);
            }
        }
    }

    fn start(&mut self, name: &str, job: Job) -> Process<D> {
        self.lives += 1;
        let (number, name) = (self.lives, Arc::<str>::from(name));
        self.names.insert(number, name.clone());
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without input and output needs nothing of the system");
        let rate = match self.plan.kinds.contains(&Kind::Drift) {
            true => 0.98 + self.rng.f64() * 0.04,
            false => 1.0,
        };
        let started = runtime.block_on(async { Instant::now() });
        let (finished, actor) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let life = Life {
            number,
            name: name.clone(),
            shared: self.shared.clone(),
            rng: Rng::with_seed(self.plan.seed.wrapping_mul(1_000_003) ^ u64::from(number)),
            actor: actor.clone(),
        };
        let (open, ended) = (self.open.clone(), finished.clone());
        runtime.spawn(async move {
            life.live(open, job).await;
            ended.store(true, Relaxed);
        });
        let (local, suspended) = (Duration::ZERO, Duration::ZERO);
        Process { name, number, runtime, started, local, rate, suspended, still: None, finished, actor }
    }

    fn cause(&mut self, fault: Fault) {
        let Fault { kind, lasts, chance, .. } = fault;
        let place = fault.process as usize;
        let rng = Rng::with_seed(chance);
        if let Some(net) = self.net.clone() {
            match kind {
                Kind::Outage => net.outage(lasts),
                Kind::Noise => net.noise(lasts),
                Kind::Slow => net.slow(lasts),
                Kind::StepForward => {
                    let by = self.plan.lease.mul_f64(Rng::with_seed(chance).f64() * 2.0);
                    net.step_clock(i64::try_from(by.as_micros()).unwrap_or(i64::MAX));
                    // A step may end leases early, also those that are kept.
                    return self.shared.fault("step-forward", self.plan.lease * 3, None, true);
                }
                Kind::StepBack => {
                    let by = i64::try_from(chance % 7_200_000_000).unwrap_or(0);
                    net.step_clock(-by);
                    return self.shared.fault("step-back", self.plan.lease, None, false);
                }
                Kind::Forget | Kind::Garble => {
                    let Some(number) = net.spoil(kind, chance) else { return };
                    let owner = self.names.get(&number).cloned();
                    return self.shared.fault(&kind.to_string(), FOR_GOOD, owner.as_deref(), false);
                }
                _ => {}
            }
            if matches!(kind, Kind::Outage | Kind::Noise | Kind::Slow) {
                return self.shared.fault(&kind.to_string(), lasts, None, false);
            }
        }
        let Some(process) = &mut self.places[place] else { return };
        let name = process.name.clone();
        match kind {
            Kind::Kill => {
                self.shared.fault("kill", Duration::ZERO, Some(&name), false);
                if let Some(net) = &self.net {
                    net.died(process.number);
                }
                self.shared.reach("process died");
                if let Some(process) = self.places[place].take() {
                    self.shared.dying(|| process.die());
                }
                self.restarts[place] = Some(self.now + Duration::from_millis(chance % 3_000));
                return;
            }
            Kind::Stop | Kind::Suspend if process.still.is_none() => {
                let suspended = kind == Kind::Suspend;
                process.still = Some(Still { since: self.now, until: self.now + lasts, suspended });
                if lasts > self.plan.lease {
                    self.shared.reach(match suspended {
                        true => "process suspended past its lease",
                        false => "process stood still past its lease",
                    });
                }
            }
            Kind::Cut | Kind::Refuse => {
                if let Some(net) = &self.net {
                    net.cut(process.number, kind == Kind::Refuse, lasts);
                }
            }
            Kind::Break | Kind::Freeze => {
                let Some(actor) = lock(&process.actor).clone() else { return };
                if kind == Kind::Freeze {
                    process.runtime.spawn(actor.freeze_one(rng, lasts));
                    return;
                }
                process.runtime.spawn(actor.break_one(rng));
                return self.shared.fault("break", lasts + self.plan.lease, None, false);
            }
            _ => return,
        }
        self.shared.fault(&kind.to_string(), lasts, Some(&name), false);
    }

    /// Lets some process thaw what was left frozen; returns whether there is one.
    fn thaw_rest(&self) -> bool {
        for process in self.places.iter().flatten() {
            if let Some(actor) = lock(&process.actor).clone() {
                process.runtime.spawn(actor.thaw_rest());
                return true;
            }
        }
        false
    }

    /// Locks each id once more, and ends all processes.
    fn audit(&mut self) {
        let mut auditor = match self.plan.world {
            // The store is in the memory of the only process.
            World::Memory => None,
            World::Cell | World::Cells | World::Dynamo => Some(self.start(AUDIT, Job::Audit)),
        };
        let patience = audit_patience(self.plan.lease);
        if auditor.is_none()
            && let Some(process) = self.places.iter().flatten().next()
            && let Some(actor) = lock(&process.actor).clone()
        {
            let actor = Actor { process: AUDIT.into(), ..actor };
            process.finished.store(false, Relaxed);
            let finished = process.finished.clone();
            let ids = self.plan.ids;
            process.runtime.spawn(async move {
                audit_all(&actor, ids, patience).await;
                finished.store(true, Relaxed);
            });
        }
        let until = self.now + patience * 2;
        while self.now < until {
            self.step();
            if let Some(auditor) = &mut auditor {
                auditor.drive(self.tick);
            }
            let audits = auditor.as_ref().or_else(|| self.places.iter().flatten().next());
            if audits.is_none_or(|process| process.finished.load(Relaxed)) {
                break;
            }
        }
        self.shared.record(&AUDIT.into(), 0, Stage::Finished);
        for process in std::mem::take(&mut self.places).into_iter().flatten().chain(auditor) {
            self.shared.dying(|| process.die());
        }
    }

    fn judge(self) -> Run {
        let (mut history, mut reached) = self.shared.take();
        history.sort_by_key(|(_, line)| line.at);
        let mut by_process: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for (process, line) in &history {
            by_process.entry(process.to_string()).or_default().push(line.clone());
        }
        let mut failures = liveness::check(&self.plan, &by_process, &mut reached);
        // What a task is asked to do disturbs no other: the judge of safety is to excuse nothing by it.
        for lines in by_process.values_mut() {
            lines.retain(|line| !liveness::is_note(&line.stage));
        }
        let report = check::check(&by_process);
        let broken = report.violations.iter().map(|violation| Failure {
            rule: format!("{:?}", violation.rule),
            details: violation.details.clone(),
        });
        failures.splice(..0, broken);
        if let Some(net) = &self.net {
            reached.add(&net.reached());
            failures.extend(net.lost_foreign().into_iter().map(|name| Failure {
                rule: "Foreign".to_owned(),
                details: format!("the cell {name} is not ours and was removed"),
            }));
        }
        Run {
            history,
            failures,
            reached,
            operations: report.operations,
            outcomes: report.outcomes,
            took: self.now,
            writes: self.net.as_ref().map(|net| net.traced()).unwrap_or_default(),
        }
    }
}

/// Longer than any run.
pub(crate) const FOR_GOOD: Duration = Duration::from_secs(1_000_000);

/// How long the audit waits for an id: leases of the dead end, and their places.
fn audit_patience(lease: Duration) -> Duration {
    lease * 3 + Duration::from_secs(30)
}

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Work,
    Audit,
}

/// A process from the inside.
struct Life<D: LockDao<String, u64>> {
    number: u32,
    name: Arc<str>,
    shared: Arc<Shared>,
    rng: Rng,
    actor: Arc<Mutex<Option<Actor<D>>>>,
}

impl<D: LockDao<String, u64> + Clone + 'static> Life<D> {
    async fn live(mut self, open: impl Fn(u32) -> Opening<D> + Send, job: Job) {
        let plan = &self.shared.plan;
        let dao = loop {
            match open(self.number).await {
                Ok(dao) => break dao,
                Err(_) if job == Job::Work && self.shared.is_over() => return,
                Err(_) => self.shared.reach("store could not be opened at first"),
            }
            sleep(Duration::from_millis(200)).await;
        };
        let contexts = self.shared.clone();
        let locks = LockingService::builder_with_contexts(dao, move || contexts.context())
            .lease(plan.lease)
            .owner(&*self.name)
            .sweep(Some(plan.sweep), 100)
            .build()
            .expect("the plan has possible settings");
        let actor = Actor { locks, shared: self.shared.clone(), process: self.name.clone() };
        if job == Job::Audit {
            return audit_all(&actor, plan.ids, audit_patience(plan.lease)).await;
        }
        *lock(&self.actor) = Some(actor.clone());
        let tasks: Vec<_> =
            (0..plan.actors).map(|_| tokio::spawn(actor.clone().run(self.rng.fork()))).collect();
        for task in tasks {
            if task.await.is_err() {
                let op = self.shared.op();
                self.shared.record(&self.name, op, Stage::Asked { claims: Vec::new(), nested: false });
                self.shared.record(&self.name, op, Stage::Ended { outcome: Outcome::Panicked });
            }
        }
    }
}

async fn audit_all<D: LockDao<String, u64> + 'static>(actor: &Actor<D>, ids: u32, patience: Duration) {
    join_all((0..ids).map(|number| actor.clone().audit(number, patience))).await;
}
