//! Signals that are passed on, or that end the waiting.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
};

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

/// The signals that are listened for.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Listens to signals as long as the process lives. None is lost: also one that came before it was asked for.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to listen, but not to what the parent process wants ignored (`nohup`, a shell's `&`):
    /// neither this process nor the command is to end by it.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let heeded = FORWARDED.into_iter().filter(|signal| ignored & (1 << (*signal as i32 - 1)) == 0);
        let streams = heeded.map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?)));
        Ok(Signals(streams.collect::<io::Result<_>>()?))
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.0 {
            if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }
}

/// The exit code of a process that was ended by a signal, as a shell reports it.
pub(crate) fn code_of(signal: Signal) -> u8 {
    128 + signal as u8
}

/// The signals that were ignored when this process started, as a bit set; none where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
