//! Two kinds of verdict. A broken promise of safety fails on any machine. A promise of liveness (served within, renewed before)
//! is judged only if the machine kept up: a process that was not scheduled for longer than a lease may go without a renewal
//! cannot blame the store for the loss.
//!
//! A thread of this process measures that: it sleeps for a few milliseconds, over and over, and remembers when it woke up late, and
//! how many tasks of the machine wanted a processor. A run is *void* that failed by liveness while this thread was late by [`STALL`], a
//! store took [`SLOW`] to answer, or [`CROWDED`] tasks wanted each processor on average, since servers and child processes wait for
//! their turns too: it is repeated alone, and counted. A run that fails by liveness on a machine that kept up has failed.

use std::{
    any::Any,
    cell::Cell,
    collections::VecDeque,
    fmt, fs,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::journal;

/// How often the process looks whether it is scheduled.
const TICK: Duration = Duration::from_millis(5);

/// The longest gap in which a renewal is not late: a third of the shortest lease that a check lets the service renew.
pub const STALL: Duration = Duration::from_millis(100);

/// Tasks that want a processor, for each that there is, from which on none gets more than a fraction of what it needs.
pub const CROWDED: f64 = 4.0;

/// The longest answer of a store that keeps up: a quarter of what an offer lasts.
pub const SLOW: Duration = Duration::from_millis(500);

/// How often the tasks that want a processor are counted.
const COUNT: Duration = Duration::from_millis(100);

/// How often a void run is repeated.
pub const REPEATS: usize = 3;

/// How the message of a panic begins that says that something did not happen in time.
pub const LATE: &str = "late: ";

/// What a time limit of tokio says that is passed on as an error.
const ELAPSED: &str = "deadline has elapsed";

/// How the first line of a panic ends that expected a future to be in time, or a message of a channel.
const EXPECTED: [&str; 2] = [": Elapsed(())", ": Timeout"];

/// How the message of a panic begins that reports a broken promise of safety, also in a check of liveness.
pub const BROKEN: &str = "broken: ";

/// What a test is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Whatever fails is final, but what begins with [`LATE`].
    Safety,
    /// Leases are kept in real time: whatever fails is judged only if the machine kept up, but what begins with [`BROKEN`].
    Liveness,
}

/// The machine did not keep up, so that the run says nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Void {
    /// How long the process was not scheduled.
    pub stalled: Duration,
    /// Tasks that wanted a processor, for each that there is.
    pub crowd: f64,
    /// How the run failed.
    pub failure: String,
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.failure.lines().next().unwrap_or_default();
        let (stalled, crowd) = (self.stalled.as_millis(), self.crowd);
        write!(f, "void: stalls of {stalled} ms, {crowd:.1} tasks a processor: {first}")
    }
}

/// How a run ended that did not succeed.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// It failed.
    Failed(String),
    /// It says nothing.
    Void(Void),
}

/// Runs a test once and judges how it failed, by an error or a panic.
///
/// # Errors
/// The verdict, if it did not succeed.
pub fn judge<T>(promise: Promise, run: impl FnOnce() -> Result<T, String>) -> Result<T, Verdict> {
    let gaps = Gaps::since_now();
    LazyLock::force(&LOCATED);
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(panic) => message(&*panic) + &PANICKED_AT.take(),
    };
    // A panic of a task that the test waited for is quoted by its own.
    let says = |marker: &str| failure.starts_with(marker) || failure.contains(&format!("\"{marker}"));
    let by_liveness = match promise {
        Promise::Safety => (says(LATE) || failure == ELAPSED || is_expected(&failure)) && !says(BROKEN),
        Promise::Liveness => !says(BROKEN),
    };
    let (stalled, crowd) = (gaps.longest(), gaps.crowd());
    if by_liveness && (stalled >= STALL || crowd >= CROWDED) {
        return Err(Verdict::Void(Void { stalled, crowd, failure }));
    }
    Err(Verdict::Failed(failure))
}

/// Whether a panic expected something to happen within a time limit.
fn is_expected(failure: &str) -> bool {
    let first = failure.lines().next().unwrap_or_default();
    EXPECTED.iter().any(|end| first.ends_with(end))
}

/// Runs a test until it is judged, for a harness that knows no void runs: where a [`journal`] is kept, a void run
/// counts as passed for now; else it is repeated up to [`REPEATS`] times.
///
/// # Panics
/// If it failed.
pub fn settle(name: &str, promise: Promise, mut run: impl FnMut()) {
    let _entry = journal::Entry::new(name);
    for _ in 0..=REPEATS {
        let judged = judge(promise, || {
            run();
            Ok(())
        });
        let void = match judged {
            Ok(()) => return,
            Err(Verdict::Failed(failure)) => panic!("{failure}"),
            Err(Verdict::Void(void)) => void,
        };
        println!("{name}: {void}");
        if journal::void(name, &void) {
            return;
        }
    }
    println!("{name}: not judged: the machine did not keep up");
}

/// The name of the running test, where the standard harness runs it: that of its thread.
pub fn this_test() -> String {
    thread::current().name().unwrap_or("main").to_owned()
}

/// Watches whether the machine keeps up from now on.
pub(crate) fn watch() -> impl Fn() -> bool {
    let gaps = Gaps::since_now();
    move || gaps.longest() < STALL && gaps.crowd() < CROWDED
}

/// Fails if something took as long as `limit`, or longer.
///
/// # Panics
/// If it did.
#[track_caller]
pub fn in_time(took: Duration, limit: Duration) {
    if took >= limit {
        late(format_args!("it took {took:?} of {limit:?}"));
    }
}

/// Fails because something did not happen in time.
///
/// # Panics
/// Always.
#[track_caller]
pub fn late(what: impl fmt::Display) -> ! {
    panic!("{LATE}{what}")
}

thread_local! {
    /// Where this thread panicked last, as a line of its own.
    static PANICKED_AT: Cell<String> = const { Cell::new(String::new()) };
}

/// Has every panic remember its place, as a harness that catches it cannot ask for it.
static LOCATED: LazyLock<()> = LazyLock::new(|| {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICKED_AT.set(info.location().map(|place| format!("\nat {place}")).unwrap_or_default());
        before(info);
    }));
});

/// Fails because a promise of safety was broken.
///
/// # Panics
/// Always.
#[track_caller]
pub fn broken(what: impl fmt::Display) -> ! {
    panic!("{BROKEN}{what}")
}

/// The text of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}

/// What the ticker saw, each with the moment.
#[derive(Debug, Default)]
struct Seen {
    /// The gaps of at least [`STALL`].
    gaps: VecDeque<(Instant, Duration)>,
    /// The tasks that wanted a processor, for each that there is.
    crowds: VecDeque<(Instant, f64)>,
}

static SEEN: LazyLock<Mutex<Seen>> = LazyLock::new(|| {
    thread::Builder::new().name("ticker".to_owned()).spawn(tick).expect("a thread can be started");
    Mutex::default()
});

/// Entries of each kind that are kept: more than an hour has.
const KEPT: usize = 40_000;

fn seen() -> MutexGuard<'static, Seen> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tick() {
    let (mut before, mut counted) = (Instant::now(), Instant::now());
    loop {
        thread::sleep(TICK);
        let now = Instant::now();
        let gap = now - before - TICK;
        before = now;
        if gap >= STALL {
            push(&mut seen().gaps, (now, gap));
        }
        if now - counted >= COUNT {
            counted = now;
            if let Some(crowd) = crowd() {
                push(&mut seen().crowds, (now, crowd));
            }
        }
    }
}

/// A store answered a call after so long, none of which waits for another: if that is [`SLOW`], its server was not scheduled.
pub(crate) fn answered(after: Duration) {
    if after >= SLOW {
        push(&mut seen().gaps, (Instant::now(), after));
    }
}

fn push<T>(kept: &mut VecDeque<T>, entry: T) {
    kept.push_back(entry);
    if kept.len() > KEPT {
        kept.pop_front();
    }
}

/// Tasks that want a processor now, for each that there is; `None` where the system does not say.
fn crowd() -> Option<f64> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let running: f64 = load.split(' ').nth(3)?.split_once('/')?.0.parse().ok()?;
    let processors = thread::available_parallelism().ok()?.get();
    // This thread is one of them.
    Some((running - 1.0) / processors as f64)
}

/// What the ticker sees from one moment on.
#[derive(Debug)]
struct Gaps(Instant);

impl Gaps {
    fn since_now() -> Self {
        LazyLock::force(&SEEN);
        Gaps(Instant::now())
    }

    /// The longest gap since, or zero. One that has not ended yet counts too: the ticker gets its turn first.
    fn longest(&self) -> Duration {
        thread::sleep(TICK * 2);
        let since = |(ended, _): &&(Instant, Duration)| *ended > self.0;
        seen().gaps.iter().rev().take_while(since).map(|(_, gap)| *gap).max().unwrap_or_default()
    }

    /// How crowded the machine was since, on average; zero in less than [`COUNT`].
    fn crowd(&self) -> f64 {
        let seen = seen();
        let since = seen.crowds.iter().rev().take_while(|(counted, _)| *counted > self.0);
        let (sum, count) = since.fold((0.0, 0_u32), |(sum, count), (_, crowd)| (sum + crowd, count + 1));
        sum / f64::from(count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the ticker had found that this process was not scheduled.
    fn stall() {
        LazyLock::force(&SEEN);
        seen().gaps.push_back((Instant::now(), STALL));
    }

    fn fails(promise: Promise, message: &str, stalls: bool) -> Verdict {
        let run = || {
            if stalls {
                stall();
            }
            Err::<(), _>(message.to_owned())
        };
        judge(promise, run).expect_err("it fails")
    }

    /// Only what failed by liveness in a process that stalled is void.
    #[test]
    fn a_broken_promise_is_final() {
        let failed = |promise, message, stalls| match fails(promise, message, stalls) {
            Verdict::Failed(failure) => failure == message,
            Verdict::Void(void) => {
                assert_eq!(void.failure, message);
                false
            }
        };
        assert!(failed(Promise::Safety, "two holders", true));
        assert!(failed(Promise::Liveness, "broken: two holders", true));
        assert!(failed(Promise::Liveness, "task 7 panicked with message \"broken: two holders\"", true));
        assert!(!failed(Promise::Safety, "task 7 panicked with message \"late: it is served\"", true));
        assert!(!failed(Promise::Liveness, "it is renewed", true));
        assert!(!failed(Promise::Safety, "late: the turn of a waiter comes", true));
        assert!(!failed(Promise::Safety, "its turn comes: Elapsed(())\nat a.rs:7:9", true));
        assert!(failed(Promise::Safety, "its turn comes: Elapsed(())\nat a.rs:7:9", false));
    }

    /// A panic is judged as an error is, and its message is kept.
    #[test]
    fn a_panic_is_judged() {
        let panics = judge(Promise::Safety, || -> Result<(), String> { panic!("{} holders", 2) });
        let Err(Verdict::Failed(failure)) = panics else { panic!("{panics:?}") };
        assert!(
            failure.starts_with("2 holders\nat src/judge.rs:")
                || failure.starts_with("2 holders\nat tests/src/judge.rs:"),
            "{failure}"
        );
        let late = judge(Promise::Safety, || -> Result<(), String> {
            stall();
            late("it is served")
        });
        assert!(matches!(late, Err(Verdict::Void(_))), "{late:?}");
        assert_eq!(judge(Promise::Liveness, || Ok(1)), Ok(1));
    }

    /// A stall before a run does not excuse it.
    #[test]
    fn only_stalls_of_the_run_count() {
        stall();
        thread::sleep(TICK);
        let gaps = Gaps::since_now();
        let counted = gaps.longest();
        // Unless this machine stalls just now.
        assert!(counted.is_zero() || seen().gaps.back().is_some_and(|(ended, _)| *ended > gaps.0));
    }

    /// A machine that is crowded voids a run, and tasks that only sleep crowd none.
    #[test]
    #[cfg(target_os = "linux")]
    fn tasks_that_want_a_processor_are_counted() {
        let gaps = Gaps::since_now();
        let until = Instant::now() + COUNT * 4;
        let busy = thread::available_parallelism().expect("known").get() * 2;
        let busy: Vec<_> =
            (0..busy).map(|_| thread::spawn(move || while Instant::now() < until {})).collect();
        busy.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(gaps.crowd() >= 1.0, "{}", gaps.crowd());
    }
}
