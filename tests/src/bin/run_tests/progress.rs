//! What runs, what ended, and how: shown while it goes on, and summed up.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Display,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitStatus,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use lockcore_conformance::judge::REPEATS;

use crate::{Failure, executables::Executable, keeper::Servers};

/// How often the state is shown: on a terminal, in one line, and elsewhere.
const ON_A_TERMINAL: Duration = Duration::from_millis(500);
const ELSEWHERE: Duration = Duration::from_secs(15);

/// Tests that the summary names as slow.
const SLOWEST: usize = 10;
/// Of each reason for which tests were skipped, so many are named.
const NAMED: usize = 3;

#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    expected: usize,
    passed: usize,
    failed: Vec<String>,
    /// Why tests failed, by their names.
    failures: HashMap<String, String>,
    /// The tests that were left to `./test.sh all`.
    left_out: usize,
    /// By reason.
    skipped: BTreeMap<String, Vec<String>>,
    voids: Vec<Void>,
    /// What became of each void run.
    repeated: Vec<String>,
    running: HashMap<(String, String), Instant>,
    took: Vec<(Duration, String)>,
    finished: bool,
}

/// A run that says nothing.
#[derive(Clone, Debug)]
pub(crate) struct Void {
    executable: String,
    test: String,
    reason: String,
}

impl Default for Progress {
    fn default() -> Self {
        Progress { began: Instant::now(), state: Mutex::default() }
    }
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the number of tests to run.
    pub(crate) fn expect(&self, tests: usize) {
        self.state().expected += tests;
    }

    /// A line of a harness said how a test ended.
    pub(crate) fn ended(&self, executable: &str, test: &str, outcome: &str) {
        let name = format!("{executable}: {test}");
        let mut state = self.state();
        match outcome.strip_prefix("ignored") {
            Some("") => state.left_out += 1,
            Some(reason) => {
                // As the standard harness and ours write it.
                let ours = reason.strip_prefix(" (").and_then(|reason| reason.strip_suffix(')'));
                let reason = ours.or_else(|| reason.strip_prefix(", ")).unwrap_or(reason);
                // A void run is known from the journal.
                if !reason.starts_with("void: ") {
                    state.skipped.entry(reason.to_owned()).or_default().push(name);
                }
            }
            None if outcome.starts_with("ok") => state.passed += 1,
            None => {
                state.failed.push(name.clone());
                drop(state);
                self.say(&format!("FAILED {name}"));
            }
        }
    }

    /// Reads the lines that an executable wrote down since; `line` has the part of one that was not written to its end then.
    pub(crate) fn journal(
        &self,
        of: &Executable,
        journal: &mut impl BufRead,
        line: &mut String,
    ) -> Result<(), Failure> {
        while journal.read_line(line)? > 0 && line.ends_with('\n') {
            let words: Vec<&str> = line.trim_end().split('\t').collect();
            let mut state = self.state();
            match words[..] {
                ["start", test] => {
                    state.running.insert((of.name.clone(), test.to_owned()), Instant::now());
                }
                ["end", millis, test] => {
                    state.running.remove(&(of.name.clone(), test.to_owned()));
                    state.took.push((Duration::from_millis(millis.parse()?), format!("{}: {test}", of.name)));
                }
                ["failed", test, reason] => {
                    state.failures.insert(format!("{}: {test}", of.name), reason.to_owned());
                }
                ["void", test, reason] => state.voids.push(Void {
                    executable: of.name.clone(),
                    test: test.to_owned(),
                    reason: reason.to_owned(),
                }),
                _ => return Err(format!("not a line of a journal: {line}").into()),
            }
            line.clear();
        }
        Ok(())
    }

    /// Returns the tests that ran in an executable when it was killed, which run no more.
    pub(crate) fn stuck(&self, executable: &str) -> Vec<String> {
        let mut state = self.state();
        state.running.extract_if(|(of, _), _| of == executable).map(|((_, test), _)| test).collect()
    }

    /// An executable ended with a failure: shows why.
    pub(crate) fn failed(&self, executable: &str, status: ExitStatus, output: &str, stderr: &[String]) {
        let (list, from) = (output.contains("\nfailures:\n"), output.find("\nfailures:\n").unwrap_or(0));
        if !list {
            // It ended in the middle of its tests.
            self.state().failed.push(format!("{executable}: {status}"));
        }
        self.say(&format!("== {executable}: {status}\n{}", &output[from..]));
        let shown = stderr.len().saturating_sub(if list { 60 } else { 200 });
        if !stderr.is_empty() {
            self.say(&format!("== the end of its standard error\n{}", stderr[shown..].join("\n")));
        }
    }

    /// An executable could not be run.
    pub(crate) fn broken(&self, executable: &Executable, error: &dyn Display) {
        self.state().failed.push(format!("{}: {error}", executable.name));
        self.say(&format!("FAILED {}: {error}", executable.name));
    }

    /// Repeats the void runs one by one.
    pub(crate) fn repeat_voids(&self, run: impl Fn(&Void) -> Result<(bool, String), Failure>) {
        let voids = self.state().voids.clone();
        for void in voids {
            let name = format!("{}: {}", void.executable, void.test);
            let began = Instant::now();
            self.state().running.insert((void.executable.clone(), void.test.clone()), began);
            let ended = (0..REPEATS).find_map(|_| match run(&void) {
                Ok((_, output)) if output.starts_with("void: ") => None,
                ended => Some(ended),
            });
            let mut state = self.state();
            state.running.clear();
            let became = match ended {
                Some(Ok((true, _))) => {
                    state.passed += 1;
                    "alone: ok".to_owned()
                }
                Some(Ok((false, output))) => {
                    state.failed.push(name.clone());
                    format!("alone: FAILED\n{output}")
                }
                Some(Err(error)) => {
                    state.failed.push(name.clone());
                    format!("alone: FAILED: {error}")
                }
                None => {
                    state
                        .skipped
                        .entry("not judged: the machine did not keep up".to_owned())
                        .or_default()
                        .push(name.clone());
                    format!("alone: void {REPEATS} times more")
                }
            };
            state.repeated.push(format!("{name}: {}; {became}", void.reason));
        }
    }

    /// There is nothing more to show.
    pub(crate) fn finish(&self) {
        self.state().finished = true;
    }

    /// Shows the state until all is done; `meanwhile` is called now and then.
    pub(crate) fn show(&self, meanwhile: impl Fn()) {
        let terminal = io::stdout().is_terminal();
        let every = if terminal { ON_A_TERMINAL } else { ELSEWHERE };
        let mut shown = Instant::now();
        while !self.state().finished {
            thread::sleep(ON_A_TERMINAL);
            meanwhile();
            if shown.elapsed() >= every {
                shown = Instant::now();
                let line = self.line();
                let _ = match terminal {
                    true => write!(io::stdout(), "\r\x1b[K{line}").and_then(|()| io::stdout().flush()),
                    false => writeln!(io::stdout(), "{line}"),
                };
            }
        }
        if terminal {
            let _ = write!(io::stdout(), "\r\x1b[K");
        }
    }

    fn line(&self) -> String {
        let state = self.state();
        let done = state.passed + state.failed.len() + state.skipped.values().map(Vec::len).sum::<usize>();
        let mut longest: Vec<_> =
            state.running.iter().map(|((_, test), began)| (began.elapsed(), test)).collect();
        longest.sort_by(|one, other| other.cmp(one));
        let waits: Vec<_> =
            longest.iter().take(2).map(|(since, test)| format!("{test} ({} s)", since.as_secs())).collect();
        format!(
            "[{}] {done} of {} tests, {} failed, {} void; {} run: {}",
            clock(self.began.elapsed()),
            state.expected,
            state.failed.len(),
            state.voids.len(),
            longest.len(),
            waits.join(", "),
        )
    }

    fn say(&self, text: &str) {
        let clear = if io::stdout().is_terminal() { "\r\x1b[K" } else { "" };
        println!("{clear}{text}");
    }

    /// Prints the summary, and returns whether all is well.
    pub(crate) fn summary(&self) -> bool {
        let mut state = self.state();
        let skipped: usize = state.skipped.values().map(Vec::len).sum();
        state.took.sort_by(|one, other| other.cmp(one));
        println!("\n== slowest");
        for (took, name) in state.took.iter().take(SLOWEST) {
            println!("{:6.1} s  {name}", took.as_secs_f64());
        }
        if !state.repeated.is_empty() {
            println!("== void: the machine did not keep up, so that the run says nothing");
            state.repeated.iter().for_each(|void| println!("{void}"));
        }
        if skipped + state.left_out > 0 {
            println!("== skipped");
        }
        for (reason, tests) in &state.skipped {
            let more = tests.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            println!("{}{more}: {reason}", tests[..tests.len().min(NAMED)].join(", "));
        }
        if state.left_out > 0 {
            println!("{} tests that take long, or repeat what others show: ./test.sh all", state.left_out);
        }
        if !state.failed.is_empty() {
            println!("== failed");
            for name in &state.failed {
                let reason = state.failures.get(name).map(|reason| format!(": {reason}"));
                println!("{name}{}", reason.unwrap_or_default());
            }
        }
        println!("== {} void, in {}", state.voids.len(), clock(self.began.elapsed()));
        println!("{} passed, {} failed, {skipped} skipped", state.passed, state.failed.len());
        state.failed.is_empty() && state.passed > 0
    }
}

impl Void {
    /// Runs the test again, with nothing beside it.
    pub(crate) fn run_alone(
        &self,
        executables: &[Executable],
        servers: &Servers,
    ) -> Result<(bool, String), Failure> {
        let of = executables.iter().find(|executable| executable.name == self.executable);
        of.ok_or("its executable is gone")?.run_alone(&self.test, servers)
    }
}

fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
