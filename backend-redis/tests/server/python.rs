//! redis-py and redlock-py in a process of their own, in an environment that is made at the first use.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use lockcore_conformance::servers::{Kind, ServerError};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

/// What is installed.
const PACKAGES: [&str; 2] = ["redis==8.1.0", "redlock-py==1.0.8"];

const DRIVER: &str = include_str!("driver.py");

/// A Python process with both, which does one thing after the other.
pub(crate) struct Python {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Python {
    /// Starts one that is connected to `url`.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where they cannot be had.
    pub(crate) async fn start(url: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let environment = tokio::task::spawn_blocking(environment).await?;
        let environment = environment.map_err(|reason| {
            let reason = format!("redis-py and redlock-py cannot be had: {reason}");
            ServerError::missing(Kind::Redis.name(), reason)
        })?;
        let mut command = tokio::process::Command::new(environment.join("bin/python"));
        command.args(["-c", DRIVER, url]).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped")).lines();
        Ok(Python { _process: process, input, output })
    }

    /// Calls a function of the driver.
    pub(crate) async fn call(&mut self, call: Value) -> Value {
        self.begin(call).await;
        self.result().await
    }

    /// The first half of [`call`](Self::call).
    pub(crate) async fn begin(&mut self, call: Value) {
        let line = format!("{call}\n");
        self.input.write_all(line.as_bytes()).await.expect("Python reads");
    }

    /// The second half of [`call`](Self::call).
    pub(crate) async fn result(&mut self) -> Value {
        let line = self.output.next_line().await.expect("a pipe").expect("Python has not ended");
        serde_json::from_str(&line).expect("the driver writes JSON")
    }
}

/// The folder of a virtual environment with them, which all tests of this process use.
fn environment() -> Result<&'static Path, &'static str> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(make_environment).as_deref().map_err(String::as_str)
}

/// Makes the folder, unless an earlier run did.
fn make_environment() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGES.join("-").replace("==", "-"));
    if folder.exists() {
        return Ok(folder);
    }
    fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
    // Made aside and moved when it is complete: a run that is killed leaves no half of it, and two make it at once.
    let aside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
    let made = aside.path().join("made");
    run(Command::new("python3").args(["-m", "venv"]).arg(&made))?;
    let install = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet"];
    run(Command::new(made.join("bin/python")).args(install).args(PACKAGES))?;
    match fs::rename(&made, &folder) {
        Err(_) if folder.exists() => Ok(folder),
        done => done.map(|()| folder).map_err(|error| error.to_string()),
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let Output { status, stderr, .. } = command.output().map_err(|error| format!("python3: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    Err(said.trim_end().lines().last().unwrap_or("python3 failed").to_owned())
}
