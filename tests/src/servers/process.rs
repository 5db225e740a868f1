//! A server as a process of this machine, with its files in a temporary folder.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::Child,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::{
    Kind,
    container::{last_lines, redacted},
    endpoint::Endpoint,
    error::ServerError,
    guard::{Guard, PID_FILE},
    programs::Programs,
    wire,
};

const READY: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Another program may take the free port before the server does.
const ATTEMPTS: u32 = 3;

/// A server's process; dropping it kills it and removes its files.
///
/// Pausing and killing goes to all that the server has started too: Postgres has a process for each
/// connection, which would go on answering.
pub(super) struct Process {
    kind: Kind,
    password: String,
    programs: Programs,
    /// Beyond the usual ones.
    arguments: Vec<String>,
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl Process {
    /// `program`: the name of another than the kind's usual one. `configure` gets the folder, to put files there, and gives
    /// further arguments.
    pub(super) async fn start(
        kind: Kind,
        program: Option<&str>,
        password: String,
        configure: impl FnOnce(&Path) -> io::Result<Vec<String>> + Send + 'static,
    ) -> Result<(Self, Endpoint), ServerError> {
        let failed = |reason: String| ServerError::failed(kind, "start", reason);
        let programs =
            Programs::find(kind, program).map_err(|reason| ServerError::unavailable(kind, reason))?;
        let guard = Guard::of_this_process().map_err(failed)?;
        let folder = tempfile::Builder::new()
            .prefix(kind.name())
            .tempdir_in(guard.folder())
            .map_err(|error| failed(error.to_string()))?;
        let arguments = Vec::new();
        let mut process = Self { kind, password, programs, arguments, folder, port: 0, child: None };
        // Some seconds of another program's work: not on a thread that runs tests' futures.
        let (mut process, prepared) = tokio::task::spawn_blocking(move || {
            let folder = process.folder.path();
            let prepared = configure(folder).map_err(|error| error.to_string()).and_then(|arguments| {
                process.arguments = arguments;
                process.programs.prepare(folder, &process.password)
            });
            process.port = free_port().unwrap_or_default();
            (process, prepared)
        })
        .await
        .map_err(|error| failed(error.to_string()))?;
        prepared.map_err(failed)?;
        let endpoint = process.start_again().await.map_err(failed)?;
        Ok((process, endpoint))
    }

    pub(super) fn pause(&self) -> Result<(), String> {
        // A process may have forked before it was stopped: until a look finds nothing new.
        let mut stopped = Vec::new();
        loop {
            let found = self.processes();
            let new: Vec<Pid> = found.into_iter().filter(|pid| !stopped.contains(pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            send(&new, Signal::SIGSTOP)?;
            stopped.extend(new);
        }
    }

    pub(super) fn resume(&self) -> Result<(), String> {
        send(&self.processes(), Signal::SIGCONT)
    }

    pub(super) fn kill(&mut self) -> Result<(), String> {
        // Stopped first, so that none is born while the others die.
        self.pause()?;
        send(&self.processes(), Signal::SIGKILL)?;
        if let Some(mut child) = self.child.take() {
            child.wait().map_err(|error| error.to_string())?;
            self.forget_pid();
        }
        Ok(())
    }

    /// Returns whether it has ended, by itself unless it was killed.
    pub(super) fn has_ended(&mut self) -> bool {
        let Some(child) = &mut self.child else { return true };
        let has_ended = matches!(child.try_wait(), Ok(Some(_)));
        if has_ended {
            // It was waited for, so that its number may be another process's soon.
            self.child = None;
            self.forget_pid();
        }
        has_ended
    }

    /// Starts the server on its files, on the port it had if that is still free.
    pub(super) async fn start_again(&mut self) -> Result<Endpoint, String> {
        let mut attempt = 1;
        loop {
            match self.attempt().await {
                Ok(endpoint) => return Ok(endpoint),
                Err(reason) if attempt == ATTEMPTS => return Err(reason),
                Err(_) => attempt += 1,
            }
            self.kill()?;
            self.port = free_port().map_err(|error| error.to_string())?;
        }
    }

    async fn attempt(&mut self) -> Result<Endpoint, String> {
        let log = self.folder.path().join("log");
        let child = self.spawn(&log).map_err(|error| format!("cannot be run: {error}"))?;
        let told = self.tell_pid(&child);
        let child = self.child.insert(child);
        told.map_err(|error| error.to_string())?;
        let endpoint = Endpoint::own(self.kind, "127.0.0.1", self.port, &self.password);
        let address = endpoint.address();
        let ended = async {
            while matches!(child.try_wait(), Ok(None)) {
                tokio::time::sleep(POLL).await;
            }
        };
        let problem = tokio::select! {
            // The end first: where the port was taken, another server may answer.
            biased;
            () = ended => {
                // Waited for, so that its number may be another process's soon.
                self.child = None;
                self.forget_pid();
                "it has ended".to_owned()
            }
            answered = wire::until_answers(self.kind, &address, READY) => match answered {
                Ok(()) => return Ok(endpoint),
                Err(error) => format!("no answer in {} s ({error})", READY.as_secs()),
            },
        };
        let said = fs::read_to_string(log).unwrap_or_default();
        let reason = format!("{problem}: {}", last_lines(&said));
        Err(redacted(reason, &self.password))
    }

    /// For the guard, which is to kill this process if nothing else does.
    fn tell_pid(&self, child: &Child) -> io::Result<()> {
        fs::write(self.folder.path().join(PID_FILE), child.id().to_string())
    }

    fn forget_pid(&self) {
        // It is there, and in a folder of ours.
        let _ = fs::remove_file(self.folder.path().join(PID_FILE));
    }

    fn spawn(&self, log: &Path) -> io::Result<Child> {
        let log = File::create(log)?;
        let mut command = self.programs.serve(self.folder.path(), self.port, &self.arguments);
        command.stdout(log.try_clone()?).stderr(log).spawn()
    }

    /// The server's process and all that it has started, directly or not.
    fn processes(&self) -> Vec<Pid> {
        let Some(child) = &self.child else {
            return Vec::new();
        };
        // A child that was not waited for keeps its number, even if it has ended.
        let child = i32::try_from(child.id()).expect("Linux gives out 22 bits");
        let parents = parents();
        let mut found = vec![child];
        let mut looked_at = 0;
        while let Some(&parent) = found.get(looked_at) {
            let children = parents.iter().filter(|(_, of)| *of == parent);
            found.extend(children.map(|(pid, _)| *pid));
            looked_at += 1;
        }
        found.into_iter().map(Pid::from_raw).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What cannot be killed now is tried again by the guard.
        let _ = self.kill();
    }
}

/// Every process of this machine with its parent.
fn parents() -> Vec<(i32, i32)> {
    let Ok(all) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    all.flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // "pid (name) state parent ...", and a name may contain anything.
            let (_, fields) = stat.rsplit_once(')')?;
            let parent = fields.split_ascii_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}

fn send(processes: &[Pid], signal: Signal) -> Result<(), String> {
    for &process in processes {
        match kill(process, signal) {
            // It has ended by itself.
            Ok(()) | Err(nix::Error::ESRCH) => {}
            Err(error) => return Err(format!("{signal}: {error}")),
        }
    }
    Ok(())
}

pub(super) fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
