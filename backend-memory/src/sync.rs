//! The synchronisation that this crate uses: std's, or shuttle's when schedules are model-checked.

use std::sync::PoisonError;

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(not(shuttle))]
use std::sync::Mutex as Inner;

#[cfg(shuttle)]
use shuttle::sync::Mutex as Inner;

/// How ids are hashed: seeded at random, but the same in every run of the model checker, which repeats
/// schedules.
#[cfg(not(shuttle))]
pub(crate) type HashState = foldhash::fast::RandomState;
#[cfg(shuttle)]
pub(crate) type HashState = foldhash::fast::FixedState;

/// A mutex without poisoning: its value is changed only in steps that call no foreign code but the user's `Clone`, `Eq` and
/// `Hash`, so that a panic there leaves one call half done and no more.
#[derive(Debug)]
pub(crate) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(Inner::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
