//! The administrator's requests and their answers: listings, inspections, breaks, sweeps, findings.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use crate::{Mode, Owner, StoredContext, Target, Uuid};

/// A page of a listing: its start, and its size at most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Only ids whose stored form is greater than this by bytes; `None` starts at the beginning.
    pub after: Option<String>,
    /// The number of ids at most, at least 1; a backend may give fewer.
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Page { after: None, limit: 100 }
    }
}

/// A page of the ids that are held, queued for or frozen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing<I = String, C = Uuid> {
    /// The ids found, ordered by stored form.
    pub ids: Vec<Inspection<I, C>>,
    /// Give this as [`Page::after`] for the next page; `None` after the last.
    pub next: Option<String>,
}

/// All that the store knows of one id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection<I = String, C = Uuid> {
    /// The id; `Err` holds the stored form of one that is not of this service's type.
    pub target: Result<Target<I>, String>,
    /// Its holders, in order of fence. Expired holders are not listed.
    pub holders: Vec<HeldBy<C>>,
    /// Its waiters, in order.
    pub waiters: Vec<WaitingFor<C>>,
    /// Set if it is frozen.
    pub frozen: bool,
    /// The latest breaks of its locks, newest last, at most 16.
    pub breaks: Vec<BreakRecord<C>>,
    /// The part of its state that this program cannot read, as another program may write it; it is not among the rest.
    /// While there is one, the id is not free.
    pub unreadable: Option<String>,
}

impl<I, C> Inspection<I, C> {
    /// Returns whether it has no holder, nor anything that may be one.
    pub(crate) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.unreadable.is_none()
    }
}

/// One holder of an id, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldBy<C> {
    /// The holder's context.
    pub context: StoredContext<C>,
    /// The owner label, empty if there is none.
    pub owner: Owner,
    /// The mode in which it holds the id.
    pub mode: Mode,
    /// Its permit indexes; empty unless for slots.
    pub permits: Vec<u32>,
    /// The fence that the holder has.
    pub fence: u64,
    /// The time since when it holds the id, by the store's clock.
    pub since: SystemTime,
    /// The lease it asked for; `None` is for ever.
    pub lease: Option<Duration>,
    /// The rest of its lease; `None` is for ever.
    pub remaining: Option<Duration>,
    /// An administrator broke it and it has not acknowledged yet.
    pub broken: bool,
}

/// One waiter for an id, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingFor<C> {
    /// The waiter's context.
    pub context: StoredContext<C>,
    /// The owner label, empty if there is none.
    pub owner: Owner,
    /// The mode in which it wants the id.
    pub mode: Mode,
    /// The time since when it waits, by the store's clock.
    pub since: SystemTime,
}

/// The record of a lock that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BreakRecord<C> {
    /// The context whose lock it was.
    pub context: StoredContext<C>,
    /// The fence it was held under.
    pub fence: u64,
    /// The owner label of the administrator.
    pub by: Owner,
    /// The time of the break, by the store's clock.
    pub at: SystemTime,
    /// Set if it was freed at once.
    pub now: bool,
}

/// The way to break a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakMode {
    /// Stop its renewal; it is free when the holder acknowledges by releasing, or when its lease ends.
    AfterLease,
    /// Free it at once: the old holder and a new one may both run until the old one notices.
    Now,
}

/// The outcome of a break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// It is free as of now; its old holder may still run.
    Freed,
    /// It will be free after this at the latest; `None`: only when its holder releases, for the lock is
    /// permanent.
    Within(Option<Duration>),
    /// The id is not held under that fence, so nothing was done.
    NotHeld,
}

/// The outcome of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// The number of expired locks, waiters and marks removed.
    pub removed: usize,
    /// More may be left: sweep again.
    pub more: bool,
    /// Another process swept this namespace within the interval, so nothing was done.
    pub elsewhere: bool,
}

/// The severity of a finding of [`LockDao::doctor`](crate::LockDao::doctor).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It works, but a promise is weaker or slower than it could be.
    Warning,
    /// A promise does not hold.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// One finding of [`LockDao::doctor`](crate::LockDao::doctor).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    /// The subject of the check, such as `"schema version"`.
    pub check: &'static str,
    /// The finding, with the value, and what to do about it.
    pub detail: String,
}

impl Finding {
    /// Creates a finding on the subject `check`.
    pub fn new(severity: Severity, check: &'static str, detail: impl Into<String>) -> Self {
        Finding { severity, check, detail: detail.into() }
    }
}
