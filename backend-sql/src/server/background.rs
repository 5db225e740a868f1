//! The thread of this crate: signs of life, listening, deadlines - work that depends on no runtime of the user's.

use std::{
    future::pending,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    time::Sleep,
};

/// The runtime of the thread, started at the first use and never stopped.
pub(crate) fn handle() -> &'static Handle {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a current-thread runtime needs only a few file descriptors");
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("lockcore-sql".to_owned())
            .spawn(move || runtime.block_on(pending::<()>()))
            .expect("the process can start one more thread");
        handle
    })
}

/// A timer that goes off whether or not the caller's runtime has timers.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    let _own = handle().enter();
    tokio::time::sleep(duration)
}

/// The future's output, or `None` if it takes longer than `limit`. Makes no timer for what is ready at once.
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

/// Polls a future inside the caller's runtime, or inside this crate's where there is none: sockets need one.
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
