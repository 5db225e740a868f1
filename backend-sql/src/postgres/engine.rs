//! The parts of the DAO of Postgres: connections, the calls of the routines, listening.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use lockcore::{
    BackendErrorKind, BreakMode, Capabilities, Finding,
    backend::{StoreVersion, Withdraw},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, PgConnection, Row,
    postgres::{PgConnectOptions, PgListener},
};

use super::{
    config::{Commit, Options, Source, capabilities},
    doctor,
    error::unconnected,
    form,
    link::{Argument, Call, Link},
    listen,
    schema::{self, Names},
};
use crate::server::{
    Answer, Engine, Form, Key, Modes, Notification, Order, Outcome, Place, Server, ServerError, Settings,
    StoredGrant, StoredRequest, UNUSED, fit, in_server, micros, patience, reply, store_version,
};

/// Bits of the parameter `p_flags`, as in `pieces.sql`; of a release as in `release.sql`.
mod flag {
    pub(super) const QUEUE: i64 = 1;
    /// For a release: a lock that no waiter takes over need not be on the disk before the answer.
    pub(super) const FREE_ASYNC: i64 = 1;
    pub(super) const NESTED: i64 = 2;
    /// For a renewal: a longer lease is cut short.
    pub(super) const EXACTLY: i64 = 2;
    pub(super) const KEEP: i64 = 4;
    /// Nothing has to be on the disk before the answer.
    pub(super) const ASYNC: i64 = 8;
}

/// The level under which the routines decide.
pub(super) const LEVEL: &str = "read committed";

/// Returns the settings that our connections start with, whatever the defaults of the server, the database and the role
/// are; in milliseconds where it is a time. Parameters of the start, because a pooler that shares connections refuses
/// or ignores those, while it would hand on to its next client what is `SET`.
fn settings(timeout: Duration, listens: bool, level: &str) -> [(&'static str, String); 6] {
    [
        ("default_transaction_isolation", level.to_owned()),
        // The server gives a wait for a lock up before this process does, or the statement would go on waiting without a client.
        // Not by a limit for the statement: a commit that waits for a replica would end as if the replica had it.
        ("lock_timeout", in_server(timeout).as_millis().to_string()),
        ("statement_timeout", "0".to_owned()),
        ("exit_on_error", "off".to_owned()),
        ("idle_in_transaction_session_timeout", "0".to_owned()),
        ("idle_session_timeout", if listens { 0 } else { UNUSED.as_millis() }.to_string()),
    ]
}

/// A PostgreSQL server, as [`PostgresLockDao`](super::PostgresLockDao) sees it.
pub(crate) struct Postgres {
    source: Source,
    listen: PgConnectOptions,
    pub(super) options: Options,
    address: String,
    pub(super) names: Names,
    /// A pooler takes no parameters at the start, so that connections have the defaults of the role.
    is_plain: AtomicBool,
}

impl Postgres {
    pub(super) fn new(source: Source, listen: PgConnectOptions, options: Options) -> Self {
        let names = Names::new(&options.schema, &options.settings.prefix);
        let address = address(&source.options());
        Postgres { source, listen, options, address, names, is_plain: AtomicBool::new(false) }
    }

    /// A connection of our own, on which the routines can decide.
    async fn connect_own(&self) -> Result<Link, ServerError> {
        let mut link = self.connect_plain(LEVEL).await?;
        self.examine(&mut link).await?;
        Ok(link)
    }

    /// Connects with our [`settings`], or without them where a pooler takes none.
    async fn start(&self, options: &PgConnectOptions, level: &str) -> Result<Link, ServerError> {
        if !self.is_plain.load(Ordering::Relaxed) {
            let settings = settings(self.options.settings.timeout, false, level);
            match connect(&options.clone().options(settings)).await {
                Err(error) if may_be_settings(&error) => {}
                conn => return Ok(Link::own(conn.map_err(unconnected)?)),
            }
        }
        let mut link = Link::own(connect(options).await.map_err(unconnected)?);
        self.is_plain.store(true, Ordering::Relaxed);
        // It is shared with other clients, so that nothing is set in it: each call says how long it may wait for locks.
        link.limit = Some(in_server(self.options.settings.timeout));
        Ok(link)
    }

    /// Makes a connection of our own for statements, which need no isolation level and no schema.
    pub(super) async fn connect_plain(&self, level: &str) -> Result<Link, ServerError> {
        self.start(&self.source.options(), level).await
    }

    /// Listens on a channel.
    pub(super) async fn listen_to(&self, channel: &str) -> Result<PgListener, ServerError> {
        let mut options = self.listen.clone();
        if !self.is_plain.load(Ordering::Relaxed) {
            options = options.options(settings(self.options.settings.timeout, true, LEVEL));
        }
        listen::listen(options, channel).await
    }

    /// Looks at a new connection. Fails if the schema is for newer programs by now, or the isolation level is not the one that
    /// the routines need.
    async fn examine(&self, link: &mut Link) -> Result<(), ServerError> {
        let timeout = self.options.settings.timeout;
        let look = format!(
            "SET LOCAL lock_timeout = {}; SELECT pg_catalog.current_setting('transaction_isolation'), current_user::text",
            in_server(timeout).as_millis()
        );
        let with_versions = format!(
            "{look}, (SELECT pg_catalog.max(version) FROM {0}), (SELECT pg_catalog.max(oldest_program) FROM {0})",
            self.names.quoted("schema")
        );
        let row = match sqlx::raw_sql(AssertSqlSafe(with_versions)).fetch_one(link.raw()).await {
            // There is no schema yet, or none that this role may see.
            Err(sqlx::Error::Database(error))
                if matches!(error.code().as_deref(), Some("3F000" | "42P01" | "42501")) =>
            {
                sqlx::raw_sql(AssertSqlSafe(look)).fetch_one(link.raw()).await
            }
            found => found,
        };
        let row = row.map_err(unconnected)?;
        let text = |column: usize| row.try_get::<String, _>(column).map_err(unconnected);
        let number = |column: usize| row.try_get::<Option<i64>, _>(column).ok().flatten();
        if let (Some(version), Some(oldest_program)) = (number(2), number(3)) {
            fit(self, Some(store_version("postgres", version, oldest_program)?))?;
        }
        let (level, role) = (text(0)?, text(1)?);
        if level == LEVEL {
            return Ok(());
        }
        let what = format!(
            "the isolation level of the role {role:?} is {level:?}, and locks need {LEVEL:?}: ALTER ROLE .. SET \
             default_transaction_isolation TO 'read committed', or connect as another role"
        );
        Err(ServerError::Misconfigured { backend: "postgres", what })
    }

    pub(super) fn fence_check(&self) -> String {
        self.names.quoted("v1_holds")
    }

    fn commits(&self) -> i64 {
        if self.options.commit == Commit::Async { flag::ASYNC } else { 0 }
    }

    fn flags(&self, request: &StoredRequest) -> i64 {
        self.commits() | bit(request.queue, flag::QUEUE) | bit(request.nested, flag::NESTED)
    }

    fn flags_of_release(&self) -> i64 {
        self.commits() | bit(self.options.commit != Commit::Durable, flag::FREE_ASYNC)
    }

    /// Calls a function.
    async fn call(
        &self,
        link: &mut Link,
        routine: &str,
        arguments: &[Argument<'_>],
    ) -> Result<String, ServerError> {
        let call = Call { routine: self.names.quoted(routine), is_procedure: false, arguments };
        link.call(&call, self.options.prepared).await
    }

    /// Calls a procedure that commits by itself.
    async fn call_procedure(
        &self,
        link: &mut Link,
        routine: &str,
        arguments: &[Argument<'_>],
    ) -> Result<String, ServerError> {
        let call = Call { routine: self.names.quoted(routine), is_procedure: true, arguments };
        link.call(&call, self.options.prepared).await.map_err(after_commit)
    }

    async fn acquire(&self, link: &mut Link, request: &StoredRequest) -> Result<String, ServerError> {
        let (ns, context) = (self.namespace(), Argument::Bytes(request.context.as_bytes()));
        let (attempt, lease) = (Argument::Int(request.attempt), Argument::Int(request.lease));
        let (owner, flags) = (Argument::Bytes(&request.owner), Argument::Int(self.flags(request)));
        let session = Argument::Int(request.session);
        if let ([id], None) = (&*request.ids, &request.modes) {
            let arguments = [ns, context, attempt, Argument::Bytes(id), lease, owner, flags, session];
            return self.call(link, "v1_acquire_one", &arguments).await;
        }
        let [codes, permits, limits] = modes(request);
        let ids = Argument::ManyBytes(&request.ids);
        let arguments = [ns, context, attempt, ids, codes, permits, limits, lease, owner, flags, session];
        self.call(link, "v1_acquire", &arguments).await
    }

    async fn withdraw(
        &self,
        link: &mut Link,
        request: &StoredRequest,
        how: Withdraw,
    ) -> Result<String, ServerError> {
        let flags = self.commits() | bit(how == Withdraw::KeepIfGranted, flag::KEEP);
        let [codes, permits, limits] = modes(request);
        let arguments = [
            self.namespace(),
            Argument::Bytes(request.context.as_bytes()),
            Argument::Int(request.attempt),
            Argument::ManyBytes(&request.ids),
            codes,
            permits,
            limits,
            Argument::Int(request.lease),
            Argument::Int(flags),
        ];
        self.call(link, "v1_withdraw", &arguments).await
    }

    async fn release(&self, link: &mut Link, grant: &StoredGrant) -> Result<String, ServerError> {
        let (routine, ids, fences) = match (&*grant.ids, &*grant.fences) {
            ([id], [fence]) => ("v1_release_one", Argument::Bytes(id), Argument::Int(*fence)),
            (ids, fences) => ("v1_release", Argument::ManyBytes(ids), Argument::ManyInts(Some(fences))),
        };
        let context = Argument::Bytes(grant.context.as_bytes());
        let arguments = [self.namespace(), context, ids, fences, Argument::Int(self.flags_of_release())];
        self.call_procedure(link, routine, &arguments).await
    }

    async fn renew(&self, link: &mut Link, grant: &StoredGrant, how: i64) -> Result<String, ServerError> {
        let arguments = [
            self.namespace(),
            Argument::Bytes(grant.context.as_bytes()),
            Argument::ManyBytes(&grant.ids),
            Argument::ManyInts(Some(&grant.fences)),
            Argument::Int(grant.lease),
            Argument::Int(self.commits() | how),
        ];
        self.call(link, "v1_renew", &arguments).await
    }

    async fn heartbeat(
        &self,
        link: &mut Link,
        session: i64,
        in_rows: &[(Place, Key)],
        probe: Option<u32>,
    ) -> Result<String, ServerError> {
        let (mut ids, mut contexts, mut attempts) = (Vec::new(), Vec::new(), Vec::new());
        for ((context, attempt), id) in in_rows {
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
        self.call(link, "v1_heartbeat", &arguments).await
    }

    fn namespace(&self) -> Argument<'_> {
        Argument::Bytes(self.options.settings.namespace.as_bytes())
    }
}

/// Marks a failure of a routine that commits by itself as in doubt: it may have come after the commit, as a statement timeout
/// or a full queue of notifications.
fn after_commit(error: ServerError) -> ServerError {
    match error.kind() {
        BackendErrorKind::Busy if is_lock_timeout(&error) => error,
        BackendErrorKind::Busy | BackendErrorKind::Other if !error.is_transient() => error.possibly_done(),
        _ => error,
    }
}

/// Reports whether it waited too long for a row: before the commit, because the routines lift the limit after that.
fn is_lock_timeout(error: &ServerError) -> bool {
    let ServerError::Database { source: sqlx::Error::Database(error), .. } = error else { return false };
    error.code().as_deref() == Some("55P03")
}

fn bit(set: bool, flag: i64) -> i64 {
    if set { flag } else { 0 }
}

fn modes(request: &StoredRequest) -> [Argument<'_>; 3] {
    let column = |column: fn(&Modes) -> &[i64]| Argument::ManyInts(request.modes.as_ref().map(column));
    [column(|modes| &modes.codes), column(|modes| &modes.permits), column(|modes| &modes.limits)]
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Server for Postgres {
    type Conn = Link;

    const NAME: &'static str = "postgres";

    fn settings(&self) -> &Settings {
        &self.options.settings
    }

    async fn connect(&self, own: bool) -> Result<Link, ServerError> {
        match &self.source {
            Source::Pool(pool) if !own => {
                let mut link = Link::lent(pool.acquire().await.map_err(unconnected)?);
                link.limit = Some(in_server(self.options.settings.timeout));
                Ok(link)
            }
            _ => self.connect_own().await,
        }
    }

    fn keeps(&self, link: &Link) -> bool {
        link.is_own()
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn location(&self) -> String {
        self.names.quoted("")
    }
}

impl Engine for Postgres {
    type Listener = PgListener;

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn register(&self, link: &mut Link) -> Result<(), ServerError> {
        let settings = &self.options.settings;
        form::enter(&self.names, Form::Routines, settings, link).await
    }

    async fn carry_out(&self, link: &mut Link, order: &Order<'_>) -> Result<Answer, ServerError> {
        let ns = self.namespace();
        let int = Argument::Int;
        let text = match order {
            Order::Acquire(request) => self.acquire(link, request).await,
            Order::Withdraw { request, how } => self.withdraw(link, request, *how).await,
            Order::Release(grant) => self.release(link, grant).await,
            Order::Renew(grant) => self.renew(link, grant, 0).await,
            Order::Shorten(grant) => self.renew(link, grant, flag::EXACTLY).await,
            Order::Heartbeat { session, in_rows, probe } => {
                self.heartbeat(link, *session, in_rows, *probe).await
            }
            Order::Leave { session } => self.call(link, "v1_leave", &[ns, int(*session)]).await,
            Order::ReleaseContext(context) => {
                let arguments = [ns, Argument::Bytes(context.as_bytes())];
                self.call(link, "v1_release_context", &arguments).await
            }
            Order::List(page) => {
                // Negative from the beginning: before all other ids is that of the global lock, which is empty.
                let after = page.after.as_deref().unwrap_or_default().as_bytes();
                let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).min(1000);
                let limit = if page.after.is_none() { -limit } else { limit };
                self.call(link, "v1_list", &[ns, Argument::Bytes(after), int(limit)]).await
            }
            Order::Inspect(id) => self.call(link, "v1_inspect", &[ns, Argument::Bytes(id)]).await,
            Order::Break { id, fence, how, by } => {
                let now = bit(*how == BreakMode::Now, 1);
                let by = Argument::Bytes(by.as_bytes());
                let arguments = [ns, Argument::Bytes(id), int(*fence), int(now), by];
                self.call(link, "v1_break_lock", &arguments).await
            }
            Order::Freeze { id, frozen } => {
                let arguments = [ns, Argument::Bytes(id), int(bit(*frozen, 1))];
                self.call(link, "v1_freeze", &arguments).await
            }
            Order::Sweep { batch, unless_within } => {
                let batch = i64::try_from(*batch).unwrap_or(i64::MAX);
                let arguments = [ns, int(batch), int(unless_within.map_or(-1, micros))];
                self.call(link, "v1_sweep", &arguments).await
            }
        };
        Answer::read(Self::NAME, order, &text?)
    }

    async fn acquire_batch(
        &self,
        link: &mut Link,
        requests: &[StoredRequest],
    ) -> Result<Vec<Outcome>, ServerError> {
        let (mut contexts, mut ids, mut owners) = (Vec::new(), Vec::new(), Vec::new());
        let (mut attempts, mut leases, mut flags) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            contexts.push(request.context.as_bytes());
            ids.push(request.ids[0].as_slice());
            owners.push(request.owner.as_slice());
            attempts.push(request.attempt);
            leases.push(request.lease);
            flags.push(self.flags(request));
        }
        let arguments = [
            self.namespace(),
            Argument::EachBytes(&contexts),
            Argument::ManyInts(Some(&attempts)),
            Argument::EachBytes(&ids),
            Argument::ManyInts(Some(&leases)),
            Argument::EachBytes(&owners),
            Argument::ManyInts(Some(&flags)),
            Argument::Int(requests[0].session),
        ];
        let lines = self.call(link, "v1_acquire_batch", &arguments).await?;
        lines.split('\n').map(|line| Answer::of_acquire(Self::NAME, line, 1).map(Outcome::Done)).collect()
    }

    async fn release_batch(
        &self,
        link: &mut Link,
        grants: &[StoredGrant],
    ) -> Result<Vec<Outcome>, ServerError> {
        let (mut contexts, mut ids, mut fences) = (Vec::new(), Vec::new(), Vec::new());
        for grant in grants {
            contexts.push(grant.context.as_bytes());
            ids.push(grant.ids[0].as_slice());
            fences.push(grant.fences[0]);
        }
        let arguments = [
            self.namespace(),
            Argument::EachBytes(&contexts),
            Argument::EachBytes(&ids),
            Argument::ManyInts(Some(&fences)),
            Argument::Int(self.flags_of_release()),
        ];
        let lines = self.call_procedure(link, "v1_release_batch", &arguments).await?;
        lines.split('\n').map(|line| Answer::of_release(Self::NAME, line).map(Outcome::Done)).collect()
    }

    async fn migrate(&self, link: &mut Link) -> Result<(), ServerError> {
        let program = self.options.settings.program;
        let within = patience(self.options.settings.timeout);
        schema::migrate(&self.names, program, |found| fit(self, found), within, link).await
    }

    async fn store_version(&self, link: &mut Link) -> Result<Option<StoreVersion>, ServerError> {
        schema::version(&self.names, link).await
    }

    async fn missing(&self, link: &mut Link) -> Result<Vec<String>, ServerError> {
        schema::missing(&self.names, link).await
    }

    async fn admit(&self, link: &mut Link) -> Result<(), ServerError> {
        self.examine(link).await
    }

    async fn doctor(&self, link: &mut Link) -> Result<Vec<Finding>, ServerError> {
        // Not of the application's pool, which may have only one.
        let mut other = self.connect_plain(LEVEL).await?;
        doctor::examine(link, &mut other, self.options.prepared).await
    }

    async fn listen(&self, session: i64) -> Result<PgListener, ServerError> {
        self.listen_to(&format!("lockcore_{session}")).await
    }

    async fn receive(&self, listener: &mut PgListener) -> Result<Notification, ServerError> {
        reply::notification(Self::NAME, &listen::receive(listener).await?)
    }

    async fn probe(&self, listener: &mut PgListener) -> Result<(), ServerError> {
        listen::probe(listener).await
    }
}

/// Connects. Where TLS is only preferred and impossible with the server's certificate, goes without it, as libpq does.
async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    match options.connect().await {
        Err(error) => match listen::without_tls(options, &error) {
            // If the server wants TLS, its certificate is what has to be changed.
            Some(plain) => plain.connect().await.map_err(|_| error),
            None => Err(error),
        },
        connected => connected,
    }
}

/// Reports whether a server, or a pooler, may have refused a connection because of its parameters: poolers have no code for that.
/// Not if it said that the password is wrong, or that it takes no connection now.
fn may_be_settings(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    !matches!(error.code().as_deref().and_then(|code| code.get(..2)), Some("28" | "3D" | "53" | "57"))
}

/// Host and port, or the socket.
fn address(options: &PgConnectOptions) -> String {
    let port = options.get_port();
    match options.get_socket() {
        Some(socket) => format!("{} (port {port})", socket.display()),
        None => format!("{}:{port}", options.get_host()),
    }
}
