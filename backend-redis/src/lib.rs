//! Distributed locks in Redis: add `lockcore` and `lockcore-redis`, with the features `tls`, `sentinel` and `cluster` as the server needs them.
//! A set is one round trip a step, on one server, behind sentinels, or in a cluster.
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
//! | URL | server |
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
//! - **One script** holds every step; it is called by its hash, and sent along if the server does not have it. A step is one
//!   `EVALSHA` and changes everything or nothing. Usual cases come first: a set of exclusive ids without other holders or waiters
//!   costs less than locking its ids by a minimal script one by one.
//! - **Time** is the server's. Every key expires: a main key some seconds after its lease at most, a place in a queue ten
//!   minutes after the waiter's last request. Only a frozen id has no end.
//! - **The main key is authoritative.** It says whether an id is free, who holds it exclusively, or that it is shared: then the
//!   records of the holders must exist, and where they do not the script changes nothing and asks to try again. A free id
//!   has at most queues, which one key names, so that locking an id is gated by its own keys, however busy the namespace is.
//! - **Steps cost no more with many holders.** The holders of a shared id are in a hash by context and in a sorted set by end,
//!   the free permits in another as ranges: locking, renewing and freeing one reads a few entries of each. Expired holders and
//!   dead waiters are removed, at most some 250 in one script; the next one continues.
//! - **Fences** come from one number for each namespace, never below the server's microseconds, so that they grow though the
//!   server lost its data. Data lost *and* the clock set back at once is not protected against.
//! - **Waiting.** Queues are sorted sets. A step that frees an id grants it to the next waiter in the same script, as an offer
//!   of at most 2 s, which is published to the waiter's connection; a release confirms it as well as a renewal. A connection
//!   with waiters sends a heartbeat every second, which counts for 3 s. The same script polls the ids that are waited for; so
//!   does another just when a lease ends, which notices holders that died, and every 250 ms where a foreign client holds the
//!   id, as its `DEL` notifies no waiter. A waiter whose place the server no longer has repeats its request at once; all do when
//!   the connection is lost.
//! - **One connection for each runtime**, also for push messages (RESP3), so that a runtime that is blocked or gone delays no
//!   other, least of all the library's own thread, which renews. All waiters of a runtime share one subscription. (One
//!   connection on a thread of the library's would cost more: on two CPUs a bare message took 25 us where one thread publishes and
//!   reads it, and 124 us where the connections are on another thread than the waiter.)
//! - **Costs.** One id, acquired and released, is two calls of the script with six commands in the server: whether a
//!   key exists, the time, the fence, the main key; compare, delete. A client without fences needs three: `SET NX PX`;
//!   compare, delete. The general steps cost three to four times as much as the usual ones, most of it for the commands and a
//!   sixth for the script's definitions. A hand-over is one of them, with twenty commands: some 50 us.
//!
//! # Keys
//! All have the namespace in braces, and so are in one slot of a cluster; other namespaces may be in other slots.
//!
//! | key | content |
//! | --- | --- |
//! | `{ns}:ID` | a string. The exclusive holder: `lc2\|fence\|length:context\|flags\|renewed at\|lease\|x\|attempt\|length:owner`, followed by what its context held before the last change; else `lc2~shared\|permits in use\|last renewal\|flags` or `lc2~frozen`. Flags: `b` broken, `q` waited for, `f` frozen. The global lock's `ID` is empty |
//! | `{ns}/f` | the highest fence |
//! | `{ns}/s:ID`, `/e:ID`, `/g:ID` | the holders that share `ID`: records by context, contexts by the end of their leases, ranges of free permits. They outlive the main key, without which they mean nothing |
//! | `{ns}/n:ID`, `/t:LINE:ID` | the queues that have waiters, one line for each mode and limit, and `frozen`; waiters by ticket |
//! | `{ns}/c:WAITER`, `/p:SESSION` | a waiter's request; a session's heartbeat, which is its time in ms. Messages go to the channel `{ns}/o:SESSION` |
//! | `{ns}/x:WAITER` | the tombstone of a withdrawn attempt |
//! | `{ns}/b:ID` | the last breaks |
//! | `{ns}/v` | the version of these keys, and the oldest version of programs that may use them; missing as long as it is the first |
//!
//! Programs of the former format (`lc1`) and of this one treat each other's main keys as a foreign client's: they exclude each
//! other, but do not queue behind each other.
//!
//! A user of an access list needs this, in this order; it allows nothing that affects other keys (as `FLUSHALL` does), scripts
//! or connections. `NAMESPACE` is that of [`RedisBuilder::namespace`]:
//! ```text
//! user locks on >PASSWORD ~{NAMESPACE}* resetchannels &{NAMESPACE}/o:* +@connection +@string +@hash +@set +@sortedset +@list
//!   +@keyspace +@pubsub -@dangerous +eval +evalsha +script|load +time +wait +info +role +cluster|slots
//! ```
//! Without `info` the server is not checked on connecting; `wait` is for [`RedisBuilder::replicas`], `role` for
//! sentinels, `cluster|slots` for a cluster.
//!
//! # Other clients
//! Other libraries' exclusive locks have the same form: `SET {ns}:ID token NX PX ms`, deleted if equal. They are honoured, and
//! shown as a holder with the token as its context and the fence 0; our locks, shared ones, slots and frozen ids exclude
//! them. While an id is waited for, or held after a hand-over, its main key outlives the lease by 5 s, so that foreign clients
//! cannot pass the queue. They are not queued themselves, and have no fences. A foreign key without a time to live stays until
//! it is deleted, or broken by its fence 0.
//!
//! # What to know
//! - **A failover may lose grants.** Replicas are asynchronous: the new master may not have the old one's last grants, and
//!   may grant the ids again; the holder finds out at its next renewal. [`RedisBuilder::replicas`] makes that less likely, at
//!   the price of a wait, but never impossible. Fences go on from the greater of the last that the new master knows and its clock: they
//!   grow as long as its clock is behind the old one's by less than the time between the old master's last grant and its own
//!   first. A sentinel's failover takes seconds, which covers what NTP leaves; `CLUSTER FAILOVER TAKEOVER` takes no time. With
//!   such clocks a guarded write is certain; nothing else is.
//! - **A restart without an append-only file loses all locks**, as `FLUSHALL` does; holders find them *vanished* at their
//!   next renewal, and waiters repeat their requests within a second.
//! - **A request without a reply in time** is in doubt: the service withdraws it, and a tombstone of at least 50 s refuses it if it
//!   arrives late.
//! - `list` and `release_context` scan all keys of the database.
//! - That a server evicts keys is looked at on connecting, and by `doctor`; not again after a fail-over, or if it is set later.
//! - **While a cluster's slot moves** some of its keys are on either node, and a key that has not arrived looks absent. So its
//!   namespaces can only renew, as far as all keys of the grant are together, and release exclusive locks: everything else
//!   fails as busy, and is retried. Heartbeats pause too, so that waiters may have to be queued again.
//! - After the clock was set back, the first step on a shared id reads all of its holders once.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
#[cfg(any(feature = "sentinel", feature = "cluster"))]
mod announced;
mod config;
mod dao;
mod doctor;
mod error;
mod inbox;
mod link;
mod reply;
mod scripts;
mod server;
mod session;
mod store;
mod version;

pub use config::{RedisBuilder, TlsVerify};
pub use dao::{CAPABILITIES, RedisLockDao};
