//! The patience of a statement while another connection has a lock of the file.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::error::StoreError;

thread_local! {
    /// The time until when the step that runs on this thread may wait. SQLite calls its busy handler without saying for
    /// whom.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets the statements that this thread runs from now on wait until `deadline`; `None`: not at all.
pub(super) fn wait_until(deadline: Option<Instant>) {
    DEADLINE.set(deadline);
}

/// Installs the handler that [`wait_until`] speaks to. (Whether this needs the connection alone depends on the version of
/// rusqlite.)
pub(super) fn install(conn: &mut Connection) -> Result<(), StoreError> {
    Ok(conn.busy_handler(Some(wait))?)
}

/// Naps before the next of `tries`; `false` ends the waiting. The naps are short, where SQLite's own go up to 100 ms: a
/// step of another process takes some ten microseconds.
fn wait(tries: i32) -> bool {
    let left = DEADLINE.get().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let Some(left) = left.filter(|left| !left.is_zero()) else {
        return false;
    };
    let nap = match tries {
        0..4 => {
            thread::yield_now();
            return true;
        }
        4..100 => Duration::from_micros(50),
        100..1000 => Duration::from_micros(250),
        _ => Duration::from_millis(2),
    };
    thread::sleep(nap.min(left));
    true
}
