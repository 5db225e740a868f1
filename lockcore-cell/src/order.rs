//! The order of what this process learns of a store.
//!
//! A read is as old as its start, and a write as its end: of the two that are known of a cell the one with the higher number is the
//! newer, or as new.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next() -> u64 {
    NEXT.fetch_add(1, Relaxed)
}
