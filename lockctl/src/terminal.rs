//! The terminal: a process that reads it must be its foreground, and the shell must see when the command is stopped.

use std::{
    fs::File,
    io::{self, IsTerminal},
};

use nix::{
    sys::signal::{SigSet, SigmaskHow, Signal, killpg},
    unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp},
};

/// The terminal that controls our process group and the command's.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: File,
    command: Pid,
}

impl Terminal {
    /// The terminal, if there is one. With a terminal on stdin the command becomes its foreground at once, else only
    /// when it reaches for it: the rest of a pipeline may need it more.
    pub(crate) fn of(command: Pid) -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let terminal = Terminal { file, command };
        if io::stdin().is_terminal() {
            terminal.hand_over();
        }
        Some(terminal)
    }

    /// Makes the command the foreground if we are it, and lets it go on if it stopped because it was not yet.
    pub(crate) fn hand_over(&self) {
        if self.foreground() == Some(getpgrp()) {
            self.set_foreground(self.command);
        }
        if self.is_the_commands() {
            // That the command has ended by now is no mistake.
            let _ = killpg(self.command, Signal::SIGCONT);
        }
    }

    /// Returns whether the command is the foreground.
    pub(crate) fn is_the_commands(&self) -> bool {
        self.foreground() == Some(self.command)
    }

    /// Makes us the foreground again if the command is it.
    pub(crate) fn take_back(&self) {
        if self.is_the_commands() {
            self.set_foreground(getpgrp());
        }
    }

    /// Stops our own job as the command was stopped, so that the shell sees it, until the shell lets us go on.
    pub(crate) fn stop_with(&self, signal: Signal) {
        self.take_back();
        // A job that no shell looks after is not stopped by this, and goes on at once.
        let _ = killpg(getpgrp(), if signal == Signal::SIGSTOP { Signal::SIGTSTP } else { signal });
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.file).ok()
    }

    /// A process that is not the foreground may do this only with SIGTTOU blocked.
    fn set_foreground(&self, group: Pid) {
        let blocked = SigSet::from(Signal::SIGTTOU);
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        // A terminal that is gone by now needs no foreground.
        let _ = tcsetpgrp(&self.file, group);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
