//! What only this backend has or can be shown of: leases under paused time, the queue's order, what it shows, and many threads.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod claims;
mod kept;
mod leases;
mod once;
mod queue;
mod shown;
mod stress;
