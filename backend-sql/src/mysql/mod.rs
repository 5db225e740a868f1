//! Locks in a MySQL or MariaDB database: for any number of hosts, beside the data of the application.
//!
//! ```no_run
//! use lockcore::LockingService;
//! use lockcore_sql::MysqlLockDao;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let dao = MysqlLockDao::<String>::connect("mysql://app@db.example/app").await?;
//! let locks = LockingService::new(dao);
//! locks.with_locks(["accounts/7", "accounts/9"], async || -> std::io::Result<_> { Ok(()) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! One module for MySQL 8.0 and later and MariaDB 10.6 and later; in what they differ stands in [`Flavor`].
//!
//! # How it works
//! - **Routines decide.** Every operation is one `CALL` of a versioned stored procedure: one round trip, and one transaction
//!   whatever the number of ids. Nothing is decided here.
//! - **One row for each id** says who holds it exclusively, who is the only one to wait for that, and whether there is
//!   anything else (`extra`): other holders, more waiters, a freeze, which are rows of another table. So two who take
//!   turns touch nothing but this row, each with one `UPDATE`; and the usual case (exclusive locks, nothing in the
//!   way) is one `UPDATE` of these rows, which finds them free or changes nothing. What it does not look at is whether the
//!   attempt was withdrawn: a withdrawal writes into the rows until when that may be asked, and until then they are no
//!   usual case. Everything else locks the rows of its ids first, in the order of the ids, and decides in later
//!   statements, under READ COMMITTED, which every transaction asks for: each of them sees what was committed before
//!   the locks were had. An error rolls back and is told.
//! - **A set is one row more.** Ids that are taken together say in their rows but that, and under which fence and attempt; one
//!   row of another table says who has them and until when. So renewing and freeing a set writes one row, however many ids it
//!   has, and whoever finds such an id reads that row, locked: a set that is not there is free. As soon as anybody else has to
//!   do with one of them, also because its lease is over, it moves to where everything else is, and the set is marked as
//!   parted: from then on it is renewed and freed id by id.
//! - **What is taken again and again stays a set.** Freed by a program that took just these ids before, it is kept: its row says
//!   that nobody has it. Taking them again is to change that row, under a fence of its own, and nothing else. Whoever else wants
//!   one of them has to part the set first, which takes several times as long as to find a free row; so a program that found
//!   a set parted does not keep it for the next 16 times, and longer each time that this happens. It knows up to 1024
//!   sets, of up to 8 KiB of ids. What nobody took again for an hour is swept.
//! - **The server's clock decides**, in microseconds of UTC, whatever the time zone of the session. A grant "from the
//!   future" - the clock was set back - counts from now.
//! - **Fences** are `max(previous + 1, clock)`, kept in the row of the id; the sweep removes rows that nobody uses once their
//!   fence is an hour behind the clock. In the usual case the taker proposes one, an upper bound of the server's clock as
//!   known from earlier answers, and the `UPDATE` takes it if it is above the previous one, at least the clock, and no more
//!   than 10 ms ahead, which is less than a restart or a fail-over takes. Then there is nothing to answer: a row is a message
//!   of its own, before that with which a routine ends, and takes a fifth of the time of a grant.
//! - **Waiting**, unless it is for one id and behind nobody else, is a row for each id, in the order of tickets.
//!   Whoever frees something grants it to whom it is due in the same transaction, as an offer of at most 2 s. The other
//!   ids of a waiting set are locked with `SKIP LOCKED`; if somebody is at one of them, the waiter is told to ask for
//!   itself.
//! - **A crowd goes together.** What many tasks of one runtime ask for at the same time, each of one id, goes in one
//!   call and one transaction, takes and releases alike, since all commits of a server wait for the same. At most two
//!   such calls are under way, or one while five or more go together, and the others gather behind them, for at most 2 ms
//!   longer until they are as many as the last time. Another call begins beside one that takes twice as long as the
//!   server worked on the last, so that a slow disk holds up nobody. Who is alone does not wait at all, but for the first
//!   behind a crowd, who waits those 2 ms for the others. Whose row
//!   somebody else has locked goes along with others three times, and then alone, as those do whose case is not usual.
//! - **Waking.** A DAO keeps one connection that sits in a routine which waits; whoever hands something over interrupts
//!   it with `KILL QUERY`, after the commit, in the same call. The waiting connection holds a user-level lock named
//!   after its random session, and the connection to interrupt is the one that `IS_USED_LOCK` tells at that moment: a
//!   connection id that was given to another client holds no such lock, so that no other query is interrupted. Behind a proxy
//!   that shares connections of the server between clients that would not hold: before the first interruption both
//!   connections of the DAO are asked several times whether they are its own; if not, waiters poll, and `doctor` says so. What
//!   it waits for is a user-level lock too, which a second connection of the DAO keeps and otherwise does nothing: in
//!   `SLEEP`, MariaDB may take two seconds over an interruption. On connecting it is tried out;
//!   [`push`](lockcore::Capabilities::push) is declared only if that works. Each call tells what there is and then
//!   waits; if two in a row were interrupted before they told anything, the next looks without that lock, so that many
//!   who ring do not keep it from looking; who rings nobody then has committed before the last look, which is made with
//!   it. A DAO with waiters also gives a sign of life every second, which finds leases that ended, and offers that it
//!   was not told of. If listening fails, everybody asks again. The second connection interrupts the first with each sign
//!   of life, and every 20 s without waiters, unless another process did; if that is not noticed within 3 s, both are
//!   replaced, and the server is told to end a predecessor that still has the name. So a connection that was dropped
//!   without a word is noticed within 4 s while anybody waits. While there is no listener, signs of life are given every 20
//!   to 200 ms, and after each release of a process that has waiters.
//! - **Connections** are kept by the runtime that made them, and closed if an operation on one was abandoned: no ping, no
//!   hidden statement, and no transaction that spans calls, which a dropped future could leave open. When a call or a probe
//!   gets no answer, idle connections that were not used meanwhile are closed: they are as likely dead. Deadlocks and lock wait
//!   timeouts are tried again within the [timeout](MysqlBuilder::timeout); a renewal, release or withdrawal also on another
//!   connection if the first one was cut. An acquire is not: it might arrive late. It is told as in doubt, and the service
//!   withdraws it.
//!
//! # Who needs which rights
//! Connecting creates the schema if it is missing, unless [`migrate`](MysqlBuilder::migrate) is off; [`schema_sql`] and
//! `lockctl migrate --print sql` print it for those who do that themselves. The routines run with the rights of whoever
//! made them, which is an account that has to stay. A program that only locks needs nothing but
//!
//! ```sql
//! GRANT EXECUTE ON app.* TO app;
//! ```
//! It should connect under one account on all its hosts: a user may interrupt only its own connections. If the routines
//! were made by another user without `CONNECTION_ADMIN` (MySQL) or `CONNECTION ADMIN` (MariaDB), a release that hands over
//! sends the interruption by itself, in a second round trip. Procedures can be made on servers with a binary log; functions,
//! which need `log_bin_trust_function_creators` there, are not used. Where routines are forbidden altogether this backend
//! cannot be used, and says so on connecting.
//!
//! # Several versions
//! The table `lockcore_schema` has two numbers: `version`, and `oldest_program`, below which a program refuses the schema. A
//! release that shares the schema with the one before raises only the first, and leaves the routines alone whose names begin
//! with the older version. So programs of both run at the same time, and the older ones can be started again. The printed
//! schema replaces all routines, each of which is missing for a moment: it is for when no program runs.
//!
//! # Writes that a former holder cannot make
//! [`fence_check`](MysqlLockDao::fence_check) is for the `WHERE` of the application's own statements.
//!
//! # What to know
//! - **Durability** is the server's: `innodb_flush_log_at_trx_commit` and `sync_binlog` are global, and neither server lets
//!   a session or transaction choose. So a release is as durable as a grant, and there is no option; `doctor` tells what the
//!   server does.
//! - **A full disk** is told as unavailable, and nothing of what failed was done. With a binary log on that disk MySQL tells
//!   nothing: every statement that writes waits until there is room, and ends at the [timeout](MysqlBuilder::timeout), in
//!   doubt.
//! - A read-only server refuses every step, unless whoever made the routines may write there all the same: then they do, for
//!   everybody. `doctor` tells of a server that is read-only.
//! - A fail-over to an asynchronous replica may forget grants of the last moments; fences go on above the clock.
//! - A binary log has to be in the form of rows (or `MIXED`): statements cannot hold what READ COMMITTED does.
//! - In a cluster with several writable nodes all of an application's locks belong on one node: rows are locked there only.
//! - MySQL's usual authentication sends the password over TLS only, which is the default wherever the server has it; the
//!   driver's RSA exchange for plain connections is not compiled in (RUSTSEC-2023-0071).
//! - MySQL 9.7 and MariaDB 10.11 are what is tested.
//! - Shared locks and slots are rows: with n holders of one id, asking for that id reads n rows.
//! - `table_prefix` may be any text without characters beyond U+FFFF; it is quoted.

mod config;
mod dedicated;
mod doctor;
mod engine;
mod error;
mod fences;
mod flavor;
mod link;
mod listen;
mod schema;

pub use config::{MysqlBuilder, capabilities};
pub use engine::{Mysql, MysqlLockDao};
pub use flavor::Flavor;
pub use schema::schema_sql;
