//! The command: a process group of its own, signals to all of it, and how it ended.

use std::{ffi::OsString, io, os::unix::process::CommandExt, process::Command, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::signal::unix::{self, SignalKind};

use crate::{
    exit::{Code, Failure},
    group::Member,
    signals::code_of,
    terminal::Terminal,
};

/// The interval at which it is looked whether a process of the group is running: no event says so.
const LOOK: Duration = Duration::from_millis(20);

/// The command, started.
pub(crate) struct Child {
    /// Its process and its process group.
    pid: Pid,
    changes: unix::Signal,
    terminal: Option<Terminal>,
    ended: Option<u8>,
}

/// A change of the command's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It ended; the exit code is as a shell reports it.
    Ended(u8),
    /// It was stopped from the terminal by this signal; see [`Child::stop_too`].
    Stopped(Signal),
}

impl Child {
    /// Starts the command in a process group of its own, the terminal's foreground if we are that.
    pub(crate) fn start(command: &[OsString], prepare: impl FnOnce(&mut Command)) -> Result<Self, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::usage("CMD: no command was given"));
        };
        // Before it starts, so that its end is not missed.
        let changes = unix::signal(SignalKind::child())
            .map_err(|error| Failure::other(format!("cannot wait for the command: {error}")))?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        prepare(&mut command);
        let started = command.spawn().map_err(|error| {
            let code = match error.kind() {
                io::ErrorKind::NotFound => Code::CommandNotFound,
                _ => Code::CannotExecute,
            };
            let cause = match error.kind() {
                io::ErrorKind::ArgumentListTooLong => "its arguments and environment are too long: ",
                _ => "",
            };
            Failure::new(code, format!("CMD: {program:?} cannot be started: {cause}{error}"))
        })?;
        let pid = Pid::from_raw(started.id() as i32);
        Ok(Child { pid, changes, terminal: Terminal::of(pid), ended: None })
    }

    /// Waits until the command ends or is stopped from the terminal. Cancel safe; after the end it waits for
    /// ever.
    pub(crate) async fn changed(&mut self) -> Change {
        if self.ended.is_some() {
            return std::future::pending().await;
        }
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(_, code)) => return self.ended(code as u8),
                Ok(WaitStatus::Signaled(_, signal, _)) => return self.ended(code_of(signal)),
                Ok(WaitStatus::Stopped(_, signal)) => {
                    if let Some(change) = self.stopped(signal) {
                        return change;
                    }
                }
                // Another part of the process took the status; nothing more will be known.
                Err(Errno::ECHILD) => return self.ended(Code::Other as u8),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return self.ended(Code::Other as u8),
            }
            self.changes.recv().await;
        }
    }

    /// Sends a signal to the whole process group.
    pub(crate) fn signal(&self, signal: Signal) {
        // That the group is empty by now is no mistake.
        let _ = killpg(self.pid, signal);
    }

    /// Asks the whole process group to end; what is stopped is woken for it.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }

    /// Waits until the command has ended and nothing of its process group is running.
    pub(crate) async fn gone(&mut self) {
        self.code().await;
        while let Some(member) = Member::of(self.pid) {
            // Only this one, as a look at all processes costs more.
            loop {
                tokio::time::sleep(LOOK).await;
                if !member.is_running(self.pid) {
                    break;
                }
            }
        }
    }

    /// Its process group.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Waits until the command has ended; gives the exit code as a shell reports it.
    pub(crate) async fn code(&mut self) -> u8 {
        loop {
            match self.ended {
                Some(code) => return code,
                None => self.changed().await,
            };
        }
    }

    /// Stops this process as the command was stopped, until the shell lets it go on.
    pub(crate) fn stop_too(&self, signal: Signal) {
        if let Some(terminal) = &self.terminal {
            terminal.stop_with(signal);
        }
    }

    /// Lets a stopped command go on, in the foreground if the shell put us there.
    pub(crate) fn go_on(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.hand_over();
        }
        self.signal(Signal::SIGCONT);
    }

    fn stopped(&self, signal: Signal) -> Option<Change> {
        let terminal = self.terminal.as_ref()?;
        if matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU) {
            // It reached for the terminal before it was given to it.
            terminal.hand_over();
            if terminal.is_the_commands() {
                return None;
            }
        }
        Some(Change::Stopped(signal))
    }

    fn ended(&mut self, code: u8) -> Change {
        self.ended = Some(code);
        self.terminal = None; // takes the terminal back
        Change::Ended(code)
    }
}
