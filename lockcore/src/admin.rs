//! What administrators see and do: listings, inspections, breaks, sweeps, findings.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use crate::{List, Mode, Owner, StoredContext, Target, Uuid};

/// Where a listing goes on, and how much of it to give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Only ids whose stored form is greater than this by bytes; `None` starts at the beginning.
    pub after: Option<String>,
    /// How many ids at most, at least 1; a backend may give fewer.
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
    /// What was found, ordered by stored form.
    pub ids: Vec<Inspection<I, C>>,
    /// Give this as [`Page::after`] for the next page; `None` after the last.
    pub next: Option<String>,
}

/// All that the store knows of one id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection<I = String, C = Uuid> {
    /// The id; `Err` holds the stored form of one that is not of this service's type.
    pub target: Result<Target<I>, String>,
    /// Who holds it, in order of fence. Expired holders are not listed.
    pub holders: Vec<HeldBy<C>>,
    /// Who waits for it, in order.
    pub waiters: Vec<WaitingFor<C>>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// What was broken on it lately, newest last, at most 16.
    pub breaks: Vec<BreakRecord<C>>,
    /// What the store has of it that this program cannot read, as another program may write it, and is not among the rest. As long as
    /// that is there the id is not free.
    pub unreadable: Option<String>,
}

impl<I, C> Inspection<I, C> {
    /// Whether it has no holder, nor anything that may be one.
    pub(crate) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.unreadable.is_none()
    }
}

/// One holder of an id, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldBy<C> {
    /// Who.
    pub context: StoredContext<C>,
    /// The owner label, empty if there is none.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// Its permit indexes; empty unless for slots.
    pub permits: List<u32>,
    /// Under which fence.
    pub fence: u64,
    /// Since when, by the store's clock.
    pub since: SystemTime,
    /// The lease it asked for; `None` is for ever.
    pub lease: Option<Duration>,
    /// What is left of it; `None` is for ever.
    pub remaining: Option<Duration>,
    /// An administrator broke it and it has not acknowledged yet.
    pub broken: bool,
}

/// One waiter for an id, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingFor<C> {
    /// Who.
    pub context: StoredContext<C>,
    /// The owner label, empty if there is none.
    pub owner: Owner,
    /// How it wants the id.
    pub mode: Mode,
    /// Since when, by the store's clock.
    pub since: SystemTime,
}

/// That a lock was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BreakRecord<C> {
    /// Whose lock.
    pub context: StoredContext<C>,
    /// Under which fence it was held.
    pub fence: u64,
    /// The owner label of the administrator.
    pub by: Owner,
    /// When, by the store's clock.
    pub at: SystemTime,
    /// Whether it was freed at once.
    pub now: bool,
}

/// How to break a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakMode {
    /// Stop its renewal; it is free when the holder acknowledges by releasing, or when its lease ends.
    AfterLease,
    /// Free it at once: the old holder and a new one may both run until the old one notices.
    Now,
}

/// What became of a break.
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

/// What a sweep did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// How many expired locks, waiters and marks were removed.
    pub removed: usize,
    /// More may be left: sweep again.
    pub more: bool,
    /// Another process swept this namespace within the interval, so nothing was done.
    pub elsewhere: bool,
}

/// How good or bad a finding of [`LockDao::doctor`](crate::LockDao::doctor) is.
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
    /// How good or bad.
    pub severity: Severity,
    /// What was looked at, such as `"schema version"`.
    pub check: &'static str,
    /// What was found, with the value, and what to do about it.
    pub detail: String,
}
