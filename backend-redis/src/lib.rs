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
//! - **Time** is the server's. Every key ends by itself, a main key some seconds after its lease at most and a place in a
//!   line ten minutes after the waiter last asked; only what is frozen has no end.
//! - **The main key says what there is.** Whether an id is free, who holds it alone, that it is shared: a main key that says
//!   "shared" proves that the records and ends of the holders are there, and where they are not the script changes nothing
//!   and asks to try again. A free id has at most lines, of which one key tells, so that taking one that is neither held nor
//!   waited for is gated by its own keys, however busy the namespace is.
//! - **Steps cost no more with many holders.** Those who share an id lie in a hash by context and in a sorted set by end,
//!   with the free permits in another as ranges: taking, renewing and freeing one looks up a few entries of each. What has
//!   ended, and waiters that died, are removed at most some 250 in one script; what is left over is done by the next.
//! - **Fences** come from one number for each namespace, never below the server's microseconds, so that they go on though
//!   the server lost its data. Data lost *and* the clock set back at once is not protected against.
//! - **Waiting.** Places are in sorted sets. Whoever frees something grants it to whom it is due in the same script, as an
//!   offer of at most 2 s, and the script publishes the offer to the waiter's connection; a release confirms it as well as a
//!   renewal. A connection with waiters gives a sign of life every second, which counts for 3 s. The same script looks after
//!   the ids that are waited for, as does another just when a lease ends, so that it notices holders that died; and every
//!   250 ms where a foreign client holds one, as its `DEL` notifies no waiter. A waiter whose place the server does not
//!   know any more asks again at once; all do when the connection is lost.
//! - **One connection for each runtime**, also for what is pushed (RESP3), so that one that is blocked or gone keeps no
//!   other from its work, the library's own thread, which renews, least of all. All waiters of a runtime have one
//!   subscription; so a process has one for each runtime in which somebody waits, and not a single one on a thread of the
//!   library's: on two CPUs a bare message took 25 us where one thread publishes and reads it, and 124 us where the
//!   connections are on another thread than who waits.
//! - **Whoever is alone looks.** A request that is alone on its connection looks for its answer for 100 us before its task
//!   sleeps, and lets other tasks run meanwhile; where answers take longer only one in 64 does. On two CPUs a pair took 95 us
//!   instead of 160 on a runtime of one thread, for a third more of the processor, and 120 on one of two threads, for almost
//!   twice as much; [`RedisBuilder::busy_wait`] sets it, also to none.
//! - **What that costs.** One id, taken and released, is two calls of the script, which make six calls in the server:
//!   whether anything is there, the time, the fence, the key; compare, delete. A client without fences makes three: `SET NX PX`;
//!   compare, delete. A release that hands over takes the server some 40 us more, and taking, renewing or freeing something
//!   shared 40 to 100 us, with one holder or 10 000.
//!
//! # Keys
//! All have the namespace in braces, and so lie in one slot of a cluster; ids of different namespaces may lie in others.
//!
//! | key | what |
//! | --- | --- |
//! | `{ns}:ID` | a string. Who holds `ID` exclusively: `lc2\|fence\|length:context\|flags\|renewed at\|lease\|x\|attempt\|length:owner`, and behind that what its context held before its last change; else `lc2~shared\|permits in use\|last renewal\|flags` or `lc2~frozen` while others must stay out. Flags: `b` broken, `q` waited for, `f` frozen. The global lock's `ID` is empty |
//! | `{ns}/f` | the highest fence |
//! | `{ns}/s:ID`, `/e:ID`, `/g:ID` | those who share `ID`: records by context, contexts by the end of their leases, ranges of free permits. They outlive the main key, without which they mean nothing |
//! | `{ns}/n:ID`, `/t:LINE:ID` | the lines that have waiters, one for each mode and limit, and `frozen`; waiters by ticket |
//! | `{ns}/c:WAITER`, `/p:SESSION` | a waiter's set; a sign of life. Messages go to the channel `{ns}/o:SESSION` |
//! | `{ns}/x:WAITER` | that an attempt was withdrawn |
//! | `{ns}/b:ID` | what was broken lately |
//! | `{ns}/v` | the version of these keys, and the oldest of programs that may use them; missing as long as it is the first |
//!
//! Programs of the format before this one (`lc1`) take these main keys for a foreign client's, and these theirs: they exclude
//! each other, but do not stand in each other's lines.
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
//! - `list` and `release_context` look at all keys of the database.
//! - **While a cluster's slot moves** its keys are half here and half there, and a key that has not arrived looks like none. So
//!   its namespaces can only renew, as far as all keys of the grant are together, and free what is held alone: everything
//!   else is told as busy, and asked again. Signs of life pause too, so that waiters may have to line up again.
//! - After the clock was set back, the first step that meets a shared id reads all of its holders once.

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
