//! The terminal on stdin: the command must be its foreground, and the shell must see when it is stopped.

use std::io::{self, IsTerminal};

use nix::{
    sys::signal::{SigSet, SigmaskHow, Signal, killpg},
    unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp},
};

/// A terminal on stdin, shared by our process group and the command's.
#[derive(Debug)]
pub(crate) struct Terminal {
    command: Pid,
}

impl Terminal {
    /// The terminal, if stdin is one, handed to the command's process group if it is ours to give.
    pub(crate) fn hand_to(command: Pid) -> Option<Self> {
        io::stdin().is_terminal().then(|| {
            let terminal = Terminal { command };
            terminal.hand_over();
            terminal
        })
    }

    /// Makes the command the foreground if we are it, and lets it go on if it stopped because it was not yet.
    pub(crate) fn hand_over(&self) {
        if foreground() == Some(getpgrp()) && set_foreground(self.command) {
            let _ = killpg(self.command, Signal::SIGCONT);
        }
    }

    /// Whether the command is the foreground.
    pub(crate) fn is_the_commands(&self) -> bool {
        foreground() == Some(self.command)
    }

    /// Makes us the foreground again if the command is it.
    pub(crate) fn take_back(&self) {
        if self.is_the_commands() {
            set_foreground(getpgrp());
        }
    }

    /// Stops our own job as the command was stopped, so that the shell sees it, until the shell lets us go on.
    pub(crate) fn stop_with(&self, signal: Signal) {
        self.take_back();
        // A job that no shell looks after is not stopped by this, and goes on at once.
        let _ = killpg(getpgrp(), if signal == Signal::SIGSTOP { Signal::SIGTSTP } else { signal });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

fn foreground() -> Option<Pid> {
    tcgetpgrp(io::stdin()).ok()
}

/// Whoever is not the foreground may do this only with SIGTTOU blocked.
fn set_foreground(group: Pid) -> bool {
    let blocked = SigSet::from(Signal::SIGTTOU);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let set = tcsetpgrp(io::stdin(), group).is_ok();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    set
}
