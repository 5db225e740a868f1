//! Locks in a PostgreSQL database: for any number of hosts, beside the data of the application.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_sql::PostgresLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = PostgresLockDao::<String>::open("postgres://app@db.example/app").await?;
//! let locks = LockingService::new(dao);
//! locks.with_locks(["accounts/7", "accounts/9"], async || -> std::io::Result<_> { Ok(()) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! - **Routines decide.** Every operation is one call of a versioned PL/pgSQL routine, one round trip and one transaction
//!   whatever the number of ids (a release that hands over is two transactions in that one call). Nothing is decided in this
//!   process.
//! - **One row for each id** says who holds it exclusively, who is the only waiter for that, and whether there is anything
//!   else: other holders, more waiters, a freeze, tombstones of withdrawn attempts. It is locked first, sets in the order of
//!   their ids; so the usual case - exclusive, nothing in the way - is one statement that decides by that row alone, and two
//!   who take turns touch nothing else. Everything else is read in later statements than those that took the locks, under
//!   READ COMMITTED, which the routines insist on: a statement that waited for a lock sees all other rows as they were before.
//! - **The server's clock decides**, in microseconds. A grant "from the future" - the clock was set back - counts from now.
//! - **Fences** are `max(previous + 1, clock)`, kept in the row of the id. The sweep removes rows that are not used; the
//!   namespace then remembers the highest of their fences, and no later one is below it.
//! - **Waiting**, unless it is for one id and behind no other waiter, is a row for each id, in the order of tickets. A release
//!   grants what it frees to the next waiters in the same transaction, as offers of at most 2 s. The other ids of a waiting set
//!   are locked with `SKIP LOCKED`; if another transaction works on one of them, the waiter is notified to ask for itself.
//! - **Notifications** are `NOTIFY`, on one connection for each DAO that only listens. They are sent in a second, asynchronous
//!   commit after the durable one that handed over: a notification in a durable commit lets only one commit at a time reach
//!   the disk. On connecting, a notification to itself shows whether listening works; [`push`](lockcore::Capabilities::push)
//!   is declared only then.
//! - **Heartbeats.** A DAO with waiters sends one every second, which also finds leases that ended and offers whose
//!   notifications were lost. The connection that listens is probed with each heartbeat, every 20 s without waiters, and
//!   replaced if it does not answer within 3 s: a connection that was dropped without notice is noticed within 4 s while there
//!   are waiters. Without a listener, heartbeats are sent every 20 to 200 ms, and after each release of a process that has
//!   waiters.
//! - **Batches.** While a request for one id is in flight, the requests of the same kind that other tasks of the runtime make
//!   wait, and then share one call and one transaction. Behind a batch of five or more the next one waits, for at most 2 ms,
//!   until the same tasks have made their next requests. One that has waited for 5 ms starts another batch, so that a slow disk
//!   delays no other client. A row that another transaction keeps locked for 20 ms undoes the batch; then each request is sent alone.
//! - **Durability.** A grant, a renewal and a hand-off are as durable as the server's `synchronous_commit` says; a release that
//!   hands nothing over, a refusal and a place in the queue are committed asynchronously, see [`Commit`].
//! - **Connections** are kept by the runtime that made them, and closed if an operation on one was abandoned: no ping, no
//!   hidden statement. A renewal or release without one borrows the connection of the heartbeats. Nothing is
//!   `SET` on a session: how statements are planned is tied to the routines, and what else is needed are parameters with which a
//!   connection starts. When a call or a probe gets no answer, idle connections that
//!   were not used meanwhile are closed: they are as likely dead. Deadlocks and serialization failures are retried within the
//!   [timeout](PostgresBuilder::timeout); a renewal, release or withdrawal also on another connection if the first one was cut.
//!   An acquire is not: it might arrive late. It is reported as in doubt, and the service withdraws it.
//! - **Limits.** What this process gives up the server gives up as well, at nine tenths of the timeout: by `lock_timeout`, which a
//!   connection starts with, or each call brings along where a connection is lent or a pooler takes no parameters. So no request
//!   goes on waiting without a client while a table is locked. Unused connections end after five minutes.
//!
//! # Who needs which rights
//! Connecting creates the schema if it is missing, unless [`migrate`](PostgresBuilder::migrate) is off; [`schema_sql`] and
//! `lockctl migrate --print sql` print it for those who do that themselves. A program that only locks needs, on an existing
//! schema, no right to create:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA public TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON lockcore_lock, lockcore_holder, lockcore_place, lockcore_session,
//!   lockcore_tombstone, lockcore_break, lockcore_namespace, lockcore_schema, lockcore_form TO app;
//! GRANT USAGE ON lockcore_ticket TO app;
//! ```
//! The routines run with the rights of their caller: a procedure that commits cannot do otherwise. Those of a schema that was made when
//! watchers were notified use the table `lockcore_watcher`, too.
//!
//! # Without routines
//! [`open_without_routines`](PostgresBuilder::open_without_routines) locks by plain statements, for servers that have no PL/pgSQL and roles
//! that may not create routines. The table `lockcore_form` says of each namespace which of the two ways locks it; the other is refused.
//!
//! # Behind a pooler
//! Rows and leases, no session state: any pooler will do, and its other clients find every setting as it was. One that hands
//! out another connection for each transaction (PgBouncer's `pool_mode=transaction`) needs
//! [`prepared(false)`](PostgresBuilder::prepared) unless it knows prepared statements, and a
//! [`listen_url`](PostgresBuilder::listen_url) past it; without that, a process with waiters polls every 20 to 200 ms, by one
//! statement for all of them. `doctor` notices such a pooler.
//!
//! A connection of ours starts with its own isolation level and timeouts, whatever the defaults of role and database are. A pooler or
//! an application's pool takes no such parameters: there the role's isolation level has to be READ COMMITTED, the server's default,
//! or connecting fails, until `ALTER ROLE .. SET default_transaction_isolation TO 'read committed'`.
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

mod cells;
mod config;
mod dao;
mod doctor;
mod engine;
mod error;
mod form;
mod link;
mod listen;
mod schema;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use cells::PostgresCells;
pub use cells::PostgresStatementsLockDao;
pub use config::{Commit, PostgresBuilder, capabilities};
pub use dao::PostgresLockDao;
pub use schema::{schema_sql, statements_schema_sql};
