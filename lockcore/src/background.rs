//! The library's own thread: renewals, and clean-up that must not depend on the caller's runtime.

use std::{
    future::pending,
    thread::{self, ThreadId},
};

use tokio::{
    runtime::{Builder, EnterGuard, Handle, RuntimeFlavor},
    time::Instant,
};

use crate::process::{self, PerProcess};

static OWN: PerProcess<Own> = PerProcess::new();

struct Own {
    handle: Handle,
    thread: ThreadId,
}

/// Returns the runtime of the library's own thread, started at the first use in a process and never stopped.
///
/// No callback and no hook runs on it, so that none can delay a renewal. What does run there beside the library are the
/// steps of backends, wakers, and the subscriber and recorder of `tracing` and `metrics`: none of them may block.
/// Backends whose connections need a runtime run them here for callers that are in none.
pub fn handle() -> &'static Handle {
    &OWN.get_or_init(process::current(), Own::start).handle
}

/// Returns the runtime for work that several callers wait for: the library's own, since a caller's may end before; or the
/// caller's, if its clock is paused, so that a test's time does not pass while that work is done elsewhere.
pub fn shared() -> Handle {
    if is_paused() { Handle::current() } else { handle().clone() }
}

/// Returns the runtime for what goes on for as long as the process does: the library's own; in a simulated process the only one.
pub(crate) fn lasting() -> Handle {
    if is_simulated() { Handle::current() } else { handle().clone() }
}

/// Returns whether this thread plays a simulated process, and its runtime is the current one.
fn is_simulated() -> bool {
    #[cfg(feature = "testing")]
    return crate::simulated::process().is_some() && Handle::try_current().is_ok();
    #[cfg(not(feature = "testing"))]
    false
}

/// Returns whether the current runtime's clock stands still, as in a test with paused time: then timers that
/// belong to the call have to be on that runtime, or virtual time would pass them by.
pub(crate) fn is_paused() -> bool {
    if is_simulated() {
        return true;
    }
    // Only the clock of a runtime with one thread can be paused.
    let one_thread = |runtime: Handle| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
    if !Handle::try_current().is_ok_and(one_thread) {
        return false;
    }
    let (virtual_start, real_start) = (Instant::now(), std::time::Instant::now());
    while real_start.elapsed().is_zero() {
        std::hint::spin_loop();
    }
    Instant::now() == virtual_start
}

/// Returns whether this is the library's own thread.
pub(crate) fn is_here() -> bool {
    !is_simulated() && OWN.get_or_init(process::current(), Own::start).thread == thread::current().id()
}

/// Enters the library's own runtime, unless the thread is ending and cannot enter any.
pub(crate) fn enter() -> Option<EnterGuard<'static>> {
    (!is_ending()).then(|| handle().enter())
}

/// Returns whether the thread is ending and cannot enter a runtime any more.
pub(crate) fn is_ending() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

impl Own {
    fn start() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a current-thread runtime needs only a few file descriptors");
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new()
            .name("lockcore".to_owned())
            .spawn(move || runtime.block_on(pending::<()>()))
            .expect("the process can start one more thread");
        Own { handle, thread: thread.thread().id() }
    }
}
