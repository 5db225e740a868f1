//! Work that depends on no runtime of the user's - heartbeats, listening, deadlines -, which runs on the library's own thread;
//! and what is kept per runtime.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

pub(crate) use lockcore::backend::library_runtime as handle;
use tokio::{runtime::Handle, time::Sleep};

/// Returns the runtime that drives what is polled here: the caller's, or the library's if there is none, see [`hosted`].
pub(crate) fn current() -> Handle {
    Handle::try_current().unwrap_or_else(|_none| handle().clone())
}

/// Makes a timer that goes off whether or not the caller's runtime has timers.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    let _own = handle().enter();
    tokio::time::sleep(duration)
}

/// Returns the future's output, or `None` if it takes longer than `limit`. Makes no timer for what is ready at once.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut timer) = (std::pin::pin!(future), std::pin::pin!(None::<Sleep>));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if timer.is_none() {
            timer.set(Some(sleep(limit)));
        }
        timer.as_mut().as_pin_mut().expect("just made").poll(cx).map(|()| None)
    })
    .await
}

/// Polls a future inside the caller's runtime, or inside the library's where there is none: sockets need one.
pub(crate) struct Hosted<F> {
    future: F,
    host: Option<&'static Handle>,
}

/// Hosts a future that has to be pinned already, or is `Unpin`.
pub(crate) fn hosted<F: Future + Unpin>(future: F) -> Hosted<F> {
    Hosted { future, host: Handle::try_current().is_err().then(handle) }
}

impl<F: Future + Unpin> Future for Hosted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _host = self.host.map(Handle::enter);
        Pin::new(&mut self.future).poll(cx)
    }
}

/// Something that each runtime has its own of.
pub(crate) struct PerRuntime<T>(Mutex<Vec<(Handle, Arc<T>)>>);

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        PerRuntime(Mutex::default())
    }
}

impl<T> PerRuntime<T> {
    /// Returns what `runtime` has, made if it is new. Then others go that are not in use and that `is_stale` gives up.
    pub(crate) fn get(
        &self,
        runtime: &Handle,
        is_stale: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, own)) = all.iter().find(|(handle, _)| handle.id() == runtime.id()) {
            return own.clone();
        }
        all.retain(|(_, own)| Arc::strong_count(own) > 1 || !is_stale(own));
        let own = Arc::new(make());
        all.push((runtime.clone(), own.clone()));
        own
    }

    /// Returns what all runtimes have.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(_, own)| own.clone()).collect()
    }
}
