//! The harness's own runtime: a test's runtime ends with the test, shared servers do not.

use std::{future::Future, sync::LazyLock};

use tokio::runtime::{Builder, Handle, Runtime};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("test-servers")
        .enable_all()
        .build()
        .expect("a process that runs tests can start a thread")
});

/// Runs `work` on the harness's runtime, to its end even if the caller is dropped.
///
/// Connections to the Docker engine are pooled and belong to the runtime that opened them: all of
/// them are made here, whatever runtime the test has.
pub(super) async fn run<F>(work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    match RUNTIME.spawn(work).await {
        Ok(output) => output,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

/// Runs `work` and waits for it without a runtime, as drop has to.
///
/// On the harness's own thread, where a server ends up whose starter gave up waiting, it does not
/// wait: that thread is the one that does the work.
pub(super) fn run_blocking<F>(work: F)
where
    F: Future<Output: Send> + Send + 'static,
{
    let (done, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let ours = Handle::try_current().is_ok_and(|handle| handle.id() == RUNTIME.handle().id());
    RUNTIME.spawn(async move {
        let _done = done;
        work.await;
    });
    if !ours {
        // An error says that the sender was dropped, which is the sign awaited.
        let _ = wait.recv();
    }
}
