//! Locks in a PostgreSQL database: for any number of hosts, beside the data of the application.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_sql::PostgresLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = PostgresLockDao::<String>::connect("postgres://app@db.example/app").await?;
//! let locks = LockingService::new(dao);
//! locks.with_locks(["accounts/7", "accounts/9"], async || -> std::io::Result<_> { Ok(()) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! - **Routines decide.** Every operation is one call of a versioned PL/pgSQL routine, one round trip and one transaction
//!   whatever the number of ids (a release that hands over is two transactions in that one call). Nothing is decided here.
//! - **One row for each id** says who holds it exclusively, who is the only one to wait for that, and whether there is
//!   anything else: other holders, more waiters, a freeze, marks of withdrawn attempts. It is locked first, sets in the order
//!   of their ids; so the usual case - exclusive, nothing in the way - is one statement that decides by that row alone, and
//!   two who take turns touch nothing else. Everything else is read in later statements than those that took the locks,
//!   under READ COMMITTED, which the routines insist on: a statement that waited for a lock sees all other rows as they were
//!   before.
//! - **What is taken again and again is a set.** Several ids that are freed by a program which took just these before are kept
//!   together: their rows say only that one row of another table tells who has them. Taking, renewing and freeing them again
//!   is to change that row, under a fence of its own, however many they are. Whoever else has to do with one of them, be it
//!   to withdraw, parts the set first, which takes several times as long as to find a free row; so a program that found a set
//!   parted does not keep it for the next 16 times, and longer each time that this happens. It knows up to 1024 sets, of up
//!   to 8 KiB of ids. After an hour the sweep parts each once.
//! - **The server's clock decides**, in microseconds. A grant "from the future" - the clock was set back - counts from now.
//! - **Fences** are `max(previous + 1, clock)`, kept in the row of the id. The sweep removes rows that nobody uses; the
//!   namespace then remembers the highest of their fences, and no later one is below it.
//! - **Waiting**, unless it is for one id and behind nobody else, is a row for each id, in the order of tickets. Whoever frees something grants it to whom it is due in the
//!   same transaction, as an offer of at most 2 s. The other ids of a waiting set are locked with `SKIP LOCKED`; if
//!   somebody is at one of them, the waiter is told to ask for itself.
//! - **Waking** is `NOTIFY`, on one connection for each DAO that does nothing but listen. It is sent in a second,
//!   asynchronous commit after the durable one that handed over: a notification inside it lets only one commit at a time
//!   reach the disk. On connecting a message to itself shows whether it hears;
//!   [`push`](lockcore::Capabilities::push) is declared only then. A DAO with waiters gives a sign of life every second,
//!   which also finds leases that ended and offers that it was not told of; who waits alone is found by the ids that it sends
//!   along. If listening fails, everybody asks again. The connection that listens is probed with each sign of life, every
//!   20 s without waiters, and replaced if it does not answer within 3 s: a connection that was dropped without a word
//!   is noticed within 4 s while anybody waits. Until then, hand-overs are found by the signs of life; while there is no
//!   listener, those are given every 20 to 200 ms, and after each release of a process that has waiters.
//! - **A crowd goes together.** What many tasks of one runtime ask for at the same time, each of one id, goes in one
//!   call and one transaction: at most two such calls of a kind are under way, or one while five or more go together,
//!   and the others gather behind them, for at most 2 ms longer until they are as many as the last time. Another call
//!   begins beside one that takes twice as long as the server worked on the last, so that a slow disk holds up nobody.
//!   Who is alone does not wait at all, but for the first behind a crowd, who waits those 2 ms for the others. A row that somebody else keeps locked for 20 ms undoes the call; then each goes
//!   alone.
//! - **Durability.** A grant, a renewal and a hand-off are as durable as the server's `synchronous_commit` says; a release
//!   that hands nothing over, a refusal and a place in the queue are committed asynchronously, see [`Commit`].
//! - **Connections** are kept by the runtime that made them, and closed if an operation on one was abandoned: no ping, no
//!   hidden statement. A renewal or release where there is none yet borrows the one that gives signs of life. Nothing is
//!   `SET` on a session: how statements are planned is tied to the routines. When a call or a probe gets no
//!   answer, idle connections that were not used meanwhile are closed: they are as likely dead. Deadlocks and serialization
//!   failures are tried again within the [timeout](PostgresBuilder::timeout); a renewal, release or withdrawal also on
//!   another connection if the first one was cut. An acquire is not: it might arrive late. It is told as in doubt, and the
//!   service withdraws it.
//!
//! # Who needs which rights
//! Connecting creates the schema if it is missing, unless [`migrate`](PostgresBuilder::migrate) is off; [`schema_sql`] and
//! `lockctl migrate --print sql` print it for those who do that themselves. A program that only locks needs, on an existing
//! schema, no right to create:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA public TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON lockcore_lock, lockcore_set, lockcore_holder, lockcore_place, lockcore_session,
//!   lockcore_mark, lockcore_break, lockcore_namespace, lockcore_schema TO app;
//! GRANT USAGE ON lockcore_ticket TO app;
//! ```
//! The routines run with the rights of their caller: a procedure that commits cannot do otherwise.
//!
//! # Behind a pooler
//! Rows and leases, no session state: any pooler will do, and its other clients find every setting as it was. One that hands
//! out another connection for each transaction (PgBouncer's `pool_mode=transaction`) needs
//! [`prepared(false)`](PostgresBuilder::prepared) unless it knows prepared statements, and a [`listen_url`](PostgresBuilder::listen_url) past it; without that, waiters look for their turn up to
//! five times a second, one statement for each process. `doctor` notices such a pooler.
//!
//! The role's isolation level has to be READ COMMITTED, the server's default. Where the role or the database has another one, a
//! direct connection starts with the parameter `default_transaction_isolation`; a pooler or an application's pool takes no such
//! parameter, so that connecting fails, until `ALTER ROLE .. SET default_transaction_isolation TO 'read committed'`.
//!
//! # Several versions
//! The table `lockcore_schema` has two numbers: `version`, and `oldest_program`, below which a program refuses the schema. A
//! release that shares the schema with the one before raises only the first, and keeps the routines whose names begin with
//! the older version. So programs of both run at the same time, and the older ones can be started again.
//!
//! # Writes that a former holder cannot make
//! [`fence_check`](PostgresLockDao::fence_check) is for the `WHERE` of the application's own statements.
//!
//! # What to know
//! - A fail-over to an asynchronous replica may forget grants of the last moments; fences go on above the clock.
//! - A crash of the server may bring a lock back whose release was committed asynchronously, until its lease ends.
//! - Offers are `NOTIFY` messages, which any role may send that can connect to the database. A role that can also read the
//!   tables can forge one: a waiter then starts its callback, and is stopped with its lock lost when it confirms the offer
//!   a moment later. Writes that check the fence are refused. A secret in the messages would not help, because programs
//!   call the routines with their own rights and so could read it too: grant `CONNECT` and `SELECT` on the tables to
//!   trusted roles only.
//! - PostgreSQL 15 is what is tested; 14 has all that is used.
//! - **An open snapshot slows an id that is used often**, anywhere on the server: a dump, an idle transaction, a replication slot.
//!   Every use leaves two row versions which cannot be removed as long as that snapshot might see them, and the next one passes
//!   over all of them: 1 ms became 4 ms after 20 000 uses. `doctor` looks at the oldest.
//! - Every table has a primary key, so that `CREATE PUBLICATION .. FOR ALL TABLES` is no obstacle. Nothing of it is worth
//!   replicating.
//! - Shared locks and slots are rows: with n holders of one id, asking for that id reads n rows.
//! - `table_prefix` and `schema` may be any text; both are quoted.

mod config;
mod doctor;
mod engine;
mod error;
mod link;
mod listen;
mod schema;

pub use config::{Commit, PostgresBuilder, capabilities};
pub use engine::{Postgres, PostgresLockDao};
pub use schema::schema_sql;
