//! Checks of a backend whose server is a real one at the end of a line that fails, or is itself killed: no client holds what
//! it does not know of, and what it was answered stays true.
//!
//! A backend says how to open a DAO by a URL, as a [`Remote`], and runs [`trials`].

mod cut;
mod down;
mod service;
mod silent;

use std::{error::Error, fmt::Debug, marker::PhantomData, sync::Arc, time::Duration};

use lockcore::{BackendError, LockDao, LockingService};
use uuid::Uuid;

use crate::{
    Backend, Store, eventually,
    servers::{Kind, Mode, Proxy, Server, ServerError, TestResult, Trial, shared, trial},
};

/// What is given up as unanswered; long enough for an answer on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// More than any step may take: a few timeouts and reconnections.
const SETTLED: Duration = Duration::from_secs(30);

type Failed = Box<dyn Error + Send + Sync>;

const NEVER: Duration = Duration::from_secs(3600);

/// A lease that does not end during a check.
const LONG: Duration = Duration::from_secs(600);

/// What happens to the line: each way for a while, and cut after each of the next messages.
const FAULTS: [Mode; 10] = [
    Mode::CutAfter(1),
    Mode::CutAfter(2),
    Mode::CutAfter(3),
    Mode::CutAfter(4),
    Mode::DropRequests,
    Mode::DropReplies,
    STALLED,
    Mode::Delay { requests: Duration::ZERO, replies: NEVER },
    Mode::Reset,
    Mode::Refuse,
];

/// What is sent is on its way until the mode changes, and arrives then.
const STALLED: Mode = Mode::Delay { requests: NEVER, replies: Duration::ZERO };

/// A backend that is reached by a URL.
pub trait Remote: Send + Sync + 'static {
    /// Its implementation of the trait.
    type Dao: LockDao<String, Uuid>;

    /// Whether a request has a connection to itself, so that all of them may be in use.
    const POOLED: bool = true;

    /// Opens the namespace on the server at `route.url`.
    fn open(route: &Route) -> impl Future<Output = Result<Self::Dao, BackendError>> + Send;

    /// A server of the check's own that is killed and finds what it had answered when it is started again.
    fn lasting_server(kind: Kind) -> impl Future<Output = Result<Server, ServerError>> + Send {
        Server::start(kind)
    }
}

/// How to reach a namespace.
#[derive(Clone)]
pub struct Route {
    /// The server's URL, with its password.
    pub url: String,
    /// A namespace of the check's own.
    pub namespace: String,
    /// How long an operation may take.
    pub timeout: Duration,
    /// How many connections there may be, where that can be chosen.
    pub connections: usize,
    /// Whether to listen, where that can be chosen.
    pub listen: bool,
}

/// All checks, as tests of this kind of server.
pub fn trials<R: Remote>(kind: Kind) -> Vec<Trial> {
    macro_rules! checks {
        ($($module:ident: $($name:ident)*;)*) => {
            vec![$($(trial(kind, concat!("line::", stringify!($module), "::", stringify!($name)), move || async move {
                $module::$name::<R>(kind).await
            }),)*)*]
        };
    }
    let mut all = checks! {
        cut:
            an_acquire_is_granted_or_settled
            an_acquire_that_arrives_late_is_refused
            a_renewal_extends_or_says_that_it_did_not
            a_renewal_that_arrives_after_the_release_changes_nothing
            a_release_is_done_in_the_end_and_once
            a_release_that_arrives_late_frees_no_later_grant
            a_release_that_was_overtaken_is_not_reported_as_done
            a_withdrawal_is_done_in_the_end
            a_hand_off_by_a_failing_line_takes_place;
        service:
            a_lost_offer_is_found_again_or_passed_on
            with_locks_leaves_nothing_behind
            a_dropped_call_leaves_nothing_behind
            who_cannot_renew_is_stopped_before_the_next_one_holds
            with_locks_is_two_round_trips
            renewals_and_waiting_cost_few_requests
            a_connection_that_ended_while_it_was_idle_costs_no_call
            what_ended_in_time_is_not_lost_by_a_slow_release;
        down:
            a_server_is_killed_in_the_middle_of_each_step
            contenders_exclude_each_other_over_restarts;
        silent:
            hand_overs_are_as_fast_as_before
            idle_connections_cost_one_timeout;
    };
    if R::POOLED {
        all.extend(checks! { cut: an_exhausted_pool_is_reported; });
    }
    all
}

/// A server with a bad line to it, and a good one by which the check sees what is so.
struct Line<R: Remote> {
    server: Arc<Server>,
    /// In front of the bad line.
    proxy: Proxy,
    /// In front of the good one, so that a restarted server can have another address.
    good: Proxy,
    /// By the bad line.
    bad: Place<R>,
    /// By the good one.
    store: Store<Place<R>>,
}

impl<R: Remote> Line<R> {
    /// To the server that the tests share.
    async fn new(kind: Kind) -> Result<Self, Failed> {
        Line::to(shared(kind).await?).await
    }

    async fn to(server: Arc<Server>) -> Result<Self, Failed> {
        let (proxy, good) = (Proxy::start(server.address()).await?, Proxy::start(server.address()).await?);
        let route = Route {
            url: server.url_through(good.address()),
            namespace: Uuid::new_v4().to_string(),
            timeout: SETTLED,
            connections: 4,
            listen: true,
        };
        let url = server.url_through(proxy.address());
        let bad = Place { route: Route { url, timeout: TIMEOUT, ..route.clone() }, backend: PhantomData };
        let store = Store::new(Arc::new(Place { route, backend: PhantomData })).await;
        Ok(Line { server, proxy, good, bad, store })
    }

    /// A DAO at the bad end that has been at work.
    async fn dao(&self) -> Result<Arc<R::Dao>, BackendError> {
        let dao = Arc::new(R::open(&self.bad.route).await?);
        let caller = self.store.caller().through(&dao);
        // Another each time: a server that is killed may forget that it was released.
        let grant = caller.take([format!("warm {}", caller.context)]).await;
        caller.free(&grant).await;
        Ok(dao)
    }

    /// A service at the bad end that has been at work.
    async fn locks(&self) -> Result<LockingService<String, Uuid, R::Dao>, Failed> {
        let dao = R::open(&self.bad.route).await?;
        let locks = LockingService::builder(dao).lease(LONG).build()?;
        locks.with_locks(["warm"], async || ()).await?;
        Ok(locks)
    }

    /// Stalls what is sent from now on; see [`Line::arrives`].
    async fn stall(&self) {
        self.proxy.set(STALLED).await;
    }

    /// Lets arrive what was stalled, and waits until the server has answered it.
    async fn arrives(&self) {
        let before = self.proxy.counts().replies;
        self.proxy.set(Mode::Pass).await;
        self.proxy.counted(|counts| counts.replies > before).await;
    }
}

/// A namespace by one of the two lines.
struct Place<R> {
    route: Route,
    backend: PhantomData<fn() -> R>,
}

impl<R: Remote> Backend for Place<R> {
    type Dao = R::Dao;
    type Guard = ();

    async fn build(&self) -> ((), R::Dao) {
        ((), R::open(&self.route).await.expect("the good line is good"))
    }

    async fn reopen(&self, (): &()) -> Option<R::Dao> {
        Some(R::open(&self.route).await.expect("the good line is good"))
    }
}

/// Does it again until it is done, as the service does in the background.
async fn until<T, F: Future<Output = Option<T>>>(fault: impl Debug, again: impl FnMut() -> F) -> T {
    eventually(&format!("done after {fault:?}"), again).await
}
