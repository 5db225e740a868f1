//! The user's hook: called where an event happens, or, for what happens on the library's own thread, on one of its own.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use super::observe::Event;

/// The most events that wait for a slow hook before further ones are only logged.
const MOST_WAITING: usize = 1024;

type Code<I, C> = dyn Fn(&Event<'_, I, C>) + Send + Sync;
type QueuedCall = Box<dyn FnOnce() + Send>;

pub(crate) struct Hook<I, C> {
    code: Arc<Code<I, C>>,
    /// The thread that receives events of the library's own, started with the first event there; `None` if it
    /// could not be started. It ends with the hook.
    thread: OnceLock<Option<SyncSender<QueuedCall>>>,
}

impl<I: 'static, C: 'static> Hook<I, C> {
    pub(crate) fn new(code: impl Fn(&Event<'_, I, C>) + Send + Sync + 'static) -> Self {
        Hook { code: Arc::new(code), thread: OnceLock::new() }
    }

    /// Calls it on this thread.
    pub(crate) fn call(&self, event: &Event<'_, I, C>) {
        call(&*self.code, event);
    }

    /// Has it called on its own thread, after the events that were sent there before.
    pub(crate) fn call_elsewhere<T: Send + 'static>(
        &self,
        about: T,
        event: impl FnOnce(&T) -> Event<'_, I, C> + Send + 'static,
    ) {
        let code = self.code.clone();
        let call = Box::new(move || call(&*code, &event(&about)));
        let sent =
            self.thread.get_or_init(start).as_ref().is_some_and(|thread| thread.try_send(call).is_ok());
        if !sent {
            tracing::warn!("an event did not reach the hook of `on_event`: too many wait for it");
        }
    }
}

impl<I, C> fmt::Debug for Hook<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}

fn start() -> Option<SyncSender<QueuedCall>> {
    let (sender, receiver) = sync_channel::<QueuedCall>(MOST_WAITING);
    let started = thread::Builder::new()
        .name("lockcore-events".to_owned())
        .spawn(move || receiver.into_iter().for_each(|call| call()));
    started.is_ok().then_some(sender)
}

/// The panic of a hook is reported by the panic hook of the process, and what was under way goes on.
fn call<I, C>(code: &Code<I, C>, event: &Event<'_, I, C>) {
    let _ = catch_unwind(AssertUnwindSafe(|| code(event)));
}
