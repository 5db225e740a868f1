//! The library's own thread: renewals, and clean-up that must not depend on the caller's runtime.

use std::{
    future::pending,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    thread,
};

use tokio::runtime::{Builder, Handle};

/// The runtime of the library's own thread, started at the first use and never stopped.
///
/// Nothing of a user's runs on it, so that no callback can keep it from its work.
pub(crate) fn handle() -> &'static Handle {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a current-thread runtime needs only a few file descriptors");
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("lockcore".to_owned())
            .spawn(move || runtime.block_on(pending::<()>()))
            .expect("the process can start one more thread");
        handle
    })
}

/// Brings `work` to its end though nobody waits for it: at once if it needs no waiting, else as a task of
/// the current runtime, else - no runtime, or one that shuts down - on the library's own thread.
pub(crate) fn finish(work: impl Future<Output = ()> + Send + 'static) {
    let here = Handle::try_current();
    let _own = here.is_err().then(|| handle().enter());
    let mut work = Unfinished(Some(Box::pin(work)));
    if work.poll_work(&mut Context::from_waker(Waker::noop())).is_pending() {
        here.as_ref().unwrap_or(handle()).spawn(work);
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work that moves to the library's own thread if the runtime that it was given to drops it.
struct Unfinished(Option<Work>);

impl Unfinished {
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Taken out while it is polled: work that panics is dropped, not tried for ever.
        let Some(mut work) = self.0.take() else {
            return Poll::Ready(());
        };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.0 = Some(work);
        }
        polled
    }
}

impl Future for Unfinished {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_work(cx)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            handle().spawn(Unfinished(Some(work)));
        }
    }
}
