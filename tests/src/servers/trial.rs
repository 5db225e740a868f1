//! The tests of a package in one executable, many at once in one process: what they need of a server, what they must not share
//! with others, and how they are judged.

use std::{
    collections::HashMap,
    convert::Infallible,
    env,
    error::Error,
    future::Future,
    io, iter,
    process::ExitCode,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use libtest_mimic::{Arguments, Completion, Failed};
use lockcore::{BackendError, LockingError, Uuid};

use super::{Kind, Server, ServerError, Way, forget_shared};
use crate::{
    Backend, Store, all,
    instances::{Instance, Part},
    journal,
    judge::{self, LATE, Promise, REPEATS, Verdict},
    own_process,
    registry::{runtime, within_limit},
};

/// What a test that needs a server returns.
pub type TestResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Tests that run at once in a process unless its arguments say otherwise. They wait more than they compute.
const AT_ONCE: usize = 8;

/// A test of an executable with `harness = false`.
pub struct Trial {
    name: String,
    promise: Promise,
    own_process: bool,
    thorough: bool,
    group: Option<(&'static str, usize)>,
    run: Box<dyn FnOnce() -> Result<Completion, Failed> + Send>,
}

impl Trial {
    /// A test that fails by an error or a panic.
    pub fn test<R>(name: impl Into<String>, run: R) -> Self
    where
        R: FnOnce() -> Result<(), Failed> + Send + 'static,
    {
        Self::ignorable_test(name, || run().map(|()| Completion::Completed))
    }

    /// A test that may also find out that it cannot run.
    pub fn ignorable_test<R>(name: impl Into<String>, run: R) -> Self
    where
        R: FnOnce() -> Result<Completion, Failed> + Send + 'static,
    {
        Trial {
            name: name.into(),
            promise: Promise::Safety,
            own_process: false,
            thorough: false,
            group: None,
            run: Box::new(run),
        }
    }

    /// A test that is a function of plain code.
    pub fn plain<E: Ending + 'static>(name: impl Into<String>, test: fn() -> E) -> Self {
        Self::ignorable_test(name, move || test().outcome())
    }

    /// A test that is an async function: on a runtime of its own with two workers.
    pub fn on_runtime<F>(name: impl Into<String>, test: impl FnOnce() -> F + Send + 'static) -> Self
    where
        F: Future<Output: Ending>,
    {
        Self::ignorable_test(name, move || runtime(false).block_on(test()).outcome())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It is about what happens in time: how it fails is judged only if the machine kept up.
    #[must_use]
    pub fn of_liveness(mut self) -> Self {
        self.promise = Promise::Liveness;
        self
    }

    /// It runs in a process of its own: it forks, sends signals to this process, changes what all tests share, or counts it.
    #[must_use]
    pub fn in_own_process(mut self) -> Self {
        self.own_process = true;
        self
    }

    /// It takes long, or repeats what another test shows: `./test.sh all` and `--include-ignored` run it.
    #[must_use]
    pub fn thorough(mut self) -> Self {
        self.thorough = true;
        self
    }

    /// At most so many of this group run at once.
    #[must_use]
    pub fn at_once(mut self, group: &'static str, most: usize) -> Self {
        self.group = Some((group, most));
        self
    }

    fn into_mimic(self, slots: &Arc<Slots>) -> libtest_mimic::Trial {
        let Trial { name, promise, own_process, thorough, group, run } = self;
        let (slots, of) = (slots.clone(), name.clone());
        let run = move || {
            let _slot = slots.take(group);
            if own_process && !own_process::is_child() {
                return in_child(&of);
            }
            let entry = journal::Entry::new(&of);
            let judged = judge::judge(promise, || run().map_err(|failed| text(&failed)));
            drop(entry);
            match judged {
                Ok(completion) => Ok(completion),
                Err(Verdict::Failed(failure)) => {
                    journal::failed(&of, &failure);
                    Err(failure.into())
                }
                Err(Verdict::Void(void)) => {
                    journal::void(&of, &void);
                    Ok(Completion::ignored_with(void))
                }
            }
        };
        libtest_mimic::Trial::ignorable_test(name, run).with_ignored_flag(thorough)
    }
}

fn text(failed: &Failed) -> String {
    failed.message().unwrap_or("it failed without a message").to_owned()
}

/// Runs one test of this executable in a process of its own.
fn in_child(name: &str) -> Result<Completion, Failed> {
    let child = own_process::run(name)?;
    let output = own_process::text(&child);
    if !child.status.success() {
        return Err(format!("in a process of its own: {}\n{output}", child.status).into());
    }
    let ignored = output.lines().find_map(|line| line.split_once(" ... ignored ("));
    let reason = |(_, rest): (_, &str)| Completion::ignored_with(rest.strip_suffix(')').unwrap_or(rest));
    Ok(ignored.map_or(Completion::Completed, reason))
}

/// What a test may return.
pub trait Ending {
    /// What it means to the harness.
    ///
    /// # Errors
    /// When the test failed.
    fn outcome(self) -> Result<Completion, Failed>;
}

impl Ending for () {
    fn outcome(self) -> Result<Completion, Failed> {
        Ok(Completion::Completed)
    }
}

impl Ending for TestResult {
    fn outcome(self) -> Result<Completion, Failed> {
        outcome(self)
    }
}

/// Lists functions as tests `<area>::<function>`: `tests!["docs"; every_link_leads_somewhere]`, or those that are async with
/// `tests!["proxy", async; resets_open_and_new_connections]`.
#[macro_export]
macro_rules! tests {
    ($area:literal; $($name:ident),* $(,)?) => {
        ::std::vec![$($crate::servers::Trial::plain(concat!($area, "::", stringify!($name)), $name),)*]
    };
    ($area:literal, async; $($name:ident),* $(,)?) => {
        ::std::vec![$($crate::servers::Trial::on_runtime(concat!($area, "::", stringify!($name)), $name),)*]
    };
}

/// Which tests may run: so many in all, and of each group.
struct Slots {
    /// Tests that run, in all and by group.
    running: Mutex<(usize, HashMap<&'static str, usize>)>,
    ended: Condvar,
    most: usize,
}

/// The right to run, given back when it is dropped.
struct Slot {
    slots: Arc<Slots>,
    group: Option<&'static str>,
}

impl Slots {
    fn take(self: &Arc<Self>, group: Option<(&'static str, usize)>) -> Slot {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |running: &mut (usize, HashMap<_, _>)| {
            let of_group = group.is_some_and(|(name, most)| *running.1.entry(name).or_default() >= most);
            running.0 >= self.most || of_group
        };
        let mut running = self.ended.wait_while(running, full).unwrap_or_else(PoisonError::into_inner);
        running.0 += 1;
        if let Some((name, _)) = group {
            *running.1.entry(name).or_default() += 1;
        }
        Slot { slots: self.clone(), group: group.map(|(name, _)| name) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut running = self.slots.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.0 -= 1;
        if let Some(of_group) = self.group.and_then(|name| running.1.get_mut(name)) {
            *of_group -= 1;
        }
        self.slots.ended.notify_all();
    }
}

/// The test `<kind>::<name>`, on a runtime of its own with two workers.
///
/// Returning [`ServerError::Unavailable`], as `?` on [`Server::start`](super::Server::start) does,
/// makes it show as ignored with the reason; see [`outcome`].
pub fn trial<F>(kind: Kind, name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    Trial::ignorable_test(format!("{kind}::{name}"), move || outcome(runtime(false).block_on(test())))
}

/// The test `<kind>::<name>` with a server got in one particular way. A machine need not have every way: where this one
/// is missing the test shows as ignored, also where servers are required.
pub fn trial_by<F>(kind: Kind, way: Way, name: &str, test: impl FnOnce(Server) -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    Trial::ignorable_test(format!("{kind}::{name}"), move || {
        runtime(false).block_on(async {
            match Server::start_by(kind, way).await {
                Ok(server) => outcome(test(server).await),
                Err(missing @ ServerError::Unavailable { .. }) => Ok(Completion::ignored_with(missing)),
                Err(error) => Err(error.into()),
            }
        })
    })
}

/// The checks of the suite that the [table](crate::instances) gives this instance, as tests `<instance>::<group>::<check>`, each
/// on what `backend` makes, and where it has checks of the service one more, in a process that forks. A server that is not to be had is as in [`trial`].
pub fn checks<B, M, F>(instance: &'static str, backend: M) -> impl Iterator<Item = Trial>
where
    B: Backend,
    M: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<B, Box<dyn Error + Send + Sync>>>,
{
    let of = Instance::named(instance);
    let forked = (of.service != Part::None).then(|| forked(instance, backend.clone()));
    checks_of(instance, |check| of.runs(check), backend).chain(forked)
}

/// The test `<instance>::forked::a_child_reaches_nothing`.
fn forked<B, M, F>(instance: &'static str, backend: M) -> Trial
where
    B: Backend,
    M: Fn() -> F + Send + 'static,
    F: Future<Output = Result<B, Box<dyn Error + Send + Sync>>>,
{
    let run = move || {
        outcome(runtime(false).block_on(async {
            let store = Store::new(Arc::new(backend().await?)).await;
            super::forked::a_child_reaches_nothing(store).await
        }))
    };
    Trial::ignorable_test(format!("{instance}::forked::a_child_reaches_nothing"), run).in_own_process()
}

/// The checks of the suite that `runs` returns `true` for, as tests `<prefix>::<group>::<check>`.
pub fn checks_of<B, M, F>(
    prefix: &'static str,
    runs: impl Fn(&str) -> bool,
    backend: M,
) -> impl Iterator<Item = Trial>
where
    B: Backend,
    M: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<B, Box<dyn Error + Send + Sync>>>,
{
    all::<B>().into_iter().filter(move |check| runs(check.name)).map(move |check| {
        let (backend, name, promise) = (backend.clone(), check.name, check.promise());
        let run = move || {
            let virtual_time = check.virtual_time();
            outcome(runtime(virtual_time).block_on(async {
                let store = Store::new(Arc::new(backend().await?)).await;
                within_limit(virtual_time, (check.run)(store)).await;
                Ok(())
            }))
        };
        let trial = Trial::ignorable_test(format!("{prefix}::{name}"), run);
        if promise == Promise::Liveness { trial.of_liveness() } else { trial }
    })
}

/// The checks of adapters, as tests `<prefix>::cell::<check>`.
#[cfg(feature = "cell")]
pub fn cell_checks<A, M, F>(prefix: &'static str, adapter: M) -> impl Iterator<Item = Trial>
where
    A: crate::cell::Adapter,
    M: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<A, Box<dyn Error + Send + Sync>>>,
{
    crate::cell::all::<A>().into_iter().map(move |check| {
        let adapter = adapter.clone();
        Trial::ignorable_test(format!("{prefix}::cell::{}", check.name), move || {
            outcome(runtime(false).block_on(async {
                let cells = crate::cell::Cells::new(adapter().await?).await;
                within_limit(false, (check.run)(cells)).await;
                Ok(())
            }))
        })
    })
}

/// What a test's result means to the harness: a server that is unavailable is no failure, unless
/// `LOCKCORE_REQUIRE_SERVERS` is `1`.
///
/// # Errors
/// When the test failed.
pub fn outcome(result: TestResult) -> Result<Completion, Failed> {
    let error = match result {
        Ok(()) => return Ok(Completion::Completed),
        Err(error) => error,
    };
    let required = env::var_os("LOCKCORE_REQUIRE_SERVERS").is_some_and(|value| value == "1");
    match error.downcast_ref() {
        Some(ServerError::Unavailable { .. }) if !required => Ok(Completion::ignored_with(error)),
        _ if may_pass(&*error) => Err(format!("{LATE}{error}").into()),
        _ => Err(error.into()),
    }
}

/// Whether a test was ended by a store that did not answer in time, or a server that could not be had: no broken promise, and no
/// failure either where the machine did not keep up.
fn may_pass(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |error| (*error).source()).any(|error| {
        error.downcast_ref().is_some_and(BackendError::is_retryable)
            || error.downcast_ref().is_some_and(is_outage::<Infallible>)
            || error.downcast_ref().is_some_and(is_outage::<io::Error>)
            || matches!(error.downcast_ref(), Some(ServerError::Failed { .. }))
    })
}

/// Whether a call was refused by a store that may answer later. Not by its source: the message has that already.
fn is_outage<E>(error: &LockingError<String, Uuid, E>) -> bool {
    matches!(error, LockingError::NotLocked { .. }) && error.is_retryable() && !error.is_contention()
}

/// Runs the tests as the arguments of this process say, repeats what was void, then removes the servers that this process
/// started.
///
/// For `fn main() -> ExitCode` of a test with `harness = false`.
pub fn run(trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let slots = Slots {
        running: Mutex::default(),
        ended: Condvar::new(),
        most: arguments.test_threads.unwrap_or(AT_ONCE),
    };
    let slots = Arc::new(slots);
    let trials: Vec<_> = trials.into_iter().map(|trial| trial.into_mimic(&slots)).collect();
    // The slots say which of them run.
    arguments.test_threads = Some(trials.len().clamp(1, 1024));
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime(false).block_on(forget_shared());
    // A process for one test leaves its void run to the one that started it, which limits how often it is repeated.
    let good = !conclusion.has_failed() && (own_process::is_child() || repeated());
    if good { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// Repeats the void runs, unless the process that started this one does. `false` if one fails.
fn repeated() -> bool {
    let mut good = true;
    for name in journal::voids_of_this_process() {
        let mut left = REPEATS;
        loop {
            match in_child(&name) {
                Ok(Completion::Ignored { reason: Some(reason) })
                    if reason.starts_with("void: ") && left > 0 =>
                {
                    left -= 1;
                }
                Ok(Completion::Ignored { reason: Some(reason) }) if reason.starts_with("void: ") => {
                    println!("void run of {name}, repeated alone: not judged: {reason}");
                    break;
                }
                Ok(_) => {
                    println!("void run of {name}, repeated alone: ok");
                    break;
                }
                Err(failed) => {
                    println!("void run of {name}, repeated alone: FAILED\n{}", text(&failed));
                    good = false;
                    break;
                }
            }
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use lockcore::{BackendErrorKind, LockingError};
    use uuid::Uuid;

    use super::*;

    /// A store that did not answer in time says as little about a promise as a turn that did not come in time.
    #[test]
    fn a_store_that_does_not_answer_in_time_breaks_no_promise() {
        let failed =
            |error: Box<dyn Error + Send + Sync>| text(&outcome(Err(error)).err().expect("it failed"));
        let of = |kind| BackendError::new(kind, "refused");
        assert_eq!(failed(of(BackendErrorKind::Timeout).into()), "late: refused");
        let below = LockingError::<String, Uuid>::from(of(BackendErrorKind::Unavailable));
        assert!(failed(below.into()).starts_with(LATE));
        assert_eq!(failed(of(BackendErrorKind::Corrupt).into()), "refused");
        assert_eq!(failed("two holders".into()), "two holders");
    }
}
