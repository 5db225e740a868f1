//! The library's own thread: renewals, and clean-up that must not depend on the caller's runtime.

use std::{
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    thread,
};

use tokio::runtime::{Builder, EnterGuard, Handle};

/// The runtime of the library's own thread, started at the first use and never stopped.
///
/// Nothing of a user's runs on it, so that no callback can keep it from its work. Backends whose connections need a
/// runtime run them here for callers that are in none.
pub fn handle() -> &'static Handle {
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

/// Enters the library's own runtime, unless the thread is ending and cannot enter any.
pub(crate) fn enter() -> Option<EnterGuard<'static>> {
    let is_ending = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
    (!is_ending).then(|| handle().enter())
}

/// Brings work to its end though nobody waits for it: at once if it needs no waiting, else as a task of the current
/// runtime, else - no runtime, or one that shuts down - on the library's own thread.
///
/// `begin` starts it, and starts it anew, elsewhere, if the runtime where it was under way drops it: what it had begun
/// may hold timers and connections of that runtime.
pub(crate) fn finish<W>(begin: impl Fn() -> W + Send + Sync + 'static)
where
    W: Future<Output = ()> + Send + 'static,
{
    let mut work = Unfinished::new(Arc::new(move || Box::pin(begin())));
    let here = match Handle::try_current() {
        // The thread is ending, and cannot enter a runtime any more.
        Err(error) if error.is_thread_local_destroyed() => return drop(work),
        here => here.ok(),
    };
    let _own = here.is_none().then(|| handle().enter());
    if work.poll_work(&mut Context::from_waker(Waker::noop())).is_pending() {
        here.as_ref().unwrap_or(handle()).spawn(work);
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work that begins anew on the library's own thread if it is dropped before its end.
struct Unfinished {
    work: Work,
    /// `None` at the end.
    begin: Option<Arc<dyn Fn() -> Work + Send + Sync>>,
}

impl Unfinished {
    fn new(begin: Arc<dyn Fn() -> Work + Send + Sync>) -> Self {
        Unfinished { work: begin(), begin: Some(begin) }
    }

    /// Work that panics is at its end: this may be polled while another panic unwinds, and is not tried for ever.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled =
            catch_unwind(AssertUnwindSafe(|| self.work.as_mut().poll(cx))).unwrap_or(Poll::Ready(()));
        if polled.is_ready() {
            self.begin = None;
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
        if let Some(begin) = self.begin.take() {
            handle().spawn(Unfinished::new(begin));
        }
    }
}
