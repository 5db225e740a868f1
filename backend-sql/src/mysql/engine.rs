//! What the DAO needs of MySQL and MariaDB: connections, the calls of the routines, listening.

use std::{fmt, fmt::Write};

use lockcore::{
    BackendError, BreakMode, Capabilities, ContextId, Finding, Ident, Moment, StoreVersion, Withdraw,
};
use sqlx::{ConnectOptions, mysql::MySqlConnectOptions};
use uuid::Uuid;

use super::{
    config::{MysqlBuilder, Source, capabilities},
    dedicated, doctor,
    error::unconnected,
    fences::Fences,
    flavor::Flavor,
    link::{Argument, Link, Reply, Routine},
    listen::{self, Listener},
    schema::{self, FEW, Names},
};
use crate::server::{
    Answer, Engine, Key, Notification, Order, ServerError, ServerLockDao, Settings, StoredGrant,
    StoredRequest, fit, micros, reply, store_version,
};

/// How often sessions are rung that this user may not interrupt.
const RINGS: u32 = 5;

/// Locks in a MySQL or MariaDB database; see the [module](super) for what it does how.
pub type MysqlLockDao<I = String, C = Uuid> = ServerLockDao<I, C, Mysql>;

impl<I: Ident, C: ContextId> MysqlLockDao<I, C> {
    /// Connects to the server at `url` with the usual settings.
    ///
    /// # Errors
    /// As [`MysqlBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).connect().await
    }

    /// A condition with which the application's own statements check a fence. It has three `?`: the namespace, the id and
    /// the fence, bound as bytes, bytes and a number. It is true if the id is held exclusively under that fence and its
    /// lease lasts; and then nobody else gets it before the application's transaction ends. In the `WHERE` of a write it
    /// makes the late write of a former holder change nothing:
    ///
    /// ```no_run
    /// # async fn write(locks: lockcore::LockingService, dao: &lockcore_sql::MysqlLockDao, pool: sqlx::MySqlPool)
    /// # -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let write = format!("UPDATE account SET balance = 41 WHERE id = 7 AND {}", dao.fence_check());
    /// let guard = locks.lock(["account/7"]).await?;
    /// let fence = guard.held().exclusive_fence("account/7").expect("held exclusively").number() as i64;
    /// let write = sqlx::query(sqlx::AssertSqlSafe(write)).bind(&b"default"[..]).bind(&b"account/7"[..]).bind(fence);
    /// assert_eq!(write.execute(&pool).await?.rows_affected(), 1, "otherwise somebody else may hold it by now");
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Not a function, because a server with a binary log lets only privileged users make those; so whoever uses it needs
    /// `SELECT` on the tables of the namespaces, ids, sets and claims, and `UPDATE` or `LOCK TABLES` to lock what is read.
    /// The transaction should be short: a renewal waits for its end, as everybody does who wants the id. Without any
    /// dependence on the tables of the locks the same is had by a column for the highest fence seen, beside the data:
    /// `UPDATE account SET balance = 41, fence = ? WHERE id = 7 AND fence <= ?`.
    pub fn fence_check(&self) -> String {
        self.engine().names.fence_check()
    }

    /// Settings to choose before connecting.
    pub fn builder() -> MysqlBuilder<I, C> {
        MysqlBuilder::new()
    }
}

/// A MySQL or MariaDB server, as [`MysqlLockDao`] sees it.
pub struct Mysql {
    source: Source,
    options: MySqlConnectOptions,
    address: String,
    database: String,
    settings: Settings,
    names: Names,
    routines: Routines,
    fences: Fences,
}

#[derive(Debug)]
pub(super) struct Routines {
    pub(super) enter: Routine,
    pub(super) connection: Routine,
    pub(super) listen: Routine,
    pub(super) hear: Routine,
    pub(super) wake: Routine,
    acquire_one: Routine,
    acquire_few: Routine,
    acquire_many: Routine,
    acquire: Routine,
    withdraw: Routine,
    release_one: Routine,
    release_set: Routine,
    release: Routine,
    together: Routine,
    renew: Routine,
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
    pub(super) fn new(names: &Names) -> Self {
        let routine = |name, parameters| Routine::new(&names.quoted(name), parameters);
        Routines {
            enter: routine("v1_enter", 2),
            connection: routine("v1_connection", 1),
            listen: routine("v1_listen", 1),
            hear: routine("v1_hear", 7),
            wake: routine("v1_wake", 1),
            acquire_one: routine("v1_acquire_one", 9),
            acquire_few: routine("v1_acquire_few", 9 + FEW),
            acquire_many: routine("v1_acquire_many", 10),
            acquire: routine("v1_acquire", 11),
            withdraw: routine("v1_withdraw", 8),
            release_one: routine("v1_release_one", 4),
            release_set: routine("v1_release_set", 6),
            release: routine("v1_release", 5),
            together: routine("v1_together", 3),
            renew: routine("v1_renew", 8),
            beat: routine("v1_beat", 3),
            leave: routine("v1_leave", 2),
            release_context: routine("v1_release_context", 2),
            list: routine("v1_list", 3),
            inspect: routine("v1_inspect", 2),
            break_lock: routine("v1_break", 5),
            freeze: routine("v1_freeze", 3),
            sweep: routine("v1_sweep", 3),
        }
    }
}

impl Mysql {
    pub(super) fn new(
        source: Source,
        options: MySqlConnectOptions,
        database: String,
        settings: Settings,
    ) -> Self {
        let names = Names::new(&settings.prefix);
        let routines = Routines::new(&names);
        let address = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        Mysql { source, options, address, database, settings, names, routines, fences: Fences::default() }
    }

    /// A connection of our own.
    async fn connect_own(&self) -> Result<Link, ServerError> {
        let mut link = Link::own(self.options.connect().await.map_err(unconnected)?);
        // Whatever the server's defaults are. A wait for a row lock ends before the caller's patience does.
        let wait = self.settings.timeout.as_secs().clamp(1, 3600);
        let set = format!(
            "SET SESSION autocommit = 1, group_concat_max_len = 16777216, innodb_lock_wait_timeout = {wait}"
        );
        link.text(&set).await?;
        link.text("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        Ok(link)
    }

    /// The number of the namespace, asked for once on each connection, which also shows whether the schema is for newer
    /// programs by now. 0 if the namespace is not there and not to be created; nothing is stored under that.
    async fn enter(&self, link: &mut Link, create: bool) -> Result<i64, ServerError> {
        if let Some(namespace) = link.namespace {
            return Ok(namespace.into());
        }
        let name = Argument::Bytes(self.settings.namespace.as_bytes());
        let Reply { text, .. } = link.call(&self.routines.enter, &[name, truth(create)]).await?;
        let numbers: Option<Vec<i64>> = text.split(' ').map(|number| number.parse().ok()).collect();
        let Some([number, version, oldest_program]) = numbers.as_deref() else {
            return Err(ServerError::Answer { backend: "mysql", what: format!("{text:?}") });
        };
        fit(self, Some(store_version("mysql", *version, *oldest_program)?))?;
        link.namespace = u32::try_from(*number).ok().filter(|number| *number != 0);
        Ok(*number)
    }

    async fn call(
        &self,
        link: &mut Link,
        routine: &Routine,
        arguments: &[Argument<'_>],
    ) -> Result<String, ServerError> {
        if link.spoilt {
            return Err(unconnected(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())));
        }
        let Reply { text, mut unrung } = link.call(routine, arguments).await?;
        // The routines run with the rights of whoever made them, and may interrupt only that user's connections. One that
        // has other rights at the moment is about to wait with its own.
        for _ in 0..RINGS {
            if unrung.is_empty() {
                break;
            }
            match link.call(&self.routines.wake, &[Argument::Text(&unrung)]).await {
                Ok(Reply { unrung: left, .. }) => unrung = left,
                Err(error) => {
                    // Those who wait look by themselves. But this connection may be of no use for the next.
                    tracing::debug!(%error, "could not wake other sessions");
                    link.spoilt |= error.broke_connection();
                    break;
                }
            }
        }
        Ok(text)
    }

    async fn acquire(&self, link: &mut Link, request: &StoredRequest) -> Result<Answer, ServerError> {
        let int = Argument::Int;
        let namespace = int(self.enter(link, true).await?);
        let (context, owner) = (Argument::Bytes(request.context.as_bytes()), Argument::Bytes(&request.owner));
        let (attempt, lease, session) = (int(request.attempt), int(request.lease), int(request.session));
        let flags = int(i64::from(request.queue) | i64::from(request.nested) << 1);
        let ids = &*request.ids;
        if request.modes.is_some() {
            let (id, set, plain) = (only(ids), &wanted(request), truth(false));
            let set = Argument::Text(set);
            let arguments =
                [namespace, context, attempt, id, set, count(ids), plain, lease, owner, flags, session];
            let text = self.call(link, &self.routines.acquire, &arguments).await?;
            return Answer::of_acquire(Self::NAME, &text, ids.len());
        }
        let sent = Moment::now();
        let proposed = self.fences.propose(sent);
        let fence = int(proposed);
        let text;
        let answer = if let [id] = ids {
            let id = Argument::Bytes(id);
            let arguments = [namespace, context, attempt, id, lease, owner, flags, session, fence];
            self.call(link, &self.routines.acquire_one, &arguments).await?
        } else {
            let mut arguments =
                vec![namespace, context, attempt, count(ids), lease, owner, flags, session, fence];
            let routine = if ids.len() <= FEW {
                let argument = |position| Argument::MaybeBytes(ids.get(position).map(Vec::as_slice));
                arguments.extend((0..FEW).map(argument));
                &self.routines.acquire_few
            } else {
                text = literals(ids);
                arguments.push(Argument::Bytes(text.as_bytes()));
                &self.routines.acquire_many
            };
            self.call(link, routine, &arguments).await?
        };
        let answer = self.fences.granted(proposed, sent, answer);
        Answer::of_acquire(Self::NAME, &answer, ids.len())
    }

    async fn withdraw(
        &self,
        link: &mut Link,
        request: &StoredRequest,
        how: Withdraw,
    ) -> Result<String, ServerError> {
        let set = wanted(request);
        let arguments = [
            Argument::Int(self.enter(link, true).await?),
            Argument::Bytes(request.context.as_bytes()),
            Argument::Int(request.attempt),
            Argument::Text(&set),
            count(&request.ids),
            Argument::Int(request.lease),
            Argument::Bytes(&request.owner),
            truth(how == Withdraw::Undo),
        ];
        self.call(link, &self.routines.withdraw, &arguments).await
    }

    async fn release(&self, link: &mut Link, grant: &StoredGrant) -> Result<String, ServerError> {
        let namespace = Argument::Int(self.enter(link, true).await?);
        let context = Argument::Bytes(grant.context.as_bytes());
        match (&*grant.ids, grant.only_fence()) {
            ([id], Some(fence)) => {
                let arguments = [namespace, context, Argument::Bytes(id), Argument::Int(fence)];
                self.call(link, &self.routines.release_one, &arguments).await
            }
            (ids, Some(fence)) => {
                let text = literals(ids);
                let text = Argument::Bytes(text.as_bytes());
                let not_kept = Argument::MaybeInt(None);
                let arguments = [namespace, context, Argument::Int(fence), count(ids), text, not_kept];
                self.call(link, &self.routines.release_set, &arguments).await
            }
            (ids, None) => {
                let set = held(grant);
                let arguments =
                    [namespace, context, Argument::Text(&set), count(ids), Argument::MaybeInt(None)];
                self.call(link, &self.routines.release, &arguments).await
            }
        }
    }

    async fn renew(&self, link: &mut Link, grant: &StoredGrant) -> Result<String, ServerError> {
        let (set, fence) = (held(grant), grant.only_fence());
        let arguments = [
            Argument::Int(self.enter(link, true).await?),
            Argument::Bytes(grant.context.as_bytes()),
            only(&grant.ids),
            Argument::MaybeInt(fence),
            Argument::Text(&set),
            count(&grant.ids),
            Argument::Int(grant.lease),
            Argument::MaybeInt(fence),
        ];
        self.call(link, &self.routines.renew, &arguments).await
    }

    /// Carries out a batch; `words` are the requests.
    async fn batch(
        &self,
        link: &mut Link,
        words: &str,
        session: i64,
        answer: impl Fn(&str) -> Result<Answer, ServerError>,
    ) -> Result<Vec<Option<Answer>>, ServerError> {
        let namespace = Argument::Int(self.enter(link, true).await?);
        let arguments = [namespace, Argument::Bytes(words.as_bytes()), Argument::Int(session)];
        let answers = self.call(link, &self.routines.together, &arguments).await?;
        let mut answers: Vec<&str> = answers.split('|').collect();
        // How long it took.
        answers.pop();
        let answers = answers.into_iter().map(|text| match text {
            "A" | "B" => Ok(None),
            text => answer(text).map(Some),
        });
        answers.collect()
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (database, settings) = (&self.database, &self.settings);
        f.debug_struct("Mysql")
            .field("database", database)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

impl Engine for Mysql {
    type Conn = Link;
    type Listener = Listener;

    const NAME: &'static str = "mysql";

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn connect(&self) -> Result<Link, ServerError> {
        match &self.source {
            Source::Own(_) => self.connect_own().await,
            Source::Pool(pool) => Ok(Link::lent(pool.acquire().await.map_err(unconnected)?)),
        }
    }

    fn keeps_connections(&self) -> bool {
        matches!(self.source, Source::Own(_))
    }

    async fn carry_out(&self, link: &mut Link, order: &Order<'_>) -> Result<Answer, ServerError> {
        let int = Argument::Int;
        let (routine, arguments): (_, &[Argument<'_>]) = match order {
            Order::Acquire(request) => return self.acquire(link, request).await,
            Order::Withdraw { request, how } => {
                let text = self.withdraw(link, request, *how).await?;
                return Answer::read(Self::NAME, order, &text);
            }
            Order::Release(grant) => {
                let text = self.release(link, grant).await?;
                return Answer::read(Self::NAME, order, &text);
            }
            Order::Renew(grant) => {
                let text = self.renew(link, grant).await?;
                return Answer::read(Self::NAME, order, &text);
            }
            Order::Heartbeat { session, probe, in_rows: _ } => {
                (&self.routines.beat, &[int(*session), int(probe.map_or(0, i64::from))])
            }
            Order::Leave { session } => (&self.routines.leave, &[int(*session)]),
            Order::ReleaseContext(context) => {
                (&self.routines.release_context, &[Argument::Bytes(context.as_bytes())])
            }
            Order::List(page) => {
                let after = page.after.as_deref().map(str::as_bytes);
                let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).min(1000);
                (&self.routines.list, &[Argument::MaybeBytes(after), int(limit)])
            }
            Order::Inspect(id) => (&self.routines.inspect, &[Argument::Bytes(id)]),
            Order::Break { id, fence, how, by } => {
                let by = Argument::Bytes(by.as_bytes());
                let now = truth(*how == BreakMode::Now);
                (&self.routines.break_lock, &[Argument::Bytes(id), int(*fence), now, by])
            }
            Order::Freeze { id, frozen } => (&self.routines.freeze, &[Argument::Bytes(id), truth(*frozen)]),
            Order::Sweep { batch, unless_within } => {
                let batch = i64::try_from(*batch).unwrap_or(i64::MAX).clamp(1, 10_000);
                (&self.routines.sweep, &[int(batch), int(unless_within.map_or(-1, micros))])
            }
        };
        // To look at a namespace does not create it.
        let create = !matches!(
            order,
            Order::List(_)
                | Order::Inspect(_)
                | Order::Break { .. }
                | Order::ReleaseContext(_)
                | Order::Sweep { .. }
        );
        let mut all = vec![int(self.enter(link, create).await?)];
        all.extend_from_slice(arguments);
        let text = self.call(link, routine, &all).await?;
        Answer::read(Self::NAME, order, &text)
    }

    async fn acquire_batch(
        &self,
        link: &mut Link,
        requests: &[StoredRequest],
    ) -> Result<Vec<Option<Answer>>, ServerError> {
        let mut words = String::with_capacity(requests.len() * 200);
        for request in requests {
            words.push_str(if request.queue && !request.nested { "2 " } else { "1 " });
            push_words(&mut words, [&request.ids[0], request.context.as_bytes(), &request.owner]);
            let _ = write!(words, "{} {} ", request.attempt, request.lease);
        }
        let answer = |text: &str| Answer::of_acquire(Self::NAME, text, 1);
        self.batch(link, &words, requests[0].session, answer).await
    }

    async fn release_batch(
        &self,
        link: &mut Link,
        grants: &[StoredGrant],
    ) -> Result<Vec<Option<Answer>>, ServerError> {
        let mut words = String::with_capacity(grants.len() * 200);
        for grant in grants {
            words.push_str("0 ");
            push_words(&mut words, [&grant.ids[0], grant.context.as_bytes()]);
            let _ = write!(words, "{} ", grant.fences[0]);
        }
        self.batch(link, &words, 0, |text| Answer::of_release(Self::NAME, text)).await
    }

    async fn migrate(&self, link: &mut Link) -> Result<(), ServerError> {
        let (flavor, program) = (self.flavor(link).await?, self.settings.program);
        schema::migrate(&self.names, flavor, program, |found| fit(self, found), link).await
    }

    async fn store_version(&self, link: &mut Link) -> Result<Option<StoreVersion>, ServerError> {
        self.flavor(link).await?;
        schema::version(&self.names, link).await
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn location(&self) -> String {
        format!("database {:?} under the prefix {:?}", self.database, self.settings.prefix)
    }

    async fn doctor(&self, link: &mut Link) -> Result<Vec<Finding>, ServerError> {
        let flavor = self.flavor(link).await?;
        doctor::examine(flavor, link).await
    }

    async fn listen(&self, session: i64) -> Result<Listener, ServerError> {
        let mut link = self.connect_own().await?;
        let namespace = self.enter(&mut link, true).await?;
        let mut other = self.connect_own().await?;
        // Before anything is done there that could stay with another client.
        dedicated::ensure(&self.routines.connection, [&mut link, &mut other], None).await?;
        listen::listen(Routines::new(&self.names), link, other, namespace, session).await
    }

    async fn receive(&self, listener: &mut Listener) -> Result<Notification, ServerError> {
        reply::notification(Self::NAME, &listener.hear().await?)
    }

    async fn probe(&self, listener: &mut Listener) -> Result<(), ServerError> {
        listener.probe().await
    }
}

impl Mysql {
    async fn flavor(&self, link: &mut Link) -> Result<Flavor, ServerError> {
        let version = link.text("SELECT VERSION()").await?.unwrap_or_default();
        Flavor::of_version(&version).ok_or_else(|| {
            let what = format!("the server's version is {version}, MySQL 8.0 or MariaDB 10.6 is needed");
            ServerError::Misconfigured { backend: "mysql", what }
        })
    }
}

/// The id, if it is the only one.
fn only(ids: &[Key]) -> Argument<'_> {
    match ids {
        [id] => Argument::MaybeBytes(Some(id)),
        _ => Argument::MaybeBytes(None),
    }
}

fn count(ids: &[Key]) -> Argument<'static> {
    Argument::Int(i64::try_from(ids.len()).unwrap_or(i64::MAX))
}

fn truth(true_or_not: bool) -> Argument<'static> {
    Argument::Int(true_or_not.into())
}

/// `[["id in hexadecimal", mode, permits, limit], ..]`
fn wanted(request: &StoredRequest) -> String {
    set(&request.ids, |text, position| {
        let (mode, permits, limit) = request.modes.as_ref().map_or((2, 0, 0), |modes| {
            (modes.codes[position], modes.permits[position], modes.limits[position])
        });
        let _ = write!(text, "{mode},{permits},{limit}");
    })
}

/// `[["id in hexadecimal", fence], ..]`
fn held(grant: &StoredGrant) -> String {
    set(&grant.ids, |text, position| {
        let _ = write!(text, "{}", grant.fences[position]);
    })
}

fn set(ids: &[Key], rest: impl Fn(&mut String, usize)) -> String {
    let mut text = String::with_capacity(ids.iter().map(|id| id.len() * 2 + 24).sum());
    for (position, id) in ids.iter().enumerate() {
        text.push_str(if position == 0 { "[[\"" } else { ",[\"" });
        push_hex(&mut text, id);
        text.push_str("\",");
        rest(&mut text, position);
        text.push(']');
    }
    text.push(']');
    text
}

/// `id in hexadecimal',x'id in hexadecimal ..`: a list of literals, but for its ends.
fn literals(ids: &[Key]) -> String {
    let mut text = String::with_capacity(ids.iter().map(|id| id.len() * 2 + 4).sum());
    for (position, id) in ids.iter().enumerate() {
        if position > 0 {
            text.push_str("',x'");
        }
        push_hex(&mut text, id);
    }
    text
}

/// Each in hexadecimal, with a blank behind it.
fn push_words<const N: usize>(text: &mut String, words: [&[u8]; N]) {
    for word in words {
        push_hex(text, word);
        text.push(' ');
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for half in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789ABCDEF"[usize::from(half)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_sent_in_hexadecimal() {
        let grant = StoredGrant {
            context: "c".into(),
            ids: vec![Vec::new(), vec![0, 0x5a, 0xff]],
            fences: vec![7, -1],
            lease: 1,
        };
        assert_eq!(held(&grant), r#"[["",7],["005AFF",-1]]"#);
        assert_eq!(literals(&grant.ids), "',x'005AFF");
    }
}
