//! What a subscriber sees: a span for each call, entered while the callback runs, with ids only where they are wanted. In
//! processes of their own, as the log.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    borrow::Cow,
    io::Write,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{ContextId, LockingService};
use lockcore_conformance::own_process;
use lockcore_memory::MemoryLockDao;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_call_is_a_span_without_identifiers() {
    if !own_process::is_own() {
        return;
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    locks
        .owner("worker-3")
        .with_locks(["secret-id", "other-id"], async || {
            tracing::info!("inside");
            assert!(locks.shared().with_locks(["secret-id"], || async {}).await.is_err());
            let guard = locks.lock(["third-id"]).await.unwrap();
            assert!(locks.lock(["third-id"]).await.is_err());
            guard.release().await.unwrap();
        })
        .await
        .unwrap();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let line_with = |what: &str| {
        text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {text}"))
    };
    let inside = line_with("inside");
    for part in ["locks{backend=\"memory\"", "owner=worker-3", "ids=2", "nested=false"] {
        assert!(inside.contains(part), "{part}: {inside}");
    }
    assert!(line_with(" locked").contains("DEBUG"));
    assert!(line_with("no longer held").contains("released=true"));
    assert!(line_with("not locked").contains("in_the_way=1"));
    assert!(!text.contains("secret-id") && !text.contains("third-id"), "identifiers may be secret: {text}");
}

#[tokio::test]
async fn ids_are_logged_where_the_user_allows_it() {
    if !own_process::is_own() {
        return;
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
    let dao = MemoryLockDao::<String>::new();
    let locks = LockingService::builder(dao).log_ids(true).build().unwrap();
    locks
        .tell_when_lost()
        .with_held_locks(["b", "a"], |held| {
            let locks = &locks;
            async move {
                tracing::info!("inside");
                assert_eq!(locks.admin().release_context(held.context()).await.unwrap().len(), 2);
            }
        })
        .await
        .unwrap_err();
    let many = (0..12).map(|id| format!("id-{id:02}"));
    locks.run_locked(many, async || tracing::info!("many")).await.unwrap();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let line_with = |what: &str| {
        text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {text}"))
    };
    assert!(line_with("inside").contains(r#"targets="a", "b""#), "{text}");
    assert!(line_with("lost=2").contains(r#"targets="a", "b""#), "{text}");
    assert!(line_with("many").contains(r#""id-09" and 2 more"#), "{text}");
}

/// A context that panics while it is wanted to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Panics;

static PANICS: AtomicBool = AtomicBool::new(false);

impl ContextId for Panics {
    fn stored(&self) -> Cow<'_, str> {
        assert!(!PANICS.load(SeqCst), "wanted");
        Cow::Borrowed("a context")
    }

    fn from_stored(_: &str) -> Option<Self> {
        Some(Panics)
    }
}

#[tokio::test]
async fn a_context_that_panics_in_the_span_leaves_nothing() {
    if !own_process::is_own() {
        return;
    }
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
    let _default = tracing::subscriber::set_default(subscriber.finish());
    let dao = MemoryLockDao::<String, Panics>::new();
    let locks = LockingService::builder_with_contexts(dao, || Panics).build().unwrap();
    locks.run_locked(["a"], async || {}).await.unwrap();
    PANICS.store(true, SeqCst);
    let call = AssertUnwindSafe(locks.run_locked(["a"], async || {}));
    assert!(call.catch_unwind().await.is_err());
    PANICS.store(false, SeqCst);
    assert_eq!(locks.shutdown(Duration::ZERO).await, 0);
}
