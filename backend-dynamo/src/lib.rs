//! Locks in a DynamoDB table: for any number of programs and hosts, with no server of one's own.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_dynamo::DynamoLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = DynamoLockDao::<String>::builder().region("eu-central-1").table("locks").open().await?;
//! let locks = LockingService::new(dao);
//! let sum = locks.with_locks(["accounts/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! - **One request takes a set, one frees it.** One id is one conditional `UpdateItem`, 2 to 100 are one
//!   `TransactWriteItems`. Nothing is read before: that the items are free, or their leases over, is the condition of the
//!   write. Where it does not hold the service sends what stands there
//!   (`ReturnValuesOnConditionCheckFailure`); then [`lockcore::rules`] decide in this process: either that is in the way,
//!   with holder and remaining lease of every such id, or it is unusual - one's own lock, a lease that is over by less
//!   than a second, others who share the id - and a second request writes what they say, under the condition that nothing
//!   changed.
//! - **Those who share an id** stand in a map of its item. Who joins, leaves or renews writes its own entry, under
//!   conditions that hold whoever else comes and goes; permits of slots stand in a second map, whose size the condition
//!   compares with the caller's own limit.
//! - **Whose clock.** The service has none in conditions; this process estimates it as an interval, from the `Date` of
//!   every answer and its own clock of time passed. A lease is written to end at the upper bound and taken over after the
//!   lower one, so no wall clock of any client decides anything: one that is an hour off delays nothing and takes nothing
//!   early. (The SDK corrects the time of its signatures itself, from the first answer on.) The estimate is off by a second
//!   at first and by a round trip and a fifth of a second soon; so much later is a dead holder's lock taken over.
//! - **Fences** are proposed by the client: the upper bound of the service's time in microseconds, on condition that the
//!   item's is lower; else again with one more than that.
//! - **Lost answers.** Every write carries a number of its own. A try without an answer is repeated as it was, and if the
//!   service then says that the condition does not hold, but shows that number, it was done. A refusal after silence is an
//!   error that is [in doubt](lockcore::BackendError::in_doubt), for the first try may still arrive. A withdrawal marks the
//!   items, so that it is refused when it does.
//! - **Throttling and conflicts** between transactions are waited out with jitter, for
//!   [`timeout`](DynamoBuilder::timeout) in all, and never told as contention.
//!
//! # The table
//! Hash key `id` (S); what other clients know of an item is `contextId` (S), `created` and `expires` (N, whole seconds;
//! rounded up), as in the tables of the system that this one succeeds. A client that puts an item on condition that the id
//! is absent, or `expires` before now, or `contextId` its own, excludes us on the same ids and is excluded. All four names
//! [can be chosen](DynamoBuilder::id_attribute). Where several hold an id together `contextId` is `lockcore:several` and
//! `expires` the longest holder's; where an id is frozen it is `lockcore:frozen`, until the year 9999.
//!
//! Everything else is this library's: `fence`, `rev` (the last write), `holders`, `slots`, `marks`, `frozen`, `breaks`. An
//! item outlives its release for its fence, with `expires` a day in the past, so that others take it and the table's TTL
//! collects it. `migrate` creates the table; [`Schema`] writes it down for CloudFormation and Terraform, with the least IAM
//! policy.
//!
//! # Fences, and what can make them go back
//! They outlast release, expiry, breaks, TTL and what other clients do, as every number is at least the service's time. If
//! something removes an item - TTL, another client's unlock or replacement, the loss of the table - its next fence is
//! above the last one, provided that more time has passed since the last grant than the estimates of the two clients are
//! wide: at worst some two seconds. (TTL may collect a free item at once, and usually does so hours later.)
//! [`strict_fence`](DynamoBuilder::strict_fence) removes that bound, but for the loss of the table.
//!
//! # What to know
//! - No queue and no push: waiters look again, at growing intervals with jitter, by a consistent read, not by a write that
//!   fails. Leases are 5 s at least.
//! - Sets of more than 100 ids are refused, or [taken in chunks](LargeSets::Chunks), which is **not atomic**.
//! - Another client's unlock may delete a lock of ours: the next renewal tells it as vanished. What such a client writes
//!   has no fence.
//! - With an item goes what it remembers: that a lock was broken (the holder is then told that it vanished), a freeze,
//!   and a withdrawal, which has to be remembered for as long as its request may be on its way - some ten times the
//!   timeout. TTL never collects a frozen id or one that is held; were it to collect a free one within that time, a
//!   request that arrives late would take it, for its lease.
//! - A freeze while another client holds the id keeps us out of it, and other clients only until that lease ends.
//! - Listing and `release_context` read the whole table, consistently; the index over contexts, which lags behind, is
//!   never read. There is no sweep: TTL collects.
//! - A region's table only, or one with strongly consistent replicas: global tables that are eventually consistent are
//!   refused when connecting.
//! - An item has room for some thousand holders at once.
//!
//! # What it costs
//! Requests and units of the service, items up to 1 KB; a transaction costs twice the units of its writes. "Besides
//! others" is a lock that others share already.
//!
//! | step | one id | N ids, up to 100 |
//! | --- | --- | --- |
//! | take | 1 request, 1 WRU | 1 request, 2N WRU |
//! | release | 1 request, 1 WRU | 1 request, 2N WRU |
//! | renew (every third of the lease) | 1 request, 1 WRU | 1 request, 2N WRU |
//! | refused | 1 request, 1 WRU | 1 request, 2N WRU |
//! | refused again, while waiting | 1 request, 1 RRU | 1 request, N RRU |
//! | take, leave besides others | 2 requests, 2 WRU each | 2 requests, 4N WRU each |
//! | a contended grant: look, take, release | 3 requests, 1 RRU, 2 WRU | 3 requests, N RRU, 4N WRU |
//! | waiting for an hour, however many calls of a process | some 5000 requests, 5000 RRU | some 5000 requests, 5000N RRU |
//!
//! With a [strict fence](DynamoBuilder::strict_fence) taking is a transaction of 4N WRU. For comparison, AWS' own lock client takes one id after
//! the other: 3N requests, N RRU and 2N WRU to take and release N ids, and N requests for every heartbeat. It costs a request
//! an id where this is two in all, and needs fewer units for a set, as it promises nothing of the whole.

mod acquire;
mod admin;
mod clients;
mod clock;
mod config;
mod dao;
mod decide;
mod doctor;
mod error;
mod item;
mod key;
mod release;
mod row;
mod schema;
mod send;
mod spelling;
mod store;
mod withdraw;
mod write;

pub use config::{DynamoBuilder, LargeSets};
pub use dao::DynamoLockDao;
pub use schema::Schema;
pub use store::Usage;
