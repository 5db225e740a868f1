//! The checks of the service over the backend's own DAO, with faults between the two where a check needs them.

pub mod blocking;
pub mod election;
pub mod guards;
pub mod keep_for;
pub mod keeping;
pub mod losing;
pub mod nesting;
pub mod once;
pub mod outcomes;
pub mod releasing;
pub mod requests;
pub mod waiting;

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{Builder, Event, LockingService};
use uuid::Uuid;

use crate::{
    Backend, Store, eventually,
    fault::{Faults, FaultyDao},
    judge::{broken, late},
};

/// A service over the backend under test.
pub type Locks<B> = LockingService<String, Uuid, FaultyDao<<B as Backend>::Dao>>;

/// A service, the faults of what it is over, and what its hook received.
pub struct Rig<B: Backend> {
    /// The service.
    pub locks: Locks<B>,
    /// The faults between it and the store.
    pub faults: Faults,
    events: Arc<Mutex<Vec<&'static str>>>,
}

/// A callback's own error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Oops;

impl fmt::Display for Oops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("oops")
    }
}

impl std::error::Error for Oops {}

/// A callback of a call that is refused.
pub async fn never_runs() -> Result<(), Oops> {
    panic!("it does not run")
}

impl<B: Backend> Rig<B> {
    /// A service whose locks last so long that none expires during a check.
    pub fn new(store: &Store<B>) -> Self {
        Rig::with(store, |builder| builder)
    }

    /// The same with other options.
    pub fn with(
        store: &Store<B>,
        options: impl FnOnce(Builder<String, Uuid, FaultyDao<B::Dao>>) -> Builder<String, Uuid, FaultyDao<B::Dao>>,
    ) -> Self {
        let (dao, faults) = FaultyDao::new(store.dao().clone());
        let events: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let told = events.clone();
        let builder = LockingService::builder(dao)
            .lease(Duration::from_secs(600))
            .on_event(move |event| told.lock().expect("no hook panics").push(name(event)));
        let locks = options(builder).build().expect("the options are valid");
        Rig { locks, faults, events }
    }

    /// The names of the events so far.
    pub fn events(&self) -> Vec<&'static str> {
        self.events.lock().expect("no hook panics").clone()
    }

    /// Waits until the hook received such an event.
    pub async fn observed(&self, event: &'static str) {
        eventually(event, || async { self.events().contains(&event).then_some(()) }).await;
    }
}

impl<B: Backend> Store<B> {
    /// Whether all of `ids` are free, and not queued for.
    pub async fn is_free(&self, ids: &[&str]) -> bool {
        let caller = self.caller();
        match caller.try_take(ids.iter().copied()).await {
            Ok(grant) => {
                caller.free(&grant).await;
                true
            }
            Err(_) => false,
        }
    }

    /// Asks for what a caller holds that is sure of it: whose handle still says so when another was granted it.
    pub async fn is_held(&self, ids: &[&str], sure: impl Fn() -> bool) {
        if let Ok(grant) = self.caller().try_take(ids.iter().copied()).await {
            match sure() {
                true => broken(format_args!("two holders: {grant:?}")),
                false => late("it is renewed"),
            }
        }
    }

    /// Waits until all of `ids` are free: clean-up may take place in the background.
    pub async fn becomes_free(&self, ids: &[&str]) {
        eventually("everything is free", || async { self.is_free(ids).await.then_some(()) }).await;
    }
}

fn name(event: &Event<'_, String, Uuid>) -> &'static str {
    match event {
        Event::Refused { .. } => "refused",
        Event::Lost { .. } => "lost",
        Event::ReleasedLate { .. } => "released late",
        Event::ReleaseFailed { .. } => "release failed",
        Event::RenewalFailed { .. } => "renewal failed",
        Event::WithdrawFailed { .. } => "withdraw failed",
        Event::SweepFailed { .. } => "sweep failed",
        _ => "another",
    }
}
