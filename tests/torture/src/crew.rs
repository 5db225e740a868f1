//! The worker processes of a run, which are killed and stopped.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fastrand::Rng;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::AsyncWriteExt,
    process::{ChildStdin, Command},
    sync::watch,
    time::timeout,
};

use crate::{
    history::{Recorder, Stage},
    worker::Plan,
};

/// The worker processes of a run.
#[derive(Debug)]
pub struct Crew {
    folder: PathBuf,
    running: Mutex<BTreeMap<String, Running>>,
    ended: watch::Sender<bool>,
    given_up: AtomicBool,
}

/// A process that was not waited for yet.
#[derive(Debug)]
struct Running {
    pid: Pid,
    /// The process begins no more operations when this is closed, also by the end of this process.
    orders: Option<ChildStdin>,
}

impl Crew {
    /// Makes a crew without processes, with histories in a folder that is there.
    pub fn new(folder: &Path) -> Self {
        Crew {
            folder: folder.to_owned(),
            running: Mutex::default(),
            ended: watch::Sender::new(false),
            given_up: AtomicBool::new(false),
        }
    }

    /// Returns the file for the history of a process.
    pub fn history(&self, process: &str) -> PathBuf {
        self.folder.join(format!("{process}.jsonl"))
    }

    /// Runs a worker until its operations are done or the crew is told to [end](Self::end); one that is killed is replaced. `command`
    /// makes what runs [`process`](crate::worker::process), in a process group of its own.
    ///
    /// # Errors
    /// When a worker cannot be started, or ends with a failure.
    ///
    /// # Cancel safety
    /// The process is killed.
    pub async fn work(&self, number: u64, plan: &Plan, command: impl Fn() -> Command) -> io::Result<()> {
        let mut left = plan.operations;
        for life in 1.. {
            if self.has_ended() {
                break;
            }
            let name = format!("worker-{number}-{life}");
            let history = self.history(&name);
            let seed = plan.seed.wrapping_mul(1_000).wrapping_add(number * 100 + life);
            let plan = Plan { seed, operations: left, ..plan.clone() };
            let mut child = command().stdin(Stdio::piped()).process_group(0).kill_on_drop(true).spawn()?;
            let mut orders = child.stdin.take();
            if let Some(orders) = &mut orders {
                let order = format!("{}\n", serde_json::to_string(&(&plan, &history))?);
                // A process that does not read it fails, which its status says.
                let _ = orders.write_all(order.as_bytes()).await;
            }
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                self.begun(&name, Running { pid: Pid::from_raw(pid), orders });
            }
            let status = child.wait().await;
            self.running().remove(&name);
            let status = status?;
            if status.success() {
                break;
            }
            if status.code().is_some() {
                return Err(io::Error::other(format!("{name} failed: {status}")));
            }
            if self.given_up.load(Relaxed) {
                // What it had not ended counts as stuck.
                Recorder::create(&history)?.now(0, Stage::Finished);
            }
            // Killed: the rest is done by the next one. Nested operations count too, which only makes it shorter.
            let begun =
                fs::read_to_string(&history).unwrap_or_default().matches(r#""stage":"asked""#).count();
            left = left.saturating_sub(begun as u64).max(1);
        }
        Ok(())
    }

    /// Kills a worker; returns its name, if there was one.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub fn kill_one(&self, rng: &mut Rng) -> io::Result<Option<String>> {
        let Some(name) = self.choose(rng) else { return Ok(None) };
        self.signal(&name, Signal::SIGKILL)?;
        Ok(Some(name))
    }

    /// Stops a worker for so long, or until the crew is told to end; returns its name, if there was one.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn stop_one(&self, rng: &mut Rng, time: Duration) -> io::Result<Option<String>> {
        let Some(name) = self.choose(rng) else { return Ok(None) };
        self.signal(&name, Signal::SIGSTOP)?;
        self.pause(time).await;
        self.signal(&name, Signal::SIGCONT)?;
        Ok(Some(name))
    }

    /// Waits for so long, or until the crew is told to end.
    pub async fn pause(&self, time: Duration) {
        let mut ended = self.ended.subscribe();
        // What it waits for cannot go away: `self` has it.
        let _ = timeout(time, ended.wait_for(|ended| *ended)).await;
    }

    /// Has the workers begin no more operations. Those that are stopped go on.
    pub fn end(&self) {
        self.ended.send_replace(true);
        for running in self.running().values_mut() {
            drop(running.orders.take());
            // It may have ended by now.
            let _ = kill(running.pid, Signal::SIGCONT);
        }
    }

    /// Returns whether the crew was told to end.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Kills the workers that still run after [`end`](Self::end), and records that what they have not ended is stuck.
    pub fn give_up(&self) {
        self.given_up.store(true, Relaxed);
        for running in self.running().values() {
            // It may have ended by now.
            let _ = kill(running.pid, Signal::SIGKILL);
        }
    }

    fn begun(&self, name: &str, mut running: Running) {
        // Not told to end since it was started: under the lock, so that `end` comes before or after.
        let mut all = self.running();
        if self.has_ended() {
            drop(running.orders.take());
        }
        all.insert(name.to_owned(), running);
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, rng: &mut Rng) -> Option<String> {
        rng.choice(self.running().keys()).cloned()
    }

    /// Signals a worker if it still runs.
    fn signal(&self, name: &str, signal: Signal) -> io::Result<()> {
        match self.running().get(name).map(|running| kill(running.pid, signal)) {
            // It was waited for a moment ago, and is about to be taken out of the map.
            None | Some(Ok(()) | Err(Errno::ESRCH)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }
}
