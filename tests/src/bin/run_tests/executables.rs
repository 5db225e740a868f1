//! The test executables that cargo built, and how one is run.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    iter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use lockcore_conformance::journal;
use serde_json::Value;

use crate::{Failure, keeper::Servers, progress::Progress};

/// An executable none of whose tests ends for so long is killed.
const STUCK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 600 });
const POLL: Duration = Duration::from_millis(50);
/// How long the next line takes at most of what a process wrote before it ended.
const REST: Duration = Duration::from_secs(5);

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
        let stdout = lines_of(child.stdout.take().ok_or("no output")?);
        let stderr = lines_of(child.stderr.take().ok_or("no standard error")?);
        let (mut ended, mut output) = (Instant::now(), String::new());
        let mut read = |line: String, ended: &mut Instant| {
            if let Some((name, outcome)) = outcome(&line) {
                progress.ended(&self.name, name, outcome);
                *ended = Instant::now();
            }
            output.push_str(&line);
            output.push('\n');
        };
        let (mut journal, mut line) = (BufReader::new(File::open(&journal)?), String::new());
        let status = loop {
            match stdout.recv_timeout(POLL) {
                Ok(line) => read(line, &mut ended),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL),
            }
            progress.journal(self, &mut journal, &mut line)?;
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if ended.elapsed() > STUCK {
                child.kill()?;
                child.wait()?;
                let runs = progress.stuck(&self.name).join(", ");
                return Err(format!("no test ended for {} s: {runs}", STUCK.as_secs()).into());
            }
        };
        while let Ok(line) = stdout.recv_timeout(REST) {
            read(line, &mut ended);
        }
        progress.journal(self, &mut journal, &mut line)?;
        if !status.success() {
            let stderr: Vec<String> = iter::from_fn(|| stderr.recv_timeout(REST).ok()).collect();
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
        // The random histories nest deeply, and what is not optimized takes more stack: nearly all of the usual 2 MiB.
        command.env("RUST_MIN_STACK", (4 << 20).to_string());
        command
    }
}

/// What a line of a test harness says: `test NAME ... OUTCOME`.
fn outcome(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.trim_end(), outcome))
}

/// Reads the lines of a stream in a thread, which ends with the stream: a process that was started by the one that writes may keep
/// it open for longer.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, read) = mpsc::channel();
    thread::spawn(move || {
        let mut stream = BufReader::new(stream).split(b'\n').map_while(Result::ok);
        // Until no line is wanted any more.
        stream.all(|line| lines.send(String::from_utf8_lossy(&line).into_owned()).is_ok())
    });
    read
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};

    use super::*;

    /// A test that is stuck is killed, and the run goes on: also if what it started keeps its output open.
    #[test]
    fn a_stuck_test_ends_the_run_of_its_executable_only() -> Result<(), Failure> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("script");
        let mut script = File::options().write(true).create_new(true).mode(0o700).open(&path)?;
        let started = folder.path().join("started");
        let text = format!(
            "#!/bin/sh\nprintf 'start\\tnever_ends\\n' >>\"${}\"\nsleep 1000 & echo $! >{}\necho 'test short ... ok'\nwait\n",
            journal::FILE,
            started.display()
        );
        script.write_all(text.as_bytes())?;
        drop(script);
        let executable =
            Executable { name: "stuck".into(), of_library: false, path, folder: folder.path().into() };
        let progress = Progress::default();
        let ended = executable.run(true, None, &Servers::default(), folder.path(), &progress);
        Command::new("kill").arg(fs::read_to_string(started)?.trim()).status()?;
        let error = ended.expect_err("it is killed");
        assert_eq!(error.to_string(), "no test ended for 1 s: never_ends");
        progress.broken(&executable, &error);
        assert!(!progress.summary(), "the run has failed");
        Ok(())
    }
}
