//! Distributed locks in a DynamoDB table: add `lockcore` and `lockcore-dynamo`, which has no features for users.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_dynamo::DynamoLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // By the SDK's usual chain; or `DynamoLockDao::builder()` with region, credentials, namespace and so on.
//! let dao = DynamoLockDao::<String>::open("locks").await?;
//! let locks = LockingService::new(dao);
//! let sum = locks.with_locks(["accounts/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! - **One request takes a set, one frees it.** One id is one conditional `UpdateItem`, 2 to 100 are one
//!   `TransactWriteItems`. Nothing is read before: the condition of the write is that the items are free, or their leases
//!   have ended. Where it does not hold the service returns the item (`ReturnValuesOnConditionCheckFailure`), and
//!   `lockcore::engine` decides about it in this process: either it is a conflict, which is reported with holder and
//!   remaining lease of every such id, or an unusual state - the context's own lock, a lease that ended less than a
//!   second ago, other sharers - and a second request writes the decision, under the condition that nothing changed.
//! - **Sharers of an id** are in a map of its item. One that joins, leaves or renews writes its own entry, under conditions
//!   that do not depend on the others; permits of slots are in a second map, whose size the condition compares with the caller's
//!   own limit.
//! - **Time.** Conditions have no clock; this process estimates the service's as an interval, from the `Date` of every
//!   response and its own monotonic clock. A lease is written to end at the upper bound and taken over after the lower one, so
//!   that no client's wall clock decides anything: one that is an hour off delays nothing and takes nothing early. (The SDK
//!   corrects the time of its signatures itself, from the first response on.) The interval is a second wide at first, and soon a
//!   round trip and a fifth of a second; a dead holder's lock is taken over that much later. A process without a response for a
//!   quarter of an hour reads the items before it takes them. Only responses with the service's request id
//!   (`x-amzn-RequestId`) count, so that a proxy's own responses do not. Responses that contradict the interval widen it: they
//!   replace it only if they agree with each other over six seconds, and none in between agrees with the interval. The first
//!   response of a process is trusted, and a proxy that rewrites the date of the service's responses cannot be detected.
//! - **Fences** are proposed by the client: the upper bound of the service's time in microseconds, on condition that the
//!   item's is lower; else again with one more than that.
//! - **Lost responses.** Every write has a unique number. A request without a response is repeated unchanged, and if the service
//!   then refuses it, but the item has that number, it was executed. A refusal after a lost response is an error that is
//!   [in doubt](lockcore::BackendError::in_doubt), as the first request may still arrive; so is a release that then finds none of
//!   its locks. A withdrawal adds tombstones to the items, so that a late request is refused; one is added to others whatever
//!   is written meanwhile, so that a shutdown that withdraws many calls for one id costs a few requests a call.
//! - **Throttling and conflicts** between transactions are retried with jitter, for
//!   [`timeout`](DynamoBuilder::timeout) in all, and never reported as contention.
//!
//! # The table
//! Hash key `id` (S); what other clients know of an item is `contextId` (S), `created` and `expires` (N, whole seconds;
//! rounded up), as in the tables of the system that this one succeeds. A client that puts an item on condition that the id
//! is absent, or `expires` before now, or `contextId` its own, excludes us on the same ids and is excluded. All four names
//! [can be chosen](DynamoBuilder::id_attribute). An `expires` in milliseconds, a common slip, locks for thousands of years, as
//! `lockctl show` then says; `break --now` ends such a lock. Where several hold an id together `contextId` is `lockcore:several` and
//! `expires` the longest holder's; where an id is frozen it is `lockcore:frozen`, until the year 9999.
//!
//! All other attributes are this library's: `fence`, `rev` (the last write), `holders`, `slots`, `marks` (tombstones), `frozen`,
//! `breaks`.
//! An item outlives its release for its fence, with `expires` a day in the past, so that others take it and the table's
//! TTL collects it. While it has the tombstone of a withdrawn attempt, for ten times the sum of
//! [timeout](DynamoBuilder::timeout) and [attempt timeout](DynamoBuilder::attempt_timeout) (70 s by default) or for a lease
//! that is longer, `expires` is 0, which is free for other clients too, and which TTL, as it ignores
//! what ended years ago, does not collect; the next take and release after that set it as usual. `migrate` creates the
//! table; [`Schema`] writes it down for CloudFormation and Terraform, with the least IAM policy.
//!
//! # Fences, and what can make them go back
//! They outlast release, expiry, breaks, TTL and what other clients do, as every number is at least the service's time. If
//! something removes an item - TTL, another client's unlock or replacement, the loss of the table - its next fence is
//! above the last one, provided that more time has passed since the last grant than the estimates of the two clients are
//! wide: at worst some three seconds, by how much the date of an answer was ahead that another contradicted, and by how much the
//! service's clock was set since a client's last response. (TTL may collect a free item at once, and usually does so hours later.)
//! [`strict_fence`](DynamoBuilder::strict_fence) removes that bound, but for the loss of the table.
//!
//! # What to know
//! - No queue and no push: waiters poll, at growing intervals with jitter, by a consistent read instead of a write that
//!   fails. Leases are 5 s at least.
//! - Sets of more than 100 ids, with a strict fence 50, are refused.
//! - Another client's unlock may delete a lock of ours: the next renewal finds it vanished. Other clients' locks have no fence.
//! - Removing an item removes its records: of breaks (the holder then finds its lock vanished), a freeze, and tombstones. TTL
//!   never collects an id that is held, frozen, or has tombstones. Another client's unlock or replacement removes all that;
//!   and the end of its own lock is its own, so that a freeze excludes other clients only until then, and TTL may collect the
//!   item after it.
//! - An attempt that was withdrawn in doubt leaves an item of some hundred bytes, if its ids are never locked again. Until its
//!   tombstone ends a dead holder's lock ends later for other clients, and a take or release of the id is two requests.
//! - Listing and `release_context` read the whole table, consistently; the index over contexts, which lags behind, is
//!   never read. There is no sweep: TTL collects.
//! - A proxy that sends the release of one id twice and passes on the refusal of the second may make it look like a loss, if
//!   another context took the id in between. Nothing is held then.
//! - A region's table only: one with replicas in other regions is refused when connecting. Where they are eventually
//!   consistent two regions could grant the same lock, and where they are strongly consistent the service makes no
//!   transactions. (Without the right to describe the table that cannot be detected.)
//! - **Some 200 holders of one id at once** are the most, with a lease of 30 s. A holder adds some 150 bytes to the item, and
//!   its owner label; every write costs a unit for each KB of the whole item, every holder renews three times a lease, and the
//!   service takes 1000 units a second of one item. The load grows with the square of the holders: above that, renewals are
//!   throttled and locks are lost. A lease four times as long has room for twice as many.
//! - An item of 400 KB, which some 2000 holders make, is full: taking its id then fails as
//!   [`Busy`](lockcore::BackendErrorKind::Busy), and the error says so.
//!
//! # What it costs
//! Requests and units of the service, items up to 1 KB; a transaction costs twice the units of its writes. "Besides
//! others" is a lock on an id with other holders: the lowest free permits have to be read, which the refused write returns.
//!
//! | step | one id | N ids, up to 100 |
//! | --- | --- | --- |
//! | take | 1 request, 1 WRU | 1 request, 2N WRU |
//! | release | 1 request, 1 WRU | 1 request, 2N WRU |
//! | renew (every third of the lease) | 1 request, 1 WRU | 1 request, 2N WRU |
//! | refused | 1 request, 1 WRU | 1 request, 2N WRU |
//! | refused again, while polling | 1 request, 1 RRU | 1 request, N RRU |
//! | take besides others | 2 requests, 2 WRU | 2 requests, 4N WRU |
//! | leave others | 1 request, 1 WRU; 2 if they came, or went, since the take | 1 request, 2N WRU; 2 likewise |
//! | withdraw | 2 requests, 1 RRU, 1 WRU | 2 requests, N RRU, 2N WRU |
//! | a contended grant: look, take, release | 3 requests, 1 RRU, 2 WRU | 3 requests, N RRU, 4N WRU |
//! | waiting for an hour, however many calls of a process | some 5000 requests, 5000 RRU | some 5000 requests, 5000N RRU |
//!
//! With a [strict fence](DynamoBuilder::strict_fence) taking is a transaction of 4N WRU.
//!
//! Beside AWS' own lock client, which takes one id after the other (its Python port, with its defaults; ours with a lease of
//! 30 s):
//!
//! | | here | AWS' client |
//! | --- | --- | --- |
//! | take and release one id | 2 requests, 2 WRU | 3 requests, 2 WRU, 1 RRU |
//! | take and release N ids | 2 requests, 4N WRU | 3N requests, 2N WRU, N RRU |
//! | hold one id for an hour | 360 requests, 360 WRU | 720 requests, 720 WRU |
//! | hold N ids for an hour | 360 requests, 720N WRU | 720N requests, 720N WRU |
//! | wait for an id for an hour | some 5000 RRU, looking every 0.7 s | 720 RRU, looking every 5 s |
//! | 100 calls of a process wait | some 5000 RRU | 72 000 RRU |
//!
//! By the service's price list a read unit costs a fifth of a write unit. So one id is cheaper here, 2 to 2.2, and a set
//! dearer, 4N to 2.2N: that is the price of all or nothing, as the service counts every write of a transaction twice, and the
//! other client promises nothing of the whole. `tests/engine/costs.rs` measures both by the engine's
//! count.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod admin;
mod clients;
mod config;
mod dao;
mod doctor;
mod error;
mod item;
mod key;
mod refused;
mod release;
mod request;
mod row;
mod schema;
mod send;
mod state;
mod store;
#[cfg(feature = "testing")]
mod testing;
mod value;
mod version;
mod withdraw;
mod write;

pub use config::DynamoBuilder;
pub use dao::{CAPABILITIES, DynamoLockDao};
pub use schema::Schema;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use testing::Usage;
