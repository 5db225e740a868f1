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
//!   at first and by a round trip and a fifth of a second soon; so much later is a dead holder's lock taken over. A process
//!   that heard nothing of the service for a quarter of an hour looks at the ids before it takes them. Only answers with the
//!   service's request id (`x-amzn-RequestId`) count, so that a proxy which answers itself tells no time. Answers that
//!   contradict the estimate widen it: they replace it only if they agree with each other over six seconds, and none in
//!   between agrees with the estimate. The first answer of a process is believed, and a proxy that dates the service's own
//!   answers by its own clock cannot be recognised.
//! - **Fences** are proposed by the client: the upper bound of the service's time in microseconds, on condition that the
//!   item's is lower; else again with one more than that.
//! - **Lost answers.** Every write carries a number of its own. A try without an answer is repeated as it was, and if the
//!   service then says that the condition does not hold, but shows that number, it was done. A refusal after silence is an
//!   error that is [in doubt](lockcore::BackendError::in_doubt), for the first try may still arrive; so is a release that
//!   then finds nothing of its own. A withdrawal marks the items, so that a late try is refused; a mark is added to others
//!   whatever is written meanwhile, so that a shutdown that withdraws many calls for one id costs a few requests a call.
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
//! Everything else is this library's: `fence`, `rev` (the last write), `holders`, `slots`, `marks`, `frozen`, `breaks`.
//! An item outlives its release for its fence, with `expires` a day in the past, so that others take it and the table's
//! TTL collects it. While it has to remember a withdrawn attempt, for ten times the sum of
//! [timeout](DynamoBuilder::timeout) and [attempt timeout](DynamoBuilder::attempt_timeout) (70 s by default) or for a lease
//! that is longer, `expires` is 0, which others take for free too and TTL, which leaves alone what
//! ended years ago, does not collect; the next take and release after that while set it as usual. `migrate` creates the
//! table; [`Schema`] writes it down for CloudFormation and Terraform, with the least IAM policy.
//!
//! # Fences, and what can make them go back
//! They outlast release, expiry, breaks, TTL and what other clients do, as every number is at least the service's time. If
//! something removes an item - TTL, another client's unlock or replacement, the loss of the table - its next fence is
//! above the last one, provided that more time has passed since the last grant than the estimates of the two clients are
//! wide: at worst some three seconds, and by how much the date of an answer was ahead that another contradicted. (TTL may
//! collect a free item at once, and usually does so hours later.)
//! [`strict_fence`](DynamoBuilder::strict_fence) removes that bound, but for the loss of the table.
//!
//! # What to know
//! - No queue and no push: waiters look again, at growing intervals with jitter, by a consistent read, not by a write that
//!   fails. Leases are 5 s at least.
//! - Sets of more than 100 ids are refused, or [taken in chunks](LargeSets::Chunks), which is **not atomic**.
//! - Another client's unlock may delete a lock of ours: the next renewal tells it as vanished. What such a client writes
//!   has no fence.
//! - With an item goes what it remembers: that a lock was broken (the holder is then told that it vanished), a freeze, and
//!   withdrawn attempts. TTL never collects an id that is held, frozen, or to be refused to a late request. What another
//!   client does can: its unlock or replacement takes all that with it; and of an id that it holds the end is its own, so
//!   that a freeze keeps other clients away only until then, and after it TTL may collect the item.
//! - Of an attempt that was withdrawn in doubt, on ids that nobody ever asks for again, an item of some hundred bytes stays.
//!   For as long as it is remembered a dead holder's lock ends later for other clients, and a take or release of the id
//!   is two requests.
//! - Listing and `release_context` read the whole table, consistently; the index over contexts, which lags behind, is
//!   never read. There is no sweep: TTL collects.
//! - A region's table only: one with replicas in other regions is refused when connecting. Where they are eventually
//!   consistent two regions could grant the same lock, and where they are strongly consistent the service makes no
//!   transactions. (If the table may not be described, that cannot be known.)
//! - **Some 200 holders of one id at once** are the most, with a lease of 30 s. A holder adds some 150 bytes to the item, and
//!   its owner label; every write costs a unit for each KB of the whole item, every holder renews three times a lease, and the
//!   service takes 1000 units a second of one item. The load grows with the square of the holders: above that, renewals are
//!   throttled and locks are lost. A lease four times as long has room for twice as many.
//! - An item of 400 KB, which some 2000 holders make, is full: taking its id then fails as
//!   [`Busy`](lockcore::BackendErrorKind::Busy), and the error says so.
//!
//! # What it costs
//! Requests and units of the service, items up to 1 KB; a transaction costs twice the units of its writes. "Besides
//! others" is a lock that others share already: which permits are the lowest free ones has to be read, and the refused write
//! brings it.
//!
//! | step | one id | N ids, up to 100 |
//! | --- | --- | --- |
//! | take | 1 request, 1 WRU | 1 request, 2N WRU |
//! | release | 1 request, 1 WRU | 1 request, 2N WRU |
//! | renew (every third of the lease) | 1 request, 1 WRU | 1 request, 2N WRU |
//! | refused | 1 request, 1 WRU | 1 request, 2N WRU |
//! | refused again, while waiting | 1 request, 1 RRU | 1 request, N RRU |
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
mod refused;
mod release;
mod row;
mod schema;
mod send;
mod spelling;
mod store;
mod value;
mod version;
mod withdraw;
mod write;

pub use config::{DynamoBuilder, LargeSets};
pub use dao::DynamoLockDao;
pub use schema::Schema;
pub use store::Usage;
