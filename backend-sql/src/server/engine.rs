//! What a database has to do so that the DAO works on it.

use std::{fmt, time::Duration};

use lockcore::{BreakMode, Capabilities, Finding, Page, StoreVersion, Withdraw};

use super::{Ask, Hold, Key, Place, ServerError, Settings};

/// A database server. Not for implementation elsewhere: it names what only this crate has.
pub trait Engine: fmt::Debug + Send + Sync + Sized + 'static {
    /// A connection.
    #[doc(hidden)]
    type Conn: Send + 'static;
    /// Where this process is told of its turn.
    #[doc(hidden)]
    type Listener: Send + 'static;
    /// The backend's name, as in [`Capabilities::backend`].
    #[doc(hidden)]
    const NAME: &'static str;

    /// What it can do; `push` is set by the DAO, once it was tried.
    #[doc(hidden)]
    fn capabilities(&self) -> Capabilities;

    /// The settings it was opened with.
    #[doc(hidden)]
    fn settings(&self) -> &Settings;

    /// A new connection, ready for use.
    #[doc(hidden)]
    fn connect(&self) -> impl Future<Output = Result<Self::Conn, ServerError>> + Send;

    /// Whether connections are kept between operations; not where they come from a pool of the user's.
    #[doc(hidden)]
    fn keeps_connections(&self) -> bool {
        true
    }

    /// Carries out an order in one round trip, and gives the answer (see `reply`).
    #[doc(hidden)]
    fn carry_out(
        &self,
        conn: &mut Self::Conn,
        order: &Order<'_>,
    ) -> impl Future<Output = Result<String, ServerError>> + Send;

    /// Whether releases go together with releases only, since they wait for less than acquires do.
    #[doc(hidden)]
    const RELEASES_APART: bool;

    /// Carries out orders, which are in the order of their ranks, in one round trip and one transaction.
    #[doc(hidden)]
    fn carry_out_together(
        &self,
        conn: &mut Self::Conn,
        orders: &[&Single],
    ) -> impl Future<Output = Result<Done, ServerError>> + Send;

    /// Creates or migrates the schema; does nothing where it is current.
    #[doc(hidden)]
    fn migrate(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send;

    /// Reads the schema's version: `None` where there is none.
    #[doc(hidden)]
    fn store_version(
        &self,
        conn: &mut Self::Conn,
    ) -> impl Future<Output = Result<Option<StoreVersion>, ServerError>> + Send;

    /// Refuses a connection on which the routines could not decide; asked once, on opening.
    #[doc(hidden)]
    fn admit(&self, _conn: &mut Self::Conn) -> impl Future<Output = Result<(), ServerError>> + Send {
        async { Ok(()) }
    }

    /// Host and port of the server, for messages.
    #[doc(hidden)]
    fn address(&self) -> &str;

    /// Where the schema is, for messages.
    #[doc(hidden)]
    fn place(&self) -> String;

    /// Looks for what would weaken a promise, apart from schema version and waking.
    #[doc(hidden)]
    fn doctor(&self, conn: &mut Self::Conn)
    -> impl Future<Output = Result<Vec<Finding>, ServerError>> + Send;

    /// Begins to listen for what is told to `session`.
    #[doc(hidden)]
    fn listen(&self, session: i64) -> impl Future<Output = Result<Self::Listener, ServerError>> + Send;

    /// Waits for the next message, in the form of `reply::Told`. Cancel safe. After an error the listener is replaced.
    #[doc(hidden)]
    fn hear(&self, listener: &mut Self::Listener)
    -> impl Future<Output = Result<String, ServerError>> + Send;

    /// Returns once the connections of the listener have shown that they still carry messages. On one that fell silent
    /// it never returns; then, and after an error, the listener is replaced.
    #[doc(hidden)]
    fn probe(&self, listener: &mut Self::Listener) -> impl Future<Output = Result<(), ServerError>> + Send;
}

/// What a routine is asked to do.
#[derive(Clone, Debug)]
pub enum Order<'r> {
    /// `session` is who is told if it has to wait.
    Acquire {
        ask: &'r Ask,
        session: i64,
    },
    Withdraw {
        ask: &'r Ask,
        how: Withdraw,
    },
    Release(&'r Hold),
    Renew(&'r Hold),
    /// A sign of life of a session with waiters: looks after what it waits for, and gives what was handed to it.
    /// `standing`: who waits in which row (`reply::IN_ROW`). With `probe` it is told so (`Told`), to see that it hears.
    Beat {
        session: i64,
        standing: &'r [(Place, Key)],
        probe: Option<u32>,
    },
    /// The session has ended, and gives up all its places.
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

/// An order for one id, which can go with others, whoever sends it.
#[derive(Clone, Debug)]
pub enum Single {
    Acquire { ask: Ask, session: i64 },
    Release(Hold),
}

/// What became of orders that were carried out together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    pub outcomes: Vec<Outcome>,
    /// How long the database worked on them before it committed.
    pub worked: Duration,
}

/// What became of an order that was carried out together with others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done, with that answer.
    Done(String),
    /// Nothing was done: somebody else works on the id at the moment.
    Busy,
    /// Nothing was done: it has to be carried out alone.
    Alone,
}

impl Done {
    /// Both from the answer of a routine: of each order, what `outcome` reads, and how many microseconds it worked, with
    /// `between` between all of them.
    pub(crate) fn read(
        backend: &'static str,
        answer: &str,
        between: char,
        outcome: impl Fn(&str) -> Outcome,
    ) -> Result<Self, ServerError> {
        let (outcomes, worked) = answer.rsplit_once(between).unwrap_or(("", answer));
        let worked: i64 =
            worked.parse().map_err(|_| ServerError::Answer { backend, what: format!("{worked:?}") })?;
        Ok(Done {
            outcomes: outcomes.split(between).map(outcome).collect(),
            // Unless the database's clock was set back meanwhile.
            worked: Duration::from_micros(worked.try_into().unwrap_or_default()),
        })
    }
}

impl Single {
    /// `None` unless [`Order::is_single`].
    pub(crate) fn new(order: &Order<'_>) -> Option<Self> {
        match *order {
            Order::Acquire { ask, session } if order.is_single() => {
                Some(Single::Acquire { ask: ask.clone(), session })
            }
            Order::Release(hold) if order.is_single() => Some(Single::Release(hold.clone())),
            _ => None,
        }
    }

    /// Where it stands among others: in the order of the ids, and a release before those who want what it frees.
    pub(crate) fn rank(&self) -> (&[u8], bool) {
        match self {
            Single::Acquire { ask, .. } => (&ask.ids[0], true),
            Single::Release(hold) => (&hold.ids[0], false),
        }
    }
}

impl Order<'_> {
    /// Whether it may be sent again though it may have arrived, or may arrive late. Not an acquire: that would take
    /// the set once more after it was released. Whoever asked withdraws it.
    pub(crate) fn can_be_repeated(&self) -> bool {
        !matches!(self, Order::Acquire { .. })
    }

    /// Whether it is for one id alone, exclusively, so that it can go with others.
    pub(crate) fn is_single(&self) -> bool {
        match self {
            Order::Acquire { ask, .. } => ask.ids.len() == 1 && ask.modes.is_none(),
            Order::Release(hold) => hold.ids.len() == 1,
            _ => false,
        }
    }

    /// Whether a connection that is there already is better than one's own that would have to be made.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(self, Order::Renew(_) | Order::Release(_))
    }
}
