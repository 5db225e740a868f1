//! `lockctl torture`: whether the user's own store keeps its promises while processes are killed, stopped and paused.
//!
//! The workers are `lockctl` itself in a hidden mode. They are those of `lockcore-torture`, and `lockcore-judge`, which uses nothing of
//! lockcore, checks what they recorded: the tests of the project stand on the same two. The guarded writes go to files of this host.

mod store;

use std::{
    cell::Cell,
    convert::Infallible,
    fs::{self, File},
    io::{self, BufRead, IsTerminal, Write},
    iter::repeat,
    path::Path,
    pin::pin,
    time::{Duration, Instant},
};

use fastrand::Rng;
use futures_util::future::{Either, select, try_join, try_join_all};
use lockcore::{LockDao, LockingService, Page};
use lockcore_any::Waiting;
use lockcore_judge::{
    check::{AUDIT, Report, Violation},
    history::{Outcome, Stage},
};
use lockcore_torture::{
    audit::audit,
    crew::Crew,
    history::{self, Recorder},
    worker::{self, Plan},
};
use serde_json::{Map, json};
use tempfile::TempDir;
use tokio::{process::Command, time::sleep};
use uuid::Uuid;

use self::store::{described, left};
use crate::{
    admin,
    args::{Global, Torture},
    exit::{Code, Failure},
    output::{Output, say},
    session,
    signals::{Signals, code_of},
    text::people,
};

/// The number of tasks of a process.
const TASKS: u64 = 4;

/// The number of ids: so few that others are in the way.
const IDS: u64 = 24;

/// The shortest lease of a run, for which the checker is made.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// One call in so many is dropped before it ends, which costs most servers a connection.
const DROPPED: u32 = 50;

/// The most connections of a process to a database, beside those for renewals and notifications. What a killed process waited for keeps
/// its connections for some seconds more, and the server has others to serve.
const CONNECTIONS: &str = "3";

/// One callback in so many takes up to one and a half leases.
const PAUSED: u32 = 50;

/// The longest pause between two disturbances.
const EVERY: Duration = Duration::from_secs(2);

/// An operation asks for its set, releases it, and looks for its place in a queue or renews now and then.
const REQUESTS: u64 = 4;

/// The time that calls have to end after the last one began, beside four leases.
const PATIENCE: Duration = Duration::from_secs(120);

/// From this on nothing is said of what had to happen in time. The last process of a run waits longer than it has to by twice of that.
const STOOD_STILL: Duration = Duration::from_secs(5);

/// The number of entries that are swept in one step.
const BATCH: usize = 1000;

/// Tortures the store.
pub(crate) async fn torture(mut global: Global, args: Torture, output: Output) -> Result<u8, Failure> {
    if let Some(store) = args.stores.first()
        && global.url.replace(store.clone()).is_some()
    {
        return Err(Failure::usage("--url: the store is given twice"));
    }
    if global.namespace.is_some() {
        return Err(Failure::usage("--namespace: it makes one of its own, leave it out"));
    }
    let namespace = format!("torture-{}", &Uuid::new_v4().simple().to_string()[..12]);
    // Each way, as a process that cannot connect would only wait.
    for store in args.stores.iter().skip(1) {
        let first = global.url.replace(store.clone());
        session::open_existing_in(&global, &namespace).await?;
        global.url = first;
    }
    let (locks, config) = session::open_existing_in(&global, &namespace).await?;
    let store = config.store().map_err(lockcore_any::ConnectError::from)?;
    let capabilities = locks.dao().capabilities();
    let lease = capabilities.min_lease.max(SHORTEST_LEASE);
    let findings = locks.admin().doctor().await?;
    let operations = match args.operations {
        Some(operations) => operations,
        None => {
            let begun = Instant::now();
            locks.admin().list(&Page::default()).await?;
            most_operations(args.workers * TASKS, args.time, begun.elapsed(), lease)
        }
    };
    let until = match args.operations {
        Some(operations) => format!("in {operations} operations"),
        None => format!("for {}", people(args.time)),
    };
    let left = left(capabilities.backend, &findings, &namespace);
    let announced = format!(
        "torture: {store}\n\
         {} processes of {TASKS} tasks lock random sets of {IDS} ids {until}, with leases of {}, in this namespace, which is made for \
         it;\nthey are killed, stopped and paused: nothing else on this host and in the store is touched\n\
         the store gets at most about {} requests; at the end all is released, and what can be swept is\n\
         what stays: {left}",
        args.workers,
        people(lease),
        rounded(operations * REQUESTS),
    );
    confirm(&announced, args.yes)?;

    let folder = tempfile::Builder::new()
        .prefix("lockctl-torture-")
        .tempdir()
        .map_err(|error| Failure::other(format!("cannot make a folder for histories: {error}")))?;
    let resources = folder.path().join("resources");
    fs::create_dir(&resources).map_err(|error| failed(&error))?;
    let plan = Plan {
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        actors: TASKS,
        operations: args.operations.map_or(u64::MAX, |operations| operations.div_ceil(args.workers)),
        ids: IDS,
        lease,
        resources,
        dropped: DROPPED,
        paused: PAUSED,
        cheat: args.cheat,
    };
    let mut signals = Signals::listen().map_err(|error| failed(&error))?;
    let (crew, still) = (Crew::new(folder.path()), Still::default());
    let run = Run { global: &global, args: &args, namespace: &namespace, folder: &folder, plan: &plan };
    let mut signalled = None;
    let ended = {
        let (work, measuring) = (pin!(run.run(&locks, &crew)), pin!(still.measure()));
        let mut work = select(work, measuring);
        loop {
            tokio::select! {
                ended = &mut work => match ended {
                    Either::Left((ended, _)) => break ended?,
                    Either::Right((never, _)) => match never {},
                },
                signal = signals.next() => {
                    if signalled.replace(signal).is_some() {
                        say(&format!(
                            "ended at once: what is locked in the namespace {namespace} ends with its lease of {}, and `lockctl \
                             --namespace {namespace} sweep` removes it",
                            people(lease)
                        ));
                        return Ok(code_of(signal));
                    }
                    say("the processes end what they are at and are judged; once more ends all at once");
                    crew.end();
                }
            }
        }
    };
    let mut report = history::check(folder.path()).map_err(|error| failed(&error))?;
    let verdict = Verdict::of(&mut report, ended.failure, still.longest());
    let kept = match verdict {
        Verdict::Kept => None,
        _ => Some(folder.keep()),
    };
    let times = |kind: &str| report.faults.get(kind).map_or(0, |cost| cost.times);
    let url = config.url.as_ref().map_or("", |url| url.expose());
    let line = format!(
        "torture: {} lockcore {} operations={} kills={} stops={} violations={}",
        described(url, args.stores.len(), capabilities.backend, &findings),
        env!("CARGO_PKG_VERSION"),
        report.operations,
        times("kill"),
        times("stop"),
        report.violations.len()
    );
    // A run that was not judged, or that cheated, is of no use to others.
    let line = (args.cheat.is_none() && !matches!(verdict, Verdict::NotJudged(..))).then_some(line);
    let human = || {
        let mut text = format!("{report}\nseed: {}", plan.seed);
        if let Verdict::NotJudged(_, why) = &verdict {
            text += &format!("\nnot judged: {why}");
        }
        if let Some(kept) = &kept {
            text += &format!("\nhistories: {}", kept.display());
        }
        if let Some(problem) = &ended.not_clean {
            text += &format!("\nnot cleaned: {problem}");
        }
        text += &format!("\nwhat stays in the store: {left}");
        line.iter().for_each(|line| text += &format!("\n{line}"));
        text
    };
    let machine = || {
        let outcome = |(outcome, count): (&Option<Outcome>, &u64)| {
            (
                outcome.map_or("killed".to_owned(), |outcome| format!("{outcome:?}").to_lowercase()),
                json!(count),
            )
        };
        json!({
            "verdict": verdict.word(),
            "reason": if let Verdict::NotJudged(_, why) = &verdict { Some(why) } else { None },
            "namespace": namespace,
            "seed": plan.seed,
            "operations": report.operations,
            "outcomes": report.outcomes.iter().map(outcome).collect::<Map<_, _>>(),
            "kills": times("kill"),
            "stops": times("stop"),
            "guarded_writes": { "admitted": report.writes.0, "refused": report.writes.1 },
            "violations": report.violations.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "histories": kept.as_deref().map(Path::to_string_lossy),
            "not_cleaned": ended.not_clean,
            "stays": left,
            "line": line,
        })
    };
    output.result(human, machine)?;
    Ok(match (verdict, signalled) {
        (Verdict::Kept, Some(signal)) => code_of(signal),
        (Verdict::Kept, None) if ended.not_clean.is_some() => Code::Backend as u8,
        (Verdict::Kept, None) => 0,
        (Verdict::Broken, _) => Code::Other as u8,
        (Verdict::NotJudged(code, _), _) => code as u8,
    })
}

/// Works as one of the processes.
pub(crate) async fn work(global: &Global) -> Result<u8, Failure> {
    let connect = async |_: &Plan| {
        let config = session::config(global, Some(Waiting::UpTo(PATIENCE)), None);
        let mut config = config.map_err(|failure| failure.message)?;
        for backend in ["postgres", "mysql"] {
            config.options = config.options.with(backend, "max_connections", CONNECTIONS);
        }
        let opened = session::open_as(global, config, std::process::id()).await;
        opened.map(|(locks, _)| locks).map_err(|failure| failure.message)
    };
    worker::process(connect).await.map(|()| 0).map_err(|error| failed(&error))
}

/// Says what will be done, and asks whether it may be.
fn confirm(announced: &str, yes: bool) -> Result<(), Failure> {
    let mut stderr = io::stderr().lock();
    // Where stderr is closed there is no other place to say it.
    let _ = writeln!(stderr, "{announced}");
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("--yes: needed where no terminal can be asked"));
    }
    let _ = write!(stderr, "continue? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|error| failed(&error))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::usage("not confirmed: nothing was done")),
    }
}

/// The work of a run.
struct Run<'a> {
    global: &'a Global,
    args: &'a Torture,
    namespace: &'a str,
    folder: &'a TempDir,
    plan: &'a Plan,
}

/// The end of the work, beside the histories.
struct Ended {
    /// The reason why the store failed at the end.
    failure: Option<String>,
    /// The reason why the namespace is not clean.
    not_clean: Option<String>,
}

impl Run<'_> {
    /// Works until the time is over, the operations are done or the crew is told to end, and cleans up.
    async fn run(&self, locks: &LockingService, crew: &Crew) -> Result<Ended, Failure> {
        let log = File::create(self.folder.path().join("workers.log")).map_err(|error| failed(&error))?;
        let work = async {
            let log = &log;
            let ways = self.args.stores.iter().map(Some).cycle().chain(repeat(None));
            let workers = (1..=self.args.workers).zip(ways);
            let workers =
                workers.map(|(number, way)| crew.work(number, self.plan, move || self.worker(way, log)));
            let worked = try_join_all(workers).await;
            crew.end();
            worked.map(drop)
        };
        let limit = async {
            let time = if self.args.operations.is_some() { Duration::MAX } else { self.args.time };
            crew.pause(time).await;
            crew.end();
            sleep(self.plan.lease * 4 + PATIENCE).await;
            crew.give_up();
            std::future::pending::<Infallible>().await
        };
        let worked = match select(pin!(try_join(work, self.disturb(crew))), pin!(limit)).await {
            Either::Left((worked, _)) => worked,
            Either::Right((never, _)) => match never {},
        };
        if let Err(error) = worked {
            let log = fs::read_to_string(self.folder.path().join("workers.log")).unwrap_or_default();
            let last = log.lines().next_back().unwrap_or_default();
            return Err(Failure::new(Code::Backend, format!("{error}: {last}")));
        }
        let recorder = Recorder::create(&crew.history(AUDIT)).map_err(|error| failed(&error))?;
        let failure = audit(locks, self.plan, &recorder, drop).await;
        let not_clean = clean(locks).await.err().map(|failure| failure.message);
        locks.shutdown(session::GRACE).await;
        Ok(Ended { failure, not_clean })
    }

    /// Makes what starts a process. A URL with a secret is in its environment, where no others read it.
    fn worker(&self, way: Option<&String>, log: &File) -> Command {
        // The link works also if the program was replaced since it was started.
        let own = Path::new("/proc/self/exe");
        let mut command = match own.exists() {
            true => Command::new(own),
            false => Command::new(std::env::args_os().next().unwrap_or_default()),
        };
        command.arg0("lockctl").args(["--namespace", self.namespace]);
        if let Some(config) = &self.global.config {
            command.arg("--config").arg(config);
        }
        if let Some(owner) = &self.global.owner {
            command.args(["--owner", owner]);
        }
        if let Some(url) = way.or(self.global.url.as_ref()) {
            command.env("LOCKCORE_URL", url);
        }
        // Of the store's own stands on the command line.
        command.env_remove("LOCKCORE_NAMESPACE").arg("torture-worker");
        match log.try_clone() {
            Ok(log) => command.stderr(log),
            Err(_) => command.stderr(std::process::Stdio::null()),
        };
        command.stdout(std::process::Stdio::null());
        command
    }

    /// Kills and stops processes, until the crew is told to end.
    async fn disturb(&self, crew: &Crew) -> io::Result<()> {
        let mut rng = Rng::with_seed(self.plan.seed);
        let recorder = Recorder::create(&crew.history("driver"))?;
        while !crew.has_ended() {
            crew.pause(EVERY.mul_f64(rng.f64())).await;
            let begun = history::now();
            let (kind, worker) = match rng.bool() {
                true => ("kill", crew.kill_one(&mut rng)?),
                false => {
                    let time = self.plan.lease.mul_f64(0.2 + rng.f64() * 2.0);
                    ("stop", crew.stop_one(&mut rng, time).await?)
                }
            };
            if worker.is_some() {
                let millis = (history::now() - begun) / 1_000_000 + 1;
                let kind = kind.to_owned();
                recorder.at(begun, 0, Stage::Fault { kind, millis, worker, loses_grants: false });
            }
        }
        Ok(())
    }
}

/// Sweeps the namespace, of which nothing is held any more, where the store does not do that by itself, and sees that nothing is listed.
async fn clean(locks: &LockingService) -> Result<(), Failure> {
    let sweeps = locks.dao().capabilities().sweeping;
    while sweeps && locks.admin().sweep(BATCH).await?.more {}
    match admin::all(locks).await?.len() {
        0 => Ok(()),
        ids => Err(Failure::other(format!("{ids} ids are listed, which a later sweep removes"))),
    }
}

/// The longest time for which this process, and others with it, stood still.
#[derive(Default)]
struct Still(Cell<u64>);

impl Still {
    async fn measure(&self) -> Infallible {
        const TICK: Duration = Duration::from_millis(100);
        loop {
            let begun = history::now();
            sleep(TICK).await;
            self.0.set(self.0.get().max(history::now() - begun));
        }
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.0.get())
    }
}

/// The judgement of the store.
#[derive(PartialEq, Debug)]
enum Verdict {
    /// No promise was broken.
    Kept,
    /// A promise was broken.
    Broken,
    /// Nothing can be said, and why.
    NotJudged(Code, String),
}

impl Verdict {
    /// Judges, and takes out of the report what says nothing.
    fn of(report: &mut Report, failure: Option<String>, stood_still: Duration) -> Verdict {
        let still = stood_still >= STOOD_STILL;
        let (of_time, certain): (Vec<_>, Vec<_>) = std::mem::take(&mut report.violations)
            .into_iter()
            .partition(|Violation { rule, .. }| rule.is_of_time() && (still || failure.is_some()));
        report.violations = certain;
        if !report.violations.is_empty() {
            return Verdict::Broken;
        }
        if let Some(failure) = failure {
            return Verdict::NotJudged(Code::Backend, format!("the store failed: {failure}"));
        }
        if !of_time.is_empty() {
            let why =
                format!("this machine stood still for {}, and then: {}", people(stood_still), of_time[0]);
            return Verdict::NotJudged(Code::TimedOut, why);
        }
        if report.outcomes.get(&Some(Outcome::Done)).copied().unwrap_or_default() <= IDS {
            // Those of the last process are among them.
            return Verdict::NotJudged(Code::Backend, "no process locked anything".to_owned());
        }
        Verdict::Kept
    }

    /// The word for scripts that read `--json`.
    fn word(&self) -> &'static str {
        match self {
            Verdict::Kept => "kept",
            Verdict::Broken => "broken",
            Verdict::NotJudged(..) => "not_judged",
        }
    }
}

/// Returns how many operations there may be in a time, if a request takes so long.
fn most_operations(tasks: u64, time: Duration, request: Duration, lease: Duration) -> u64 {
    // A set has two ids on average, so that others wait for it; and some holders pause, for three quarters of a lease on average.
    let at_once = tasks.min(IDS / 2);
    let each = request * 2 + lease.mul_f64(0.75 / f64::from(PAUSED));
    (at_once as f64 * time.as_secs_f64() / each.as_secs_f64()) as u64
}

/// Rounds up to two digits.
fn rounded(number: u64) -> u64 {
    let unit = 10u64.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number.div_ceil(unit) * unit
}

fn failed(error: &io::Error) -> Failure {
    Failure::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use lockcore_judge::check::Rule;

    use super::*;

    #[test]
    fn what_had_to_happen_in_time_is_judged_where_store_and_machine_kept_up() {
        let report = |rules: &[Rule]| {
            let violation = |rule: &Rule| Violation { rule: *rule, details: String::new() };
            let violations = rules.iter().map(violation).collect();
            let outcomes = [(Some(Outcome::Done), IDS + 1)].into();
            Report { violations, outcomes, ..Report::default() }
        };
        let away = || Some("it is away".to_owned());
        let of = |rules: &[Rule], failure, stood_still| {
            let mut report = report(rules);
            let verdict = Verdict::of(&mut report, failure, stood_still);
            (verdict.word(), report.violations.len())
        };
        assert_eq!(of(&[], None, STOOD_STILL), ("kept", 0));
        for rule in [Rule::Stuck, Rule::LeftLocked] {
            assert_eq!(of(&[rule], None, STOOD_STILL / 2), ("broken", 1));
            assert_eq!(of(&[rule], None, STOOD_STILL), ("not_judged", 0));
            assert_eq!(of(&[rule], away(), Duration::ZERO), ("not_judged", 0));
        }
        for rule in [Rule::Exclusion, Rule::FenceBack, Rule::Write] {
            assert_eq!(of(&[rule, Rule::Stuck], away(), STOOD_STILL), ("broken", 1));
        }
        let mut nothing = Report { outcomes: [(Some(Outcome::Done), IDS)].into(), ..Report::default() };
        assert_eq!(Verdict::of(&mut nothing, None, Duration::ZERO).word(), "not_judged");
    }

    #[test]
    fn requests_are_rounded_up_to_two_digits() {
        assert_eq!([0, 7, 99, 101, 12_345].map(rounded), [0, 7, 99, 110, 13_000]);
    }
}
