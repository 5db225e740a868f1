//! Times and limits of the protocol that every backend keeps.
//!
//! A program of one version shares a store with programs of others, so these stand here once: a backend takes them from
//! here, also into its SQL and Lua. Routines of Postgres and MySQL that a store has already keep the times that they were made with:
//! there a change takes a new version of the schema.

use std::time::Duration;

/// The lease of a call that names none, unless the backend or the service sets another.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The shortest lease of [`Capabilities::minimal`](crate::Capabilities::minimal). A backend may declare another
/// one: DynamoDB needs 5 s, etcd and a share need 10 s, a bucket needs 10 s or 30 s.
pub const MIN_LEASE: Duration = Duration::from_secs(1);

/// A lease is renewed after this fraction of its length: once in every `RENEWALS_PER_LEASE`th part.
pub const RENEWALS_PER_LEASE: u32 = 3;

/// The longest life of an offer: a lock that was handed to a waiter, and which the waiter has not confirmed yet. With
/// [`HEARTBEAT_LASTS`] it bounds what a dead waiter costs those behind it.
pub const OFFER: Duration = Duration::from_secs(2);

/// The interval between heartbeats of a session with waiters.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// The time for which a heartbeat counts. The places in the queue of a session without one are skipped, and removed.
pub const HEARTBEAT_LASTS: Duration = Duration::from_secs(3);

/// The shortest time for which the tombstone of a withdrawn attempt is kept: longer than a request can be on its way.
/// One with a longer lease keeps it for that long.
pub const TOMBSTONE: Duration = Duration::from_secs(50);

/// The wait before a waiter repeats its request though nothing woke it; on the SQL servers it is longer if hundreds wait. The
/// backend keeps its place and looks after it, so this covers errors in that.
pub const RECHECK: Duration = Duration::from_secs(10);

/// The number of breaks of one id that a store keeps on record; the oldest go first.
pub const BREAKS_KEPT: usize = 16;

/// The time for which a store keeps the record of a break.
pub const BREAKS_KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// The most ids in one atomic step of [`Capabilities::minimal`](crate::Capabilities::minimal). Every backend of this
/// workspace takes as many or more, but for DynamoDB with strict fences, which takes 50.
pub const MIN_MAX_IDS: usize = 100;
