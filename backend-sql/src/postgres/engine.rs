//! What the DAO needs of Postgres: connections, the calls of the routines, listening.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use lockcore::{
    BackendError, BackendErrorKind, BreakMode, Capabilities, ContextId, Finding, Ident, StoreVersion,
    Withdraw,
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Row,
    postgres::{PgConnectOptions, PgListener},
};
use uuid::Uuid;

use super::{
    config::{Commit, Options, PostgresBuilder, Source, capabilities},
    doctor,
    error::unconnected,
    link::{Argument, Link, Routine},
    listen,
    schema::{self, Names},
};
use crate::server::{
    Ask, Done, Engine, Hold, Kept, Key, Modes, Order, Outcome, Place, ServerError, ServerLockDao, Set,
    Settings, Single, fit, micros, store_version,
};

/// Bits of the parameter `p_flags`.
mod flag {
    pub(super) const QUEUE: i64 = 1;
    /// Of a release: what is handed to nobody has to be on the disk later only.
    pub(super) const FREE_ASYNC: i64 = 1;
    pub(super) const NESTED: i64 = 2;
    pub(super) const KEEP: i64 = 4;
    /// Nothing has to be on the disk before the answer.
    pub(super) const ASYNC: i64 = 8;
}

/// The level under which the routines decide, as a parameter with which a connection starts: a pooler that shares
/// connections refuses or ignores it, while it would hand what is `SET` on to its next client.
const LEVEL: (&str, &str) = ("default_transaction_isolation", "read committed");

/// Locks in a PostgreSQL database; see the [module](super) for what it does how.
pub type PostgresLockDao<I = String, C = Uuid> = ServerLockDao<I, C, Postgres>;

impl<I: Ident, C: ContextId> PostgresLockDao<I, C> {
    /// Connects to the server at `url` with the usual settings.
    ///
    /// # Errors
    /// As [`PostgresBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).connect().await
    }

    /// The quoted name of the function with which the application's own statements check a fence:
    /// `holds(namespace text, id text, fence bigint)` is true if the id is held exclusively under that fence and its
    /// lease lasts; and then nobody else gets it before the application's transaction ends. In the `WHERE` of a write
    /// it makes the late write of a former holder change nothing:
    ///
    /// ```no_run
    /// # async fn write(locks: lockcore::LockingService, dao: &lockcore_sql::PostgresLockDao, pool: sqlx::PgPool)
    /// # -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let write = format!(
    ///     "UPDATE account SET balance = 41 WHERE id = 7 AND {}('default', 'account/7', $1)",
    ///     dao.fence_check()
    /// );
    /// let guard = locks.lock(["account/7"]).await?;
    /// let fence = guard.held().exclusive_fence("account/7").expect("held exclusively").number() as i64;
    /// let written = sqlx::query(sqlx::AssertSqlSafe(write)).bind(fence).execute(&pool).await?;
    /// assert_eq!(written.rows_affected(), 1, "otherwise somebody else may hold it by now");
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The transaction should be short: a renewal waits for its end, as everybody does who wants the id. Without any
    /// dependence on the tables of the locks the same is had by a column for the highest fence seen, beside the data:
    /// `UPDATE account SET balance = 41, fence = $1 WHERE id = 7 AND fence <= $1`.
    pub fn fence_check(&self) -> String {
        self.engine().fence_check()
    }

    /// Settings to choose before connecting.
    pub fn builder() -> PostgresBuilder<I, C> {
        PostgresBuilder::new()
    }
}

/// A PostgreSQL server, as [`PostgresLockDao`] sees it.
pub struct Postgres {
    source: Source,
    listen: PgConnectOptions,
    options: Options,
    address: String,
    names: Names,
    routines: Routines,
    kept: Kept,
    /// The role has another isolation level, so that connections bring [`LEVEL`] along.
    brings_level: AtomicBool,
}

#[derive(Debug)]
struct Routines {
    acquire_one: Routine,
    acquire_many: Routine,
    acquire_kept: Routine,
    acquire: Routine,
    withdraw: Routine,
    release_one: Routine,
    release_many: Routine,
    release: Routine,
    acquire_together: Routine,
    release_together: Routine,
    renew: Routine,
    renew_kept: Routine,
    beat: Routine,
    leave: Routine,
    release_context: Routine,
    list: Routine,
    inspect: Routine,
    break_lock: Routine,
    freeze: Routine,
    sweep: Routine,
}

impl Routines {
    fn new(names: &Names) -> Self {
        let function = |name, parameters| Routine::new(names.quoted(name), parameters, false);
        let procedure = |name, parameters| Routine::new(names.quoted(name), parameters, true);
        Routines {
            acquire_one: function("v1_acquire_one", 8),
            acquire_many: procedure("v1_acquire_many", 8),
            acquire_kept: procedure("v1_acquire_kept", 10),
            acquire: function("v1_acquire", 11),
            withdraw: function("v1_withdraw", 9),
            release_one: procedure("v1_release_one", 5),
            release_many: procedure("v1_release_many", 7),
            release: procedure("v1_release", 5),
            acquire_together: function("v1_acquire_together", 8),
            release_together: procedure("v1_release_together", 5),
            renew: function("v1_renew", 6),
            renew_kept: procedure("v1_renew_kept", 8),
            beat: function("v1_beat", 6),
            leave: function("v1_leave", 2),
            release_context: function("v1_release_context", 2),
            list: function("v1_list", 3),
            inspect: function("v1_inspect", 2),
            break_lock: function("v1_break", 5),
            freeze: function("v1_freeze", 3),
            sweep: function("v1_sweep", 3),
        }
    }
}

impl Postgres {
    pub(super) fn new(source: Source, listen: PgConnectOptions, options: Options) -> Self {
        let names = Names::new(&options.schema, &options.settings.prefix);
        let routines = Routines::new(&names);
        let address = match &source {
            Source::Own(options) => address(options),
            Source::Pool(pool) => address(&pool.connect_options()),
        };
        let (kept, brings_level) = (Kept::new(), AtomicBool::new(false));
        Postgres { source, listen, options, address, names, routines, kept, brings_level }
    }

    /// A connection of our own, on which the routines can decide.
    async fn connect_own(&self, options: &PgConnectOptions) -> Result<Link, ServerError> {
        let mut wrong = None;
        if !self.brings_level.load(Ordering::Relaxed) {
            let mut link = Link::Own(Box::new(options.connect().await.map_err(unconnected)?));
            wrong = self.examine(&mut link).await?;
            if wrong.is_none() {
                return Ok(link);
            }
        }
        let conn = match (options.clone().options([LEVEL]).connect().await, wrong) {
            (Ok(conn), _) => conn,
            // A pooler that takes no such parameter.
            (Err(sqlx::Error::Database(_)), Some(wrong)) => return Err(wrong),
            (Err(error), _) => return Err(unconnected(error)),
        };
        let mut link = Link::Own(Box::new(conn));
        self.examine(&mut link).await?.map_or(Ok(()), Err)?;
        self.brings_level.store(true, Ordering::Relaxed);
        Ok(link)
    }

    /// Looks at a new connection. Fails if the schema is for newer programs by now; gives an error if the isolation level is
    /// not the one that the routines need.
    async fn examine(&self, link: &mut Link) -> Result<Option<ServerError>, ServerError> {
        let look = "SELECT current_setting('transaction_isolation'), current_user::text";
        let with_versions = format!(
            "{look}, (SELECT max(version) FROM {0}), (SELECT max(oldest_program) FROM {0})",
            self.names.quoted("schema")
        );
        let row = match sqlx::raw_sql(AssertSqlSafe(with_versions)).fetch_one(link.raw()).await {
            // There is no schema yet, or none that this role may see.
            Err(sqlx::Error::Database(_)) => sqlx::raw_sql(look).fetch_one(link.raw()).await,
            found => found,
        };
        let row = row.map_err(unconnected)?;
        let text = |column: usize| row.try_get::<String, _>(column).map_err(unconnected);
        let number = |column: usize| row.try_get::<Option<i64>, _>(column).ok().flatten();
        if let (Some(version), Some(oldest_program)) = (number(2), number(3)) {
            fit(self, Some(store_version("postgres", version, oldest_program)?))?;
        }
        let (level, role) = (text(0)?, text(1)?);
        let what = format!(
            "the isolation level of the role {role:?} is {level:?}, and locks need {:?}: ALTER ROLE .. SET \
             default_transaction_isolation TO 'read committed', or connect as another role",
            LEVEL.1
        );
        Ok((level != LEVEL.1).then_some(ServerError::Misconfigured { backend: "postgres", what }))
    }

    fn fence_check(&self) -> String {
        self.names.quoted("v1_holds")
    }

    fn commits(&self) -> i64 {
        if self.options.commit == Commit::Async { flag::ASYNC } else { 0 }
    }

    fn flags(&self, ask: &Ask) -> i64 {
        self.commits() | bit(ask.queue, flag::QUEUE) | bit(ask.nested, flag::NESTED)
    }

    fn flags_of_release(&self) -> i64 {
        self.commits() | bit(self.options.commit != Commit::Durable, flag::FREE_ASYNC)
    }

    async fn acquire(&self, link: &mut Link, ask: &Ask, session: i64) -> Result<String, ServerError> {
        if ask.modes.is_none() {
            let (kept, ids) = match &*ask.ids {
                [id] => (None, Argument::Bytes(id)),
                ids => (self.kept.take(ids), Argument::ManyBytes(ids)),
            };
            let routine = match kept {
                None if ask.ids.len() == 1 => &self.routines.acquire_one,
                None => &self.routines.acquire_many,
                Some(_) => &self.routines.acquire_kept,
            };
            let [made, made_by] = known_as(kept);
            let arguments = [
                self.namespace(),
                Argument::Bytes(ask.context.as_bytes()),
                Argument::Int(ask.attempt),
                ids,
                Argument::Int(ask.lease),
                Argument::Bytes(&ask.owner),
                Argument::Int(self.flags(ask)),
                Argument::Int(session),
                made,
                made_by,
            ];
            let answer = link.call(routine, &arguments[..routine.parameters], self.options.prepared).await?;
            return Ok(if ask.ids.len() == 1 { answer } else { self.kept.granted(ask, kept, answer) });
        }
        let [codes, permits, limits] = modes(ask);
        let arguments = [
            self.namespace(),
            Argument::Bytes(ask.context.as_bytes()),
            Argument::Int(ask.attempt),
            Argument::ManyBytes(&ask.ids),
            codes,
            permits,
            limits,
            Argument::Int(ask.lease),
            Argument::Bytes(&ask.owner),
            Argument::Int(self.flags(ask)),
            Argument::Int(session),
        ];
        link.call(&self.routines.acquire, &arguments, self.options.prepared).await
    }

    async fn withdraw(&self, link: &mut Link, ask: &Ask, how: Withdraw) -> Result<String, ServerError> {
        let flags = self.commits() | bit(how == Withdraw::KeepIfGranted, flag::KEEP);
        let [codes, permits, limits] = modes(ask);
        let arguments = [
            self.namespace(),
            Argument::Bytes(ask.context.as_bytes()),
            Argument::Int(ask.attempt),
            Argument::ManyBytes(&ask.ids),
            codes,
            permits,
            limits,
            Argument::Int(ask.lease),
            Argument::Int(flags),
        ];
        link.call(&self.routines.withdraw, &arguments, self.options.prepared).await
    }

    async fn release(&self, link: &mut Link, hold: &Hold) -> Result<String, ServerError> {
        let ((routine, ids, fences), kept) = match (&*hold.ids, hold.only_fence()) {
            ([id], Some(fence)) => {
                ((&self.routines.release_one, Argument::Bytes(id), Argument::Int(fence)), None)
            }
            (ids, Some(fence)) => {
                let many = (&self.routines.release_many, Argument::ManyBytes(ids), Argument::Int(fence));
                (many, self.kept.keep(ids, fence))
            }
            (ids, None) => {
                let fences = Argument::ManyInts(Some(&hold.fences));
                ((&self.routines.release, Argument::ManyBytes(ids), fences), None)
            }
        };
        let [made, made_by] = known_as(kept);
        let arguments = [
            self.namespace(),
            Argument::Bytes(hold.context.as_bytes()),
            ids,
            fences,
            Argument::Int(self.flags_of_release()),
            made,
            made_by,
        ];
        let answer = link.call(routine, &arguments[..routine.parameters], self.options.prepared).await;
        let answer = answer.map_err(behind_a_commit)?;
        if let Some(set) = kept.filter(|_| answer.is_empty()) {
            self.kept.freed(&hold.ids, set);
        }
        Ok(answer)
    }

    async fn acquire_together(
        &self,
        link: &mut Link,
        asks: &[&Ask],
        session: i64,
    ) -> Result<String, ServerError> {
        let (mut contexts, mut ids, mut owners) = (Vec::new(), Vec::new(), Vec::new());
        let (mut attempts, mut leases, mut flags) = (Vec::new(), Vec::new(), Vec::new());
        for ask in asks {
            contexts.push(ask.context.as_bytes());
            ids.push(ask.ids[0].as_slice());
            owners.push(ask.owner.as_slice());
            attempts.push(ask.attempt);
            leases.push(ask.lease);
            flags.push(self.flags(ask));
        }
        let arguments = [
            self.namespace(),
            Argument::EachBytes(&contexts),
            Argument::ManyInts(Some(&attempts)),
            Argument::EachBytes(&ids),
            Argument::ManyInts(Some(&leases)),
            Argument::EachBytes(&owners),
            Argument::ManyInts(Some(&flags)),
            Argument::Int(session),
        ];
        link.call(&self.routines.acquire_together, &arguments, self.options.prepared).await
    }

    async fn release_together(&self, link: &mut Link, holds: &[&Hold]) -> Result<String, ServerError> {
        let (mut contexts, mut ids, mut fences) = (Vec::new(), Vec::new(), Vec::new());
        for hold in holds {
            contexts.push(hold.context.as_bytes());
            ids.push(hold.ids[0].as_slice());
            fences.push(hold.fences[0]);
        }
        let arguments = [
            self.namespace(),
            Argument::EachBytes(&contexts),
            Argument::EachBytes(&ids),
            Argument::ManyInts(Some(&fences)),
            Argument::Int(self.flags_of_release()),
        ];
        let answer = link.call(&self.routines.release_together, &arguments, self.options.prepared).await;
        answer.map_err(behind_a_commit)
    }

    async fn renew(&self, link: &mut Link, hold: &Hold) -> Result<String, ServerError> {
        let fence = hold.only_fence();
        let kept = fence.and_then(|fence| self.kept.held(&hold.ids, fence));
        // As long as the fence is that by which its rows know it, they say themselves who has it.
        let kept = kept.filter(|set| Some(set.fence) != fence);
        let routine = if kept.is_some() { &self.routines.renew_kept } else { &self.routines.renew };
        let [made, made_by] = known_as(kept);
        let arguments = [
            self.namespace(),
            Argument::Bytes(hold.context.as_bytes()),
            Argument::ManyBytes(&hold.ids),
            Argument::ManyInts(Some(&hold.fences)),
            Argument::Int(hold.lease),
            Argument::Int(self.commits()),
            made,
            made_by,
        ];
        link.call(routine, &arguments[..routine.parameters], self.options.prepared).await
    }

    async fn beat(
        &self,
        link: &mut Link,
        session: i64,
        standing: &[(Place, Key)],
        probe: Option<u32>,
    ) -> Result<String, ServerError> {
        let (mut ids, mut contexts, mut attempts) = (Vec::new(), Vec::new(), Vec::new());
        for ((context, attempt), id) in standing {
            ids.push(id.as_slice());
            contexts.push(context.as_bytes());
            attempts.push(*attempt as i64);
        }
        let arguments = [
            self.namespace(),
            Argument::Int(session),
            Argument::Int(probe.map_or(-1, i64::from)),
            Argument::EachBytes(&ids),
            Argument::EachBytes(&contexts),
            Argument::ManyInts(Some(&attempts)),
        ];
        link.call(&self.routines.beat, &arguments, self.options.prepared).await
    }

    fn namespace(&self) -> Argument<'_> {
        Argument::Bytes(self.options.settings.namespace.as_bytes())
    }
}

/// What fails in a routine that commits by itself may have failed behind its commit: a timeout that somebody set, a full
/// queue of notifications.
fn behind_a_commit(error: ServerError) -> ServerError {
    match error.kind() {
        BackendErrorKind::Busy if is_lock_timeout(&error) => error,
        BackendErrorKind::Busy | BackendErrorKind::Other if !error.is_transient() => error.possibly_done(),
        _ => error,
    }
}

/// Somebody waited too long for a row: in a routine that lifts the limit when it has committed, before it has.
fn is_lock_timeout(error: &ServerError) -> bool {
    let ServerError::Database { source: sqlx::Error::Database(error), .. } = error else { return false };
    error.code().as_deref() == Some("55P03")
}

fn bit(set: bool, flag: i64) -> i64 {
    if set { flag } else { 0 }
}

/// How the rows of a set know it; zeros without one.
fn known_as<'r>(set: Option<Set>) -> [Argument<'r>; 2] {
    set.map_or([0, 0], |set| [set.fence, set.attempt]).map(Argument::Int)
}

fn modes(ask: &Ask) -> [Argument<'_>; 3] {
    let column = |column: fn(&Modes) -> &[i64]| Argument::ManyInts(ask.modes.as_ref().map(column));
    [column(|modes| &modes.codes), column(|modes| &modes.permits), column(|modes| &modes.limits)]
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Engine for Postgres {
    type Conn = Link;
    type Listener = PgListener;

    const NAME: &'static str = "postgres";
    /// A release commits asynchronously, a grant does not: together the one would wait for the other's disk.
    const RELEASES_APART: bool = true;

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn settings(&self) -> &Settings {
        &self.options.settings
    }

    async fn connect(&self) -> Result<Link, ServerError> {
        match &self.source {
            Source::Own(options) => self.connect_own(options).await,
            Source::Pool(pool) => Ok(Link::Lent(pool.acquire().await.map_err(unconnected)?)),
        }
    }

    fn keeps_connections(&self) -> bool {
        matches!(self.source, Source::Own(_))
    }

    async fn carry_out(&self, link: &mut Link, order: &Order<'_>) -> Result<String, ServerError> {
        let ns = self.namespace();
        let int = Argument::Int;
        let (routine, arguments): (_, &[Argument<'_>]) = match order {
            Order::Acquire { ask, session } => return self.acquire(link, ask, *session).await,
            Order::Withdraw { ask, how } => return self.withdraw(link, ask, *how).await,
            Order::Release(hold) => return self.release(link, hold).await,
            Order::Renew(hold) => return self.renew(link, hold).await,
            Order::Beat { session, standing, probe } => {
                return self.beat(link, *session, standing, *probe).await;
            }
            Order::Leave { session } => (&self.routines.leave, &[ns, int(*session)]),
            Order::ReleaseContext(context) => {
                (&self.routines.release_context, &[ns, Argument::Bytes(context.as_bytes())])
            }
            Order::List(page) => {
                // One more than nothing: behind no id at all is the global lock, whose id is empty.
                let after = page.after.as_deref().unwrap_or_default().as_bytes();
                let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).min(1000);
                let limit = if page.after.is_none() { -limit } else { limit };
                (&self.routines.list, &[ns, Argument::Bytes(after), int(limit)])
            }
            Order::Inspect(id) => (&self.routines.inspect, &[ns, Argument::Bytes(id)]),
            Order::Break { id, fence, how, by } => {
                let now = bit(*how == BreakMode::Now, 1);
                let by = Argument::Bytes(by.as_bytes());
                (&self.routines.break_lock, &[ns, Argument::Bytes(id), int(*fence), int(now), by])
            }
            Order::Freeze { id, frozen } => {
                (&self.routines.freeze, &[ns, Argument::Bytes(id), int(bit(*frozen, 1))])
            }
            Order::Sweep { batch, unless_within } => {
                let within = unless_within.map_or(-1, micros);
                let batch = i64::try_from(*batch).unwrap_or(i64::MAX);
                (&self.routines.sweep, &[ns, int(batch), int(within)])
            }
        };
        link.call(routine, arguments, self.options.prepared).await
    }

    async fn carry_out_together(&self, link: &mut Link, orders: &[&Single]) -> Result<Done, ServerError> {
        let (mut asks, mut holds, mut own_session) = (Vec::new(), Vec::new(), 0);
        for order in orders {
            match order {
                Single::Acquire { ask, session } => {
                    asks.push(ask);
                    own_session = *session;
                }
                Single::Release(hold) => holds.push(hold),
            }
        }
        // Of one kind, since releases go apart.
        let answers = match holds.is_empty() {
            true => self.acquire_together(link, &asks, own_session).await?,
            false => self.release_together(link, &holds).await?,
        };
        Done::read(Self::NAME, &answers, '\n', |answer| Outcome::Done(answer.to_owned()))
    }

    async fn migrate(&self, link: &mut Link) -> Result<(), ServerError> {
        let program = self.options.settings.program;
        schema::migrate(&self.names, program, |found| fit(self, found), link).await
    }

    async fn store_version(&self, link: &mut Link) -> Result<Option<StoreVersion>, ServerError> {
        schema::version(&self.names, link).await
    }

    async fn admit(&self, link: &mut Link) -> Result<(), ServerError> {
        self.examine(link).await?.map_or(Ok(()), Err)
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn place(&self) -> String {
        self.names.quoted("")
    }

    async fn doctor(&self, link: &mut Link) -> Result<Vec<Finding>, ServerError> {
        // Not of the application's pool, which may have only one.
        let options = match &self.source {
            Source::Own(options) => (**options).clone(),
            Source::Pool(pool) => (*pool.connect_options()).clone(),
        };
        let mut other = Link::Own(Box::new(options.connect().await.map_err(unconnected)?));
        doctor::examine(link, &mut other, self.options.prepared).await
    }

    async fn listen(&self, session: i64) -> Result<PgListener, ServerError> {
        listen::listen(self.listen.clone(), &format!("lockcore_{session}")).await
    }

    async fn hear(&self, listener: &mut PgListener) -> Result<String, ServerError> {
        listen::hear(listener).await
    }

    async fn probe(&self, listener: &mut PgListener) -> Result<(), ServerError> {
        listen::probe(listener).await
    }
}

/// Host and port, or the socket.
fn address(options: &PgConnectOptions) -> String {
    let port = options.get_port();
    match options.get_socket() {
        Some(socket) => format!("{} (port {port})", socket.display()),
        None => format!("{}:{port}", options.get_host()),
    }
}
