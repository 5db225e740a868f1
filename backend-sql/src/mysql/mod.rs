//! Locks in a MySQL or MariaDB database: for any number of hosts, beside the data of the application.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_sql::MysqlLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = MysqlLockDao::<String>::open("mysql://app@db.example/app").await?;
//! let locks = LockingService::new(dao);
//! locks.with_locks(["accounts/7", "accounts/9"], async || -> std::io::Result<_> { Ok(()) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! One module for MySQL 8.0 and later and MariaDB 10.6 and later; [`Flavor`] has the differences.
//!
//! # How it works
//! - **Routines decide.** Every operation is one `CALL` of a versioned stored procedure: one round trip, and one transaction
//!   whatever the number of ids.
//! - **One row for each id** names its exclusive holder, and its only waiter if there is but one; otherwise its `extra` says
//!   that holders and waiters are rows of another table. So the usual cases - exclusive locks, nothing in the way, or
//!   two that take turns - touch nothing but the rows of the ids.
//! - **A fast and a general way.** The fast way is one statement that finds all ids free, or held by the caller, and changes
//!   them; otherwise it changes nothing. Tombstones of withdrawn attempts need no look there: a withdrawal writes into the
//!   rows until when there may be one, and until then they take the general way. That locks the rows of the ids, in the order
//!   of the ids, and decides in later statements, under READ COMMITTED: each of them sees what was committed before
//!   the locks were granted. An error rolls back.
//! - **The server's clock decides**, in microseconds of UTC, whatever the time zone of the session. A grant "from the
//!   future" - the clock was set back - counts from now. A lent connection whose variable `timestamp` is set is refused.
//! - **Fences** are `max(previous + 1, clock)`, kept in the row of the id; the sweep removes unused rows once their
//!   fence is an hour behind the clock.
//! - **Waiting**, unless it is for one id and behind no other waiter, is a row for each id, in the order of tickets.
//!   A release grants to the waiters whose turn it is in the same transaction, as offers of at most
//!   [`OFFER`](lockcore::protocol::OFFER). The other ids of a waiting set are locked with `SKIP LOCKED`; if another
//!   transaction works on one of them, the waiter is notified to ask again.
//! - **Batches.** Requests that several tasks of one runtime send at the same time, for one id each, travel as one call and
//!   one transaction, since a commit costs as much as the work on one row. Behind a batch of five or more the next one waits,
//!   for at most 2 ms, until the same tasks have made their next requests; one that has waited for 5 ms starts another batch. A
//!   batch waits for no row: a request whose row is locked travels in the next one, and is sent alone after three. So is what
//!   a batch cannot do.
//! - **Notifications.** A DAO keeps one connection that waits in a routine; a release that hands over interrupts
//!   it with `KILL QUERY`, after the commit, in the same call. The waiting connection holds a user-level lock named
//!   after its random session, and the connection to interrupt is the one that `IS_USED_LOCK` returns at that moment: a
//!   connection id that was given to another client holds no such lock, so that no other query is interrupted. This fails behind
//!   a proxy that shares connections of the server between clients: so both connections of the DAO are first checked several times
//!   to be its own; if not, waiters poll, and `doctor` says so. It waits for a user-level lock that a second connection of the
//!   DAO holds and otherwise does nothing: in `SLEEP`, MariaDB may take two seconds over an interruption. It is tried on
//!   connecting; [`push`](lockcore::Capabilities::push) is declared only if it works.
//! - **Heartbeats.** A DAO with waiters sends one every [`HEARTBEAT`](lockcore::protocol::HEARTBEAT), which finds leases that
//!   ended and offers that it was not notified of. With it, and every 20 s without waiters, the second connection
//!   interrupts the first, unless another process did; if that is not noticed within 3 s, both are replaced, and the server
//!   is asked to end a predecessor that still has the name. So a connection that was dropped silently is noticed within 4 s
//!   while there are waiters. While there is no listener, heartbeats are sent every 20 to 200 ms, and after each release of a
//!   process that has waiters.
//! - **Connections** are kept by the runtime that made them, and closed if an operation on one was abandoned: no ping, no
//!   hidden statement, and no transaction that spans calls, which a dropped future could leave open. When a call or a probe
//!   gets no answer, idle connections that were not used meanwhile are closed: they are as likely dead. Deadlocks and lock wait
//!   timeouts are retried within the [timeout](MysqlBuilder::timeout); a renewal, release or withdrawal also on another
//!   connection if the first one was cut. An acquire is not: it might arrive late. Its outcome is in doubt, and the service
//!   withdraws it.
//! - **Limits.** What this process gives up the server gives up as well: by `lock_wait_timeout` and `innodb_lock_wait_timeout`, in
//!   whole seconds below the timeout, and on MariaDB also by `max_statement_time`. So no request goes on waiting without a client
//!   while a table is locked. Nothing is set on a lent connection, which goes back to its pool when the server has answered. Each
//!   connection of ours sets these and what else it needs in one exchange, whatever the server's defaults and `init_connect` are;
//!   unused ones end after five minutes.
//!
//! # Privileges
//! Connecting creates the schema if it is missing, unless [`migrate`](MysqlBuilder::migrate) is off; [`schema_sql`] and
//! `lockctl migrate --print sql` print it for separate migrations. The routines run with the rights of the user who
//! made them, whose account has to stay. A program that only locks needs nothing but
//!
//! ```sql
//! GRANT EXECUTE ON app.* TO app;
//! ```
//! It should connect under one account on all its hosts: a user may interrupt only its own connections. If the routines
//! were made by another user without `CONNECTION_ADMIN` (MySQL) or `CONNECTION ADMIN` (MariaDB), a release that hands over
//! sends the interruption itself, in a second round trip. Procedures can be created on servers with a binary log; functions,
//! which need `log_bin_trust_function_creators` there, are not used. Where no routine can be created, `open`
//! fails; lock [without routines](#without-routines) there.
//!
//! # Without routines
//! [`open_without_routines`](MysqlBuilder::open_without_routines) locks by plain statements, for servers that have no stored procedures and
//! users who may not create them. The table `lockcore_form` says of each namespace which of the two ways locks it; the other is refused.
//!
//! # Several versions
//! The table `lockcore_schema` has two numbers: `version`, and `oldest_program`, below which a program refuses the schema. A
//! release that shares the schema with the one before raises only the first, and leaves the routines alone whose names begin
//! with the older version. So programs of both run at the same time, and the older ones can be started again. The printed
//! schema replaces all routines, each of which is missing for a moment: use it while no program runs.
//!
//! # Writes that a former holder cannot make
//! [`fence_check`](MysqlLockDao::fence_check) is for the `WHERE` of the application's own statements.
//!
//! # What to know
//! - **Durability** is the server's: `innodb_flush_log_at_trx_commit` and `sync_binlog` are global, and neither server lets
//!   a session or transaction choose. So a release is as durable as a grant, and there is no option; `doctor` reports what the
//!   server does.
//! - **A full disk** is reported as unavailable, and nothing of what failed was done. With a binary log on that disk MySQL
//!   reports nothing: every statement that writes waits until there is room, and ends at the
//!   [timeout](MysqlBuilder::timeout), in doubt.
//! - A read-only server refuses every step, unless the user who made the routines may write there all the same: then they
//!   do, for all users. `doctor` reports a server that is read-only.
//! - A fail-over to an asynchronous replica may forget grants of the last moments; fences go on above the clock.
//! - A binary log has to be in the form of rows (or `MIXED`): statements cannot hold what READ COMMITTED does.
//! - In a cluster with several writable nodes all of an application's locks belong on one node: rows are locked there only.
//! - MySQL's usual authentication sends the password over TLS only, which is the default wherever the server has it; the
//!   driver's RSA exchange for plain connections is not compiled in (RUSTSEC-2023-0071).
//! - MySQL 9.7 and MariaDB 10.11 are what is tested.
//! - Shared locks and slots are rows: with n holders of one id, asking for that id reads n rows.
//! - `table_prefix` may be any text without characters beyond U+FFFF; it is quoted.

mod cells;
mod config;
mod dao;
mod dedicated;
mod doctor;
mod engine;
mod error;
mod flavor;
mod link;
mod listen;
mod schema;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use cells::MysqlCells;
pub use cells::MysqlStatementsLockDao;
pub use config::{MysqlBuilder, capabilities};
pub use dao::MysqlLockDao;
pub use flavor::Flavor;
pub use schema::{schema_sql, statements_schema_sql};
