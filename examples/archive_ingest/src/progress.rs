//! How far the workers are, and the bar that shows it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::AbortHandle;

/// How often it is shown, or told to the process that shows it.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

/// How far the workers are. Plain counters: nothing is decided by them.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) visits: AtomicU64,
    pub(crate) written: AtomicU64,
}

/// A bar on stderr that is cleared when this is dropped; hidden unless that is a terminal.
pub(crate) struct Bar {
    bar: ProgressBar,
    redraw: AbortHandle,
}

impl Progress {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn show(self: &Arc<Self>, visits: u64) -> Bar {
        let bar = ProgressBar::new(visits);
        let style = ProgressStyle::with_template(
            "{bar:24} {human_pos}/{human_len} visits, {msg} written, {eta} left",
        );
        bar.set_style(style.expect("a template that was tried"));
        let redraw = tokio::spawn({
            let (bar, progress) = (bar.clone(), self.clone());
            async move {
                loop {
                    bar.set_position(progress.visits.load(Relaxed));
                    bar.set_message(progress.written.load(Relaxed).to_string());
                    tokio::time::sleep(EVERY).await;
                }
            }
        });
        Bar { bar, redraw: redraw.abort_handle() }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.redraw.abort();
        self.bar.finish_and_clear();
    }
}
