//! The test executables that cargo built, and how one is run.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use lockcore_conformance::journal;
use serde_json::Value;

use crate::{Failure, keeper::Servers, progress::Progress};

/// An executable none of whose tests ends for so long is killed.
const STUCK: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(50);

/// A test executable.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The target's name.
    pub(crate) name: String,
    /// Whether it has the tests in the sources of a library or program.
    pub(crate) of_library: bool,
    path: PathBuf,
    /// The folder of the package, in which its tests run.
    folder: PathBuf,
}

/// Reads the messages of `cargo test --no-run --message-format json`.
pub(crate) fn read(messages: impl BufRead) -> Result<Vec<Executable>, Failure> {
    let mut found = Vec::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        let Some(path) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().ok_or("an executable without a manifest")?;
        let name = message["target"]["name"].as_str().ok_or("an executable without a name")?;
        let of_library = message["target"]["kind"] != serde_json::json!(["test"]);
        found.push(Executable {
            name: if of_library { format!("{name} (sources)") } else { name.to_owned() },
            of_library,
            path: path.into(),
            folder: Path::new(manifest).parent().ok_or("a manifest without a folder")?.to_owned(),
        });
    }
    Ok(found)
}

impl Executable {
    /// Counts the tests that [`run`](Self::run) will run.
    pub(crate) fn list(&self, all: bool, filter: Option<&str>) -> Result<usize, Failure> {
        let count = |more: &[&str]| -> Result<usize, Failure> {
            let output = self.command().arg("--list").args(more).args(filter).output()?;
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(output.lines().filter(|line| line.ends_with(": test")).count())
        };
        Ok(count(&[])? - if all { 0 } else { count(&["--ignored"])? })
    }

    /// Runs its tests and reports each to `progress`.
    pub(crate) fn run(
        &self,
        all: bool,
        filter: Option<&str>,
        servers: &Servers,
        journals: &Path,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let journal = journals.join(self.name.replace([' ', '(', ')'], "_"));
        File::create(&journal)?;
        let mut command = self.command();
        command.args(all.then_some("--include-ignored")).args(filter).env(journal::FILE, &journal);
        if self.of_library {
            // They compute.
            command.args(["--test-threads", "2"]);
        }
        servers.name_in(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().map(all_of);
        let stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (ended, output) = (LastEnd::now(), Mutex::new(String::new()));
        let status = thread::scope(|scope| -> Result<_, Failure> {
            let reads = scope.spawn(|| {
                for line in stdout.lines().map_while(Result::ok) {
                    if let Some((name, outcome)) = outcome(&line) {
                        progress.ended(&self.name, name, outcome);
                        ended.touch();
                    }
                    let mut output = output.lock().expect("no thread panics");
                    output.push_str(&line);
                    output.push('\n');
                }
            });
            let (mut journal, mut line) = (BufReader::new(File::open(&journal)?), String::new());
            let status = loop {
                progress.journal(self, &mut journal, &mut line)?;
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                if ended.elapsed() > STUCK {
                    child.kill()?;
                    let runs = progress.running(&self.name).join(", ");
                    return Err(format!("no test ended for {} s: {runs}", STUCK.as_secs()).into());
                }
                thread::sleep(POLL);
            };
            progress.journal(self, &mut journal, &mut line)?;
            reads.join().expect("no thread panics");
            Ok(status)
        })?;
        if !status.success() {
            let output = output.into_inner().expect("no thread panics");
            let stderr = stderr.map(|reads| reads.join().expect("no thread panics")).unwrap_or_default();
            progress.failed(&self.name, status, &output, &stderr);
        }
        Ok(())
    }

    /// Runs one test with nothing beside it, and returns whether it passed and what it wrote.
    pub(crate) fn run_alone(&self, test: &str, servers: &Servers) -> Result<(bool, String), Failure> {
        let mut command = self.command();
        command.args([test, "--exact", "--include-ignored"]);
        // A journal that no process reads: the test is void again and not repeated by itself.
        let journal = tempfile::NamedTempFile::new()?;
        command.env(journal::FILE, journal.path());
        servers.name_in(&mut command);
        let ended = command.output()?;
        let output =
            String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
        let void = fs::read_to_string(journal.path())?.lines().any(|line| line.starts_with("void\t"));
        Ok((ended.status.success(), if void { format!("void: {output}") } else { output }))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        // Many tests panic on purpose: one line of each is enough.
        command.env("RUST_BACKTRACE", "0");
        command
    }
}

/// What a line of a test harness says: `test NAME ... OUTCOME`.
fn outcome(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.trim_end(), outcome))
}

/// Reads a stream to its end, beside.
fn all_of(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // What was read before an error is worth showing.
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    })
}

/// When a test ended last.
#[derive(Debug)]
struct LastEnd(Mutex<Instant>);

impl LastEnd {
    fn now() -> Self {
        LastEnd(Mutex::new(Instant::now()))
    }

    fn touch(&self) {
        *self.0.lock().expect("no thread panics") = Instant::now();
    }

    fn elapsed(&self) -> Duration {
        self.0.lock().expect("no thread panics").elapsed()
    }
}
