//! The engine of MySQL and MariaDB: connections, and the calls of the routines.

use std::{fmt, fmt::Write, time::Duration};

use lockcore::{
    BreakMode, Capabilities, Finding,
    backend::{StoreVersion, Withdraw},
};
use sqlx::{
    ConnectOptions, MySqlConnection, MySqlPool,
    mysql::{MySqlConnectOptions, MySqlSslMode},
};

use super::{
    config::{capabilities, plain, refused},
    dedicated, doctor,
    error::unconnected,
    flavor::Flavor,
    link::{Argument, Link, Reply},
    listen::{self, Listener},
    schema::{self, Names},
};
use crate::server::{
    Answer, Engine, Form, Key, Notification, Order, Outcome, Server, ServerError, Settings, StoredGrant,
    StoredRequest, UNUSED, column, fit, in_server, is_unusable, micros, reply, store_version,
};

/// The number of tries to wake sessions that this user may not interrupt.
const WAKES: u32 = 5;

/// The level under which the routines decide.
pub(super) const LEVEL: &str = "READ COMMITTED";

/// Flags of an acquire, as in `schema/pieces.sql`.
const QUEUE: i64 = 1;
const NESTED: i64 = 2;

/// A MySQL or MariaDB server, as [`MysqlLockDao`](super::MysqlLockDao) sees it.
pub(crate) struct Mysql {
    source: Source,
    options: MySqlConnectOptions,
    address: String,
    database: String,
    pub(super) settings: Settings,
    names: Names,
}

/// The source of connections. No `Debug`: sqlx shows passwords.
pub(super) enum Source {
    Own(Box<MySqlConnectOptions>),
    Pool(MySqlPool),
}

impl Mysql {
    pub(super) fn new(source: Source, settings: Settings) -> Result<Self, ServerError> {
        let options = match &source {
            Source::Own(options) => (**options).clone(),
            Source::Pool(pool) => plain((*pool.connect_options()).clone()),
        };
        let Some(database) = options.get_database().map(str::to_owned) else {
            return Err(refused("url", "it must name a database, as in mysql://user@host/database"));
        };
        let address = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let names = Names::new(&settings.prefix);
        Ok(Mysql { source, options, address, database, settings, names })
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Makes a connection of our own, for orders or for listening.
    async fn connect_own(&self, listens: bool) -> Result<Link, ServerError> {
        self.connect_with(listens, LEVEL).await
    }

    /// Makes a connection of our own for statements, which need no schema.
    pub(super) async fn connect_plain(&self, level: &str) -> Result<Link, ServerError> {
        self.connect_with(false, level).await
    }

    async fn connect_with(&self, listens: bool, level: &str) -> Result<Link, ServerError> {
        let mut link = Link::own(connect(&self.options).await.map_err(unconnected)?);
        link.text(&session(self.settings.timeout, listens, level)).await?;
        Ok(link)
    }

    /// Returns the number of the namespace, read once on each connection, which also shows whether the schema is for newer
    /// programs by now. 0 if the namespace is not there and not to be created; nothing is stored under that.
    async fn enter(&self, link: &mut Link, create: bool) -> Result<i64, ServerError> {
        if let Some(namespace) = link.namespace {
            return Ok(namespace.into());
        }
        let name = Argument::Bytes(self.settings.namespace.as_bytes());
        let Reply { text, .. } = link.call(&self.names.quoted("v1_enter"), &[name, truth(create)]).await?;
        let numbers: Option<Vec<i64>> = text.split(' ').map(|number| number.parse().ok()).collect();
        let Some([number, version, oldest_program]) = numbers.as_deref() else {
            return Err(ServerError::Answer { backend: "mysql", what: format!("{text:?}") });
        };
        fit(self, Some(store_version("mysql", *version, *oldest_program)?))?;
        link.namespace = u32::try_from(*number).ok().filter(|number| *number != 0);
        Ok(*number)
    }

    /// Calls a routine with the namespace and `arguments`, and wakes the sessions that it could not wake itself.
    async fn call(
        &self,
        link: &mut Link,
        create: bool,
        routine: &str,
        arguments: &[Argument<'_>],
    ) -> Result<String, ServerError> {
        if link.spoilt {
            return Err(unconnected(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())));
        }
        let mut all = vec![Argument::Int(self.enter(link, create).await?)];
        all.extend_from_slice(arguments);
        let Reply { text, mut to_wake } = link.call(&self.names.quoted(routine), &all).await?;
        // The routines run with the rights of the user who made them, and may interrupt only that user's connections. A
        // connection that has other rights at the moment is about to wait with its own.
        for _ in 0..WAKES {
            if to_wake.is_empty() {
                break;
            }
            match link.call(&self.names.quoted("v1_wake"), &[Argument::Text(&to_wake)]).await {
                Ok(reply) => to_wake = reply.to_wake,
                Err(error) => {
                    // Waiters also poll. But this connection may be of no use for the next order.
                    tracing::debug!(%error, "could not wake other sessions");
                    link.spoilt |= error.broke_connection();
                    break;
                }
            }
        }
        Ok(text)
    }

    async fn acquire(&self, link: &mut Link, request: &StoredRequest) -> Result<String, ServerError> {
        let bytes = Argument::Bytes;
        let int = Argument::Int;
        let queue = if request.queue { QUEUE } else { 0 };
        let nested = if request.nested { NESTED } else { 0 };
        let (context, attempt) = (bytes(request.context.as_bytes()), int(request.attempt));
        let rest = [int(request.lease), bytes(&request.owner), int(queue | nested), int(request.session)];
        match &*request.ids {
            [id] if request.modes.is_none() => {
                let [lease, owner, flags, session] = rest;
                let arguments = [context, attempt, bytes(id), lease, owner, flags, session];
                self.call(link, true, "v1_acquire_one", &arguments).await
            }
            ids => {
                let (set, fast) = (wanted(request), truth(request.modes.is_none()));
                let [lease, owner, flags, session] = rest;
                let arguments =
                    [context, attempt, Argument::Text(&set), count(ids), fast, lease, owner, flags, session];
                self.call(link, true, "v1_acquire", &arguments).await
            }
        }
    }

    async fn withdraw(
        &self,
        link: &mut Link,
        request: &StoredRequest,
        how: Withdraw,
    ) -> Result<String, ServerError> {
        let set = wanted(request);
        let arguments = [
            Argument::Bytes(request.context.as_bytes()),
            Argument::Int(request.attempt),
            Argument::Text(&set),
            count(&request.ids),
            Argument::Int(request.lease),
            Argument::Bytes(&request.owner),
            truth(how == Withdraw::Undo),
        ];
        self.call(link, true, "v1_withdraw", &arguments).await
    }

    async fn release(&self, link: &mut Link, grant: &StoredGrant) -> Result<String, ServerError> {
        let context = Argument::Bytes(grant.context.as_bytes());
        if let ([id], [fence]) = (&*grant.ids, &*grant.fences) {
            let arguments = [context, Argument::Bytes(id), Argument::Int(*fence)];
            return self.call(link, true, "v1_release_one", &arguments).await;
        }
        let set = held(grant);
        self.call(link, true, "v1_release", &[context, Argument::Text(&set), count(&grant.ids)]).await
    }

    async fn renew(&self, link: &mut Link, grant: &StoredGrant) -> Result<String, ServerError> {
        let context = Argument::Bytes(grant.context.as_bytes());
        if let ([id], [fence]) = (&*grant.ids, &*grant.fences) {
            let arguments = [context, Argument::Bytes(id), Argument::Int(*fence), Argument::Int(grant.lease)];
            return self.call(link, true, "v1_renew_one", &arguments).await;
        }
        let set = held(grant);
        let arguments = [context, Argument::Text(&set), count(&grant.ids), Argument::Int(grant.lease)];
        self.call(link, true, "v1_renew", &arguments).await
    }

    /// Reads the answers to a batch: `read` those of requests for which something was done.
    fn outcomes(
        texts: &str,
        read: impl Fn(&str) -> Result<Answer, ServerError>,
    ) -> Result<Vec<Outcome>, ServerError> {
        let outcome = |text| match text {
            "A" => Ok(Outcome::Alone),
            "B" => Ok(Outcome::Busy),
            _ => read(text).map(Outcome::Done),
        };
        texts.split_terminator('|').map(outcome).collect()
    }

    async fn flavor(&self, link: &mut Link) -> Result<Flavor, ServerError> {
        let version = link.text("SELECT VERSION()").await?.unwrap_or_default();
        Flavor::of_version(&version).ok_or_else(|| {
            let what = format!("the server's version is {version}, MySQL 8.0 or MariaDB 10.6 is needed");
            ServerError::Misconfigured { backend: "mysql", what }
        })
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

impl Server for Mysql {
    type Conn = Link;

    const NAME: &'static str = "mysql";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn connect(&self, own: bool) -> Result<Link, ServerError> {
        match &self.source {
            Source::Pool(pool) if !own => Ok(Link::lent(pool.acquire().await.map_err(unconnected)?)),
            _ => self.connect_own(false).await,
        }
    }

    fn keeps(&self, link: &Link) -> bool {
        link.is_own()
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn location(&self) -> String {
        format!("database {:?} under the prefix {:?}", self.database, self.settings.prefix)
    }
}

impl Engine for Mysql {
    type Listener = Listener;

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn register(&self, link: &mut Link) -> Result<(), ServerError> {
        let (namespace, create) = (&self.settings.namespace, !self.settings.administration);
        let ns = column(namespace);
        let arguments = [Argument::Bytes(ns.as_bytes()), truth(create)];
        let found = link.call(&self.names.quoted("v1_form"), &arguments).await?.text;
        Form::Routines.check(Self::NAME, namespace, Some(&*found).filter(|found| !found.is_empty()))
    }

    async fn carry_out(&self, link: &mut Link, order: &Order<'_>) -> Result<Answer, ServerError> {
        let int = Argument::Int;
        let bytes = Argument::Bytes;
        let text = match order {
            Order::Acquire(request) => self.acquire(link, request).await,
            Order::Withdraw { request, how } => self.withdraw(link, request, *how).await,
            Order::Release(grant) => self.release(link, grant).await,
            Order::Renew(grant) => self.renew(link, grant).await,
            Order::Shorten(grant) => {
                let (context, set) = (bytes(grant.context.as_bytes()), held(grant));
                let arguments = [context, Argument::Text(&set), count(&grant.ids), int(grant.lease)];
                self.call(link, true, "v1_shorten", &arguments).await
            }
            Order::Heartbeat { session, probe, in_rows: _ } => {
                let arguments = [int(*session), int(probe.map_or(0, i64::from))];
                self.call(link, true, "v1_heartbeat", &arguments).await
            }
            Order::Leave { session } => self.call(link, true, "v1_leave", &[int(*session)]).await,
            Order::Freeze { id, frozen } => {
                self.call(link, true, "v1_freeze", &[bytes(id), truth(*frozen)]).await
            }
            // The others do not create the namespace.
            Order::ReleaseContext(context) => {
                self.call(link, false, "v1_release_context", &[bytes(context.as_bytes())]).await
            }
            Order::List(page) => {
                let after = page.after.as_deref().map(str::as_bytes);
                let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).min(1000);
                self.call(link, false, "v1_list", &[Argument::MaybeBytes(after), int(limit)]).await
            }
            Order::Inspect(id) => self.call(link, false, "v1_inspect", &[bytes(id)]).await,
            Order::Break { id, fence, how, by } => {
                let now = truth(*how == BreakMode::Now);
                let arguments = [bytes(id), int(*fence), now, bytes(by.as_bytes())];
                self.call(link, false, "v1_break_lock", &arguments).await
            }
            Order::Sweep { batch, unless_within } => {
                let batch = i64::try_from(*batch).unwrap_or(i64::MAX).clamp(1, 10_000);
                let arguments = [int(batch), int(unless_within.map_or(-1, micros))];
                self.call(link, false, "v1_sweep", &arguments).await
            }
        };
        Answer::read(Self::NAME, order, &text?)
    }

    async fn acquire_batch(
        &self,
        link: &mut Link,
        requests: &[StoredRequest],
    ) -> Result<Vec<Outcome>, ServerError> {
        let mut words = String::with_capacity(requests.len() * 200);
        for request in requests {
            push_words(&mut words, [&request.ids[0], request.context.as_bytes(), &request.owner]);
            let waits = i64::from(request.queue && !request.nested);
            let _ = write!(words, "{} {} {waits} ", request.attempt, request.lease);
        }
        let session = requests.first().map_or(0, |request| request.session);
        let arguments = [Argument::Bytes(words.as_bytes()), Argument::Int(session)];
        let texts = self.call(link, true, "v1_acquire_batch", &arguments).await?;
        Self::outcomes(&texts, |text| Answer::of_acquire(Self::NAME, text, 1))
    }

    async fn release_batch(
        &self,
        link: &mut Link,
        grants: &[StoredGrant],
    ) -> Result<Vec<Outcome>, ServerError> {
        let mut words = String::with_capacity(grants.len() * 150);
        for grant in grants {
            push_words(&mut words, [&grant.ids[0], grant.context.as_bytes()]);
            let _ = write!(words, "{} ", grant.fences[0]);
        }
        let texts = self.call(link, true, "v1_release_batch", &[Argument::Bytes(words.as_bytes())]).await?;
        Self::outcomes(&texts, |text| Answer::of_release(Self::NAME, text))
    }

    async fn migrate(&self, link: &mut Link) -> Result<(), ServerError> {
        let (flavor, program) = (self.flavor(link).await?, self.settings.program);
        schema::migrate(&self.names, flavor, program, |found| fit(self, found), link).await
    }

    async fn store_version(&self, link: &mut Link) -> Result<Option<StoreVersion>, ServerError> {
        self.flavor(link).await?;
        schema::version(&self.names, link).await
    }

    async fn missing(&self, link: &mut Link) -> Result<Vec<String>, ServerError> {
        schema::missing(&self.names, link).await
    }

    async fn doctor(&self, link: &mut Link) -> Result<Vec<Finding>, ServerError> {
        let flavor = self.flavor(link).await?;
        doctor::examine(flavor, link).await
    }

    async fn listen(&self, session: i64) -> Result<Listener, ServerError> {
        let mut link = self.connect_own(true).await?;
        let namespace = self.enter(&mut link, true).await?;
        let mut other = self.connect_own(true).await?;
        // Before anything is done there that could stay with another client.
        dedicated::ensure(&self.names, [&mut link, &mut other], None).await?;
        listen::listen(&self.names, link, other, namespace, session).await
    }

    async fn receive(&self, listener: &mut Listener) -> Result<Notification, ServerError> {
        reply::notification(Self::NAME, &listener.receive().await?)
    }

    async fn probe(&self, listener: &mut Listener) -> Result<(), ServerError> {
        listener.probe().await
    }
}

/// Sets what our connections need, whatever the defaults of the server and of `init_connect` are, in one exchange.
fn session(timeout: Duration, listens: bool, level: &str) -> String {
    // The server gives a statement up before this process does, or the statement would go on waiting without a client: for rows,
    // for tables (a year by default), on MySQL in a SELECT, and on MariaDB for whatever else there is. The first two are whole
    // seconds.
    let wait = in_server(timeout).as_secs().max(1);
    let statement = if listens { Duration::ZERO } else { timeout };
    // A connection that listens waits in a routine; the one that keeps it waiting is silent for as long as this process
    // listens.
    let unused = if listens { 2_147_483 } else { UNUSED.as_secs() };
    // The limits of what a session may use are those that the routines need.
    format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL {level}; \
         SET SESSION autocommit = 1, completion_type = 0, timestamp = DEFAULT, sql_safe_updates = 0, \
         sql_big_selects = 1, sql_select_limit = 18446744073709551615, group_concat_max_len = 16777216, \
         max_sort_length = 1024, sort_buffer_size = 262144, \
         innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}, wait_timeout = {unused} \
         /*!50708 , max_execution_time = {} */ \
         /*M!100106 , max_statement_time = {}, tmp_disk_table_size = 67108864, \
         max_session_mem_used = 67108864 */",
        statement.as_millis(),
        statement.as_secs_f64()
    )
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

/// Appends each in hexadecimal, with a blank behind it.
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

/// Connects. Where TLS is only preferred and impossible with the server's certificate, goes without it.
async fn connect(options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
    match options.connect().await {
        Err(error) if is_unusable(&error) && matches!(options.get_ssl_mode(), MySqlSslMode::Preferred) => {
            tracing::warn!(%error, "TLS is impossible with the server's certificate, connecting without it");
            // If the account needs TLS, the certificate is what has to be changed.
            options.clone().ssl_mode(MySqlSslMode::Disabled).connect().await.map_err(|_| error)
        }
        connected => connected,
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
    }
}
