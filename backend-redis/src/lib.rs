//! Locks in Redis: for any number of hosts, in one round trip a step, on one server, behind sentinels, or in a cluster.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lockcore::{LockingService, Wait};
//! use lockcore_redis::RedisLockDao;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let locks = LockingService::new(RedisLockDao::<String>::open("redis://127.0.0.1/").await?);
//! let wait = Wait::up_to(Duration::from_secs(5));
//! let sum = locks.wait(wait).with_locks(["accounts/7"], async || -> std::io::Result<_> { Ok(40 + 2) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | URL | what it is |
//! | --- | --- |
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://...` | one server, the latter by TLS (feature `tls`) |
//! | `redis+unix:///PATH[?db=..&user=..&pass=..]` | one server by its socket |
//! | `redis+sentinel://[USER:PASSWORD@]HOST,HOST/MASTER[/DB]` | the master that sentinels know (feature `sentinel`) |
//! | `redis+cluster://[USER:PASSWORD@]HOST,HOST` | a cluster (feature `cluster`); these two also as `rediss+...` |
//!
//! Redis 6.2 or later, 7.0 in a cluster, or Valkey; the tests run on 6.2 and 7.0, and were run on Redis 8.0 and Valkey 9.1.
//! One that evicts keys, or a replica, is refused.
//!
//! # How it works
//! - **One script** holds every step; it is called by its hash, and sent along if the server does not know it. A step is
//!   one `EVALSHA` and changes everything or nothing. Usual cases come first: a set of exclusive ids that nobody else has
//!   to do with costs less than taking its ids by a minimal script one by one.
//! - **Time** is the server's. A key lives as long as its lease; what has expired Redis removes by itself.
//! - **Fences** come from one number for each namespace, never below the server's microseconds, so that they go on though
//!   the server lost its data. Data lost *and* the clock set back at once is not protected against.
//! - **Waiting.** Places are in sorted sets. Whoever frees something grants it to whom it is due in the same script, as an
//!   offer of at most 2 s, and the script publishes the offer to the waiter's connection; a release confirms it as well as a
//!   renewal. A connection with waiters gives a sign of life every second, which counts for 3 s, and looks every 250 ms - and
//!   just when a lease ends - after the ids that are waited for: so it notices holders that died and foreign clients' `DEL`.
//!   When it is lost, all its waiters ask again.
//! - **One connection for each runtime**, also for what is pushed (RESP3), so that one that is blocked or gone keeps no
//!   other from its work, the library's own thread, which renews, least of all. All waiters of a runtime have one
//!   subscription; so a process has one for each runtime in which somebody waits, and not a single one on a thread of the
//!   library's: on two CPUs a bare message took 25 us where one thread publishes and reads it, and 124 us where the
//!   connections are on another thread than who waits.
//! - **Whoever is alone looks.** A request that is alone on its connection looks for its answer for 100 us before its task
//!   sleeps, and lets other tasks run meanwhile; where answers take longer only one in 64 does. On two CPUs a pair took 95 us
//!   instead of 160 on a runtime of one thread, for a third more of the processor, and 120 on one of two threads, for almost
//!   twice as much; [`RedisBuilder::busy_wait`] sets it, also to none.
//! - **What that costs.** One id, taken and released, is two calls of the script, which make five calls in the server: the
//!   time, the fence, the key; compare, delete. A client without fences makes three: `SET NX PX`; compare, delete. A release that hands
//!   over makes eight calls, where a message alone is one. So a hand-off takes a quarter to a third longer than a bare
//!   message where a thread has to be woken for either, and 1.7 times as long where one thread does all at the client.
//!
//! # Keys
//! All have the namespace in braces, and so lie in one slot of a cluster; ids of different namespaces may lie in others.
//!
//! | key | what |
//! | --- | --- |
//! | `{ns}:ID` | a string. Who holds `ID` exclusively: `lc1\|fence\|length:context\|flags\|renewed at\|lease\|x\|attempt\|owner`; else `lc1~shared` or `lc1~frozen` while others must stay out. The global lock's `ID` is empty |
//! | `{ns}/f` | the highest fence; below zero while there may be more than main keys |
//! | `{ns}/i`, `/z` | ids with more than a main key, by when they were last touched; frozen ids |
//! | `{ns}/h:ID`, `/r:ID` | shared and slot holders by context; what they hold again if their last change is withdrawn |
//! | `{ns}/l:ID`, `/q:LINE:ID` | lines in which somebody waits: one for each mode and limit; waiters by ticket |
//! | `{ns}/w:WAITER`, `/p:SESSION` | a waiter's set; a sign of life. Messages go to the channel `{ns}/o:SESSION` |
//! | `{ns}/x:WAITER`, `/m` | that an attempt was withdrawn; that there are such marks |
//! | `{ns}/b:ID` | what was broken lately |
//! | `{ns}/v` | the version of these keys, and the oldest of programs that may use them; missing as long as it is the first |
//!
//! What a user of an access list needs, in this order, and nothing that touches other keys (as `FLUSHALL` does), scripts or
//! connections; `NAMESPACE` is that of [`RedisBuilder::namespace`]:
//! ```text
//! user locks on >PASSWORD ~{NAMESPACE}* resetchannels &{NAMESPACE}/o:* +@connection +@string +@hash +@set +@sortedset +@list
//!   +@keyspace +@pubsub -@dangerous +eval +evalsha +script|load +time +wait +info +role +cluster|slots
//! ```
//! Without `info` the server is not looked at when it is connected to; `wait` is for [`RedisBuilder::replicas`], `role` for
//! sentinels, `cluster|slots` for a cluster.
//!
//! # Other clients
//! An exclusive lock is what other libraries make of it too: `SET {ns}:ID token NX PX ms`, deleted if equal. Theirs are
//! honoured and shown as a holder with the token for a context and the fence 0; ours keep them out, shared ones, slots
//! and frozen ids as well. While ours wait, and while somebody holds who came to it by waiting, a main key outlives its
//! lease by 5 s, so that nobody gets in between. They are not queued, and without fences. A foreign key without a time
//! to live stays until it is deleted, or broken by its fence 0.
//!
//! # What to know
//! - **A failover may lose grants.** Replicas are asynchronous: what the old master granted last the new one may not know, and
//!   may grant again; the holder is told at its next renewal. [`RedisBuilder::replicas`] makes that less likely, at the price
//!   of a wait, and never impossible. Fences go on from the greater of the last that the new master knows and its clock: they
//!   grow as long as its clock is behind the old one's by less than the time between the old master's last grant and its own
//!   first. A sentinel's failover takes seconds, which covers what NTP leaves; `CLUSTER FAILOVER TAKEOVER` takes no time. With
//!   such clocks a guarded write is certain; nothing else is.
//! - **A restart without an append-only file loses all locks**, as `FLUSHALL` does; holders are told as *vanished* at their next
//!   renewal, and waiters ask again within a second.
//! - **A request that is not answered in time** is in doubt: the service withdraws it, and a mark of at least 50 s refuses it if
//!   it arrives only then.
//! - Shared locks and slots are read as a whole: with n holders of one id, asking for that id reads n.
//! - `list` and `release_context` look at all keys of the database.
//! - In a cluster the script stops at a key that moves just then; it is told as busy, and asked again.

mod admin;
mod config;
mod dao;
mod doctor;
mod eager;
mod error;
mod inbox;
mod link;
mod reply;
mod scripts;
mod session;
mod store;
mod target;
mod version;

pub use config::RedisBuilder;
pub use dao::{CAPABILITIES, RedisLockDao};
