//! The interface that a database has to provide so that the DAO works on it.

use std::{fmt, time::Duration};

use lockcore::{
    BreakMode, Capabilities, Finding, Page,
    backend::{StoreVersion, Withdraw},
};

use super::{
    Key, Place, ServerError, Settings, StoredGrant, StoredRequest,
    reply::{Answer, Notification},
};

/// A database server, as what has connections to it sees it.
pub(crate) trait Server: fmt::Debug + Send + Sync + Sized + 'static {
    /// A connection.
    type Conn: Send + 'static;
    /// The backend's name, as in [`Capabilities::backend`].
    const NAME: &'static str;

    /// Returns the settings it was opened with.
    fn settings(&self) -> &Settings;

    /// Opens a connection that is ready for use. Unless it has to be our `own`, a pool of the user's may lend it.
    fn connect(&self, own: bool) -> impl Future<Output = Result<Self::Conn, ServerError>> + Send;

    /// Reports whether a connection is kept between operations; not if a pool of the user's lent it.
    fn keeps(&self, conn: &Self::Conn) -> bool;

    /// Returns host and port of the server, for messages.
    fn address(&self) -> &str;

    /// Describes where the schema is, for messages.
    fn location(&self) -> String;
}

/// A database server whose routines decide.
pub(crate) trait Engine: Server {
    /// Receives the notifications for this process.
    type Listener: Send + 'static;

    /// Declares what the backend can do; the DAO sets `push` once it has tried to listen.
    fn capabilities(&self) -> Capabilities;

    /// Enters the namespace as one that is locked by routines, and refuses it if it is locked by statements.
    fn register(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Carries out an order in one round trip.
    fn carry_out(
        &self,
        conn: &mut Self::Conn,
        order: &Order<'_>,
    ) -> impl Future<Output = Result<Answer, ServerError>> + Send;

    /// Carries out requests for which [`StoredRequest::fits_batch`] is true, sorted by id, in one round trip and one
    /// transaction. Returns what became of each.
    fn acquire_batch(
        &self,
        conn: &mut Self::Conn,
        requests: &[StoredRequest],
    ) -> impl Future<Output = Result<Vec<Outcome>, ServerError>> + Send;

    /// Releases grants of one id each, as [`acquire_batch`](Self::acquire_batch) acquires them.
    fn release_batch(
        &self,
        conn: &mut Self::Conn,
        grants: &[StoredGrant],
    ) -> impl Future<Output = Result<Vec<Outcome>, ServerError>> + Send;

    /// Creates or migrates the schema; does nothing if it is current.
    fn migrate(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Reads the schema's version: `None` if there is no schema.
    fn store_version(
        &self,
        conn: &mut Self::Conn,
    ) -> impl Future<Output = Result<Option<StoreVersion>, ServerError>> + Send;

    /// Lists the tables and routines of the schema of this version that are not there, or that this user may not know of.
    fn missing(&self, conn: &mut Self::Conn)
    -> impl Future<Output = Result<Vec<String>, ServerError>> + Send;

    /// Refuses a connection on which the routines could not decide; called once, on opening.
    fn admit(&self, _conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send {
        async { Ok(()) }
    }

    /// Looks for what would weaken a promise, apart from schema version and notifications.
    fn doctor(&self, conn: &mut Self::Conn)
    -> impl Future<Output = Result<Vec<Finding>, ServerError>> + Send;

    /// Begins to listen for the notifications of `session`.
    fn listen(&self, session: i64) -> impl Future<Output = Result<Self::Listener, ServerError>> + Send;

    /// Waits for the next notification. Cancel safe. After an error other than [`ServerError::Answer`], of a notification
    /// that cannot be read, the listener is replaced.
    fn receive(
        &self,
        listener: &mut Self::Listener,
    ) -> impl Future<Output = Result<Notification, ServerError>> + Send;

    /// Returns once the listener's connections have shown that they still carry messages. On a connection that fell
    /// silent it never returns; then, and after an error, the listener is replaced.
    fn probe(&self, listener: &mut Self::Listener) -> impl Future<Output = Result<(), ServerError>> + Send;
}

/// The outcome of a request of a batch.
#[derive(Debug)]
#[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "a batch on Postgres is done as a whole"))]
pub(crate) enum Outcome {
    Done(Answer),
    /// Nothing was done: another transaction has locked its row.
    Busy,
    /// Nothing was done: it has to be sent alone.
    Alone,
}

/// The order to a routine. [`Answer`] says how each is answered.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "only Postgres keeps a waiter in the row of its lock")
)]
pub(crate) enum Order<'r> {
    Acquire(&'r StoredRequest),
    Withdraw {
        request: &'r StoredRequest,
        how: Withdraw,
    },
    Release(&'r StoredGrant),
    Renew(&'r StoredGrant),
    Shorten(&'r StoredGrant),
    /// Sends the session's heartbeat, serves the queues that its waiters are in, and returns the offers made to it.
    /// `in_rows`: its waiters for which [`Answer::Queued::in_row`] was true. `probe`: sent back as a notification, to see
    /// that the session receives them.
    Heartbeat {
        session: i64,
        in_rows: &'r [(Place, Key)],
        probe: Option<u32>,
    },
    /// Ends a session: removes its places from all queues.
    Leave {
        session: i64,
    },
    ReleaseContext(&'r str),
    List(&'r Page),
    Inspect(&'r Key),
    Break {
        id: &'r Key,
        fence: i64,
        how: BreakMode,
        by: &'r str,
    },
    Freeze {
        id: &'r Key,
        frozen: bool,
    },
    Sweep {
        batch: usize,
        unless_within: Option<Duration>,
    },
}

impl Order<'_> {
    /// Reports whether it may be sent again though it may have been carried out. Not an acquire: arriving late, it would
    /// take the set again after its release. Its caller withdraws it instead.
    pub(crate) fn can_be_repeated(&self) -> bool {
        !matches!(self, Order::Acquire(_))
    }

    /// Reports whether an idle connection of another runtime is better than a new one.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(self, Order::Renew(_) | Order::Shorten(_) | Order::Release(_))
    }
}
