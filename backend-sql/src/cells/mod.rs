//! Locks by plain statements, on servers without stored routines: the adapter of `lockcore-cell` that the servers share.
//!
//! A cell is a row, (namespace, name), with a version that the writer chooses at random: no version comes back, also where a row was
//! removed and made again. Every call is one statement in autocommit.
//!
//! - **A read** is one `SELECT` by keys, which brings the store's time with it.
//! - **A write** of one cell is an `INSERT` that makes no second row, or an `UPDATE` of the version that was read.
//! - **A write of several** is one `INSERT` of all rows, which updates those that are there. `previous` has the version that is expected
//!   of each; where a row has another, its new version is `version + 9223372036854775807`, out of the range of the type. So the
//!   statement fails and leaves nothing. The condition has to be in the update and has to fail it: what is only read along, as by
//!   `NOT EXISTS`, is not exclusive.
//! - A row with an expected version that was **removed in the meantime** is inserted again by that. This is harmless: only cells of ids
//!   are removed while others may write them, those that rest, whose content says no more than a cell that is not there; and sessions
//!   are written one at a time, by `UPDATE`.
//! - Rows are **sorted by name** before they are sent, so that two statements lock them in one order.
//! - What the server **gives up in favour of another** (40001, 40P01, OC000, 1213, 1205) was not done, and is sent again within the
//!   time of the call.
//!
//! Of a server this needs tables with a primary key, `INSERT .. ON CONFLICT` or `.. ON DUPLICATE KEY UPDATE`, and that statements are
//! serialized by rows: no sequence, `RETURNING`, `SKIP LOCKED`, advisory lock, trigger, routine or transaction of several statements.

mod config;
mod open;
mod server;
mod wake;

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use bytes::Bytes;
use lockcore::{
    BackendError, Finding, Severity,
    backend::{Moment, ServiceClock, ServiceTime, unique},
};
use lockcore_cell::{Cell, CellPage, Change, Found, Written};

#[cfg(feature = "postgres")]
pub(crate) use self::wake::hash;
pub(crate) use self::{
    config::{CellOptions, dao_settings, prepare},
    open::opened,
    server::{PAGE, Row, Selected, Statements},
};
use self::{
    server::{Answer, Ask},
    wake::Wakes,
};
use crate::server::{Pool, ServerError, background, column, exchange};

/// The most cells of one statement that writes.
const AT_ONCE: usize = 4096;

/// The most bytes of the cells of a statement: MariaDB takes packets of 16 MiB unless it is told otherwise, and in some statements each byte
/// is two digits.
const MOST_BYTES: usize = 6 << 20;

/// The longest pause before a statement is sent again that the server gave up in favour of another.
const PAUSE: Duration = Duration::from_millis(20);

/// The time is relied on for so long after it was told: a step of the server's clock is then known well within the shortest lease.
const FRESH: Duration = Duration::from_millis(400);

/// The cells of a namespace in a database server.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
#[cfg_attr(
    feature = "testing",
    expect(private_bounds, reason = "a server is chosen here, and never by a user")
)]
pub struct SqlCells<S: Statements>(Arc<Shared<S>>);

/// The state that the adapter and its tasks share.
pub(crate) struct Shared<S: Statements> {
    pool: Pool<S>,
    /// The namespace, as it stands in the tables.
    ns: String,
    clock: Arc<ServiceClock>,
    /// The moment of the last question that told the time.
    told: Mutex<Option<Moment>>,
    /// The most that the clock of a node is off the store's time, in microseconds.
    spread: u64,
    /// For one statement with all its tries.
    limit: Duration,
    wakes: Wakes,
    /// The server's version, for [`findings`](Cell::findings).
    version: Mutex<String>,
    /// The time by which a test sets the store's time forward, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl<S: Statements> Shared<S> {
    fn new(server: S, options: &CellOptions) -> Self {
        let settings = server.settings();
        Shared {
            ns: column(&settings.namespace),
            // All DAOs of this process estimate it together.
            clock: ServiceClock::of(&format!("{} {}", S::NAME, server.address())),
            spread: u64::try_from(options.clock_difference.as_micros() / 2).unwrap_or(u64::MAX),
            limit: settings.timeout,
            told: Mutex::default(),
            wakes: Wakes::default(),
            version: Mutex::default(),
            #[cfg(feature = "testing")]
            ahead: options.ahead.clone(),
            #[cfg(not(feature = "testing"))]
            ahead: Arc::default(),
            pool: Pool::new(server),
        }
    }

    /// Asks within a time: again if the server gave the statement up in favour of another, or if a connection was cut on which it can
    /// be repeated.
    async fn ask_within(&self, limit: Duration, ask: &Ask<'_>) -> Result<Answer, ServerError> {
        let (sent, begun) = (AtomicBool::new(false), Moment::now());
        // On the heap: the futures of a driver are large and deep.
        let tries: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(async {
            let mut cut = false;
            for tried in 0_u32.. {
                let asked = exchange(&self.pool, false, async |conn| {
                    sent.store(true, Relaxed);
                    self.pool.engine.carry_out(conn, &self.ns, ask).await
                });
                let error = match asked.await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                let is_cut = error.broke_connection() && !std::mem::replace(&mut cut, true);
                let pause =
                    PAUSE.mul_f64(fastrand::f64()).min(Duration::from_millis(1) * 2_u32.pow(tried.min(5)));
                // It ends by the error, and not by the time: what the server gave up is not in doubt.
                let again = error.is_transient() || is_cut && ask.can_be_repeated();
                if !again || begun.left_of(limit) <= 2 * pause {
                    return Err(error);
                }
                sent.store(false, Relaxed);
                background::sleep(pause).await;
            }
            unreachable!("the loop ends by returning")
        });
        match background::within(limit, tries).await {
            Some(outcome) => outcome,
            None if sent.load(Relaxed) => {
                self.pool.give_up_unused(limit / 2);
                Err(ServerError::NoAnswer { backend: S::NAME, after: limit })
            }
            None => {
                let max = self.pool.engine.settings().max_connections;
                Err(ServerError::NoConnection { backend: S::NAME, after: limit, max })
            }
        }
    }

    /// Asks. The failure of a read leaves nothing in doubt.
    async fn ask(&self, ask: &Ask<'_>) -> Result<Answer, BackendError> {
        let address = self.pool.engine.address();
        self.ask_within(self.limit, ask).await.map_err(|error| match ask.can_be_repeated() {
            true => error.of_read_at(address),
            false => error.at(address),
        })
    }

    /// Reads cells, and the store's time with them.
    async fn select(&self, names: &[&str], known: &[i64]) -> Result<Selected, BackendError> {
        let Answer { selected, at, .. } = self.ask(&Ask::Select(names, known)).await?;
        if let Some((sent, received)) = at {
            self.clock.sample_micros(sent, received, selected.now);
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            // Answers may come in another order than they were asked for.
            if told.is_none_or(|told| told.since(&sent).is_zero()) {
                *told = Some(sent);
            }
        }
        Ok(selected)
    }

    /// Returns the store's time as it was told lately, or is told now.
    async fn time(&self) -> Result<ServiceTime, BackendError> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = told.filter(|told| told.elapsed() < FRESH).and_then(|told| self.clock.since(told));
        if let Some(now) = lately.filter(|now| !now.is_wide()) {
            return Ok(now);
        }
        loop {
            let asked = Moment::now();
            self.select(&[], &[]).await?;
            // It is wide after a step of the clock, until that is certain.
            if let Some(now) = self.clock.since(asked) {
                return Ok(now);
            }
        }
    }
}

/// Returns a version as unlike any other, never 0.
fn version() -> i64 {
    i64::try_from(unique() >> 1).unwrap_or(1).max(1)
}

/// Returns what was found of a cell.
fn found(selected: &Selected, name: &str, known: Option<i64>) -> Found<i64> {
    match selected.rows.get(name) {
        None => Found::Absent,
        Some((version, _)) if known == Some(*version) => Found::Unchanged,
        Some((version, content)) => Found::Changed(*version, content.clone().unwrap_or_default()),
    }
}

impl<S: Statements> Cell for SqlCells<S> {
    type Version = i64;

    async fn read(&self, name: &str, known: Option<&i64>) -> Result<Found<i64>, BackendError> {
        let known = known.copied();
        let selected = self.0.select(&[name], known.as_slice()).await?;
        Ok(found(&selected, name, known))
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&i64>,
        content: Bytes,
    ) -> Result<Written<i64>, BackendError> {
        let row = Row { name, version: version(), previous: at.map_or(0, |at| *at), content: &content };
        let ask = if at.is_none() { Ask::Insert(row) } else { Ask::Update(row) };
        if !self.0.ask(&ask).await?.done {
            return Ok(Written::Refused);
        }
        self.0.tell(&[row]);
        Ok(Written::Done(row.version))
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn most_bytes(&self) -> usize {
        MOST_BYTES
    }

    async fn read_all(&self, cells: &[(String, Option<i64>)]) -> Result<Vec<Found<i64>>, BackendError> {
        let names: Vec<&str> = cells.iter().map(|(name, _)| &**name).collect();
        let known: Vec<i64> = cells.iter().filter_map(|(_, known)| *known).collect();
        let selected = self.0.select(&names, &known).await?;
        Ok(cells.iter().map(|(name, known)| found(&selected, name, *known)).collect())
    }

    async fn replace_all(&self, changes: &[Change<i64>]) -> Result<Written<Vec<i64>>, BackendError> {
        if let [Change { name, at, content }] = changes {
            return Ok(match self.replace(name, at.as_ref(), content.clone()).await? {
                Written::Done(version) => Written::Done(vec![version]),
                Written::Refused => Written::Refused,
            });
        }
        let versions: Vec<i64> = changes.iter().map(|_| version()).collect();
        let mut rows: Vec<Row<'_>> = Vec::with_capacity(changes.len());
        for (Change { name, at, content }, version) in changes.iter().zip(&versions) {
            rows.push(Row { name, version: *version, previous: at.unwrap_or(0), content });
        }
        rows.sort_unstable_by_key(|row| row.name);
        if !rows.is_empty() && !self.0.ask(&Ask::WriteAll(&rows)).await?.done {
            return Ok(Written::Refused);
        }
        self.0.tell(&rows);
        Ok(Written::Done(versions))
    }

    async fn remove_at(&self, name: &str, at: &i64) -> Result<(), BackendError> {
        self.0.ask(&Ask::Delete(name, Some(*at))).await.map(drop)
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.0.ask(&Ask::Delete(name, None)).await.map(drop)
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        // The last name that is before all of the folder, and the first behind it: `0` is the letter after `/`.
        let (first, last, inner) = (format!("{folder}/"), format!("{folder}0"), format!("{folder}/%/%"));
        let between = [after.unwrap_or(&first).max(&first), &*last];
        let mut cells = self.0.ask(&Ask::List(between, &inner)).await?.listed;
        let more = cells.len() > PAGE;
        cells.truncate(PAGE);
        Ok(CellPage { cells, more })
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        let (now, ahead) = (self.0.time().await?, self.0.ahead.load(SeqCst));
        let (lo, hi) = (now.lo.saturating_sub(self.0.spread), now.hi.saturating_add(self.0.spread));
        Ok(ServiceTime { lo: lo + ahead, hi: hi + ahead })
    }

    async fn changed(&self, cells: &[(String, Option<i64>)]) {
        self.0.changed(cells).await;
    }

    fn findings(&self) -> Vec<Finding> {
        let shared = &self.0;
        let version = shared.version.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let waking = match shared.pool.engine.listens() {
            true => "waiters are notified",
            false => "waiters look for their turn",
        };
        let found = |check, detail: String| Finding::new(Severity::Ok, check, detail);
        vec![
            found("server", version),
            found("form", "by plain statements, without routines".to_owned()),
            found("waking", waking.to_owned()),
        ]
    }
}

impl<S: Statements> fmt::Debug for SqlCells<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlCells").field("server", &self.0.pool.engine).finish_non_exhaustive()
    }
}
