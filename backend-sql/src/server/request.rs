//! Requests in stored form: what is sent to the routines.

use std::{sync::Arc, time::Duration};

use lockcore::{ContextId, Grant, Ident, Mode, Target, backend::AcquireRequest};

/// The longest lease that is stored, in microseconds: some thousand years.
const LONGEST: i64 = i64::MAX / 256;

/// The stored form of an id; empty for the global lock.
pub(crate) type Key = Vec<u8>;

/// Names a waiter: context and attempt.
pub(crate) type Place = (Arc<str>, u64);

/// The modes in which a request wants its claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Modes {
    /// 0 shared, 1 slots, 2 exclusive; part of the schema.
    pub(crate) codes: Vec<i64>,
    /// 0 unless for slots.
    pub(crate) permits: Vec<i64>,
    /// The limits of slots, else 0.
    pub(crate) limits: Vec<i64>,
}

/// A request to acquire a set.
#[derive(Clone, Debug)]
pub(crate) struct StoredRequest {
    /// The session that is notified if the request has to wait.
    pub(crate) session: i64,
    pub(crate) context: Arc<str>,
    pub(crate) attempt: i64,
    /// In order.
    pub(crate) ids: Vec<Key>,
    /// `None` if all of them are wanted exclusively.
    pub(crate) modes: Option<Modes>,
    /// In microseconds.
    pub(crate) lease: i64,
    pub(crate) owner: Vec<u8>,
    pub(crate) queue: bool,
    pub(crate) nested: bool,
}

/// A grant, to be released or renewed.
#[derive(Clone, Debug)]
pub(crate) struct StoredGrant {
    pub(crate) context: Arc<str>,
    /// In order.
    pub(crate) ids: Vec<Key>,
    pub(crate) fences: Vec<i64>,
    /// In microseconds.
    pub(crate) lease: i64,
}

impl StoredRequest {
    pub(crate) fn new<I: Ident, C: ContextId>(request: &AcquireRequest<I, C>, session: i64) -> Self {
        let plain = request.claims.iter().all(|claim| claim.mode == Mode::Exclusive);
        StoredRequest {
            session,
            context: request.context.stored().into(),
            attempt: request.attempt.0 as i64,
            ids: request.claims.iter().map(|claim| key(&claim.target)).collect(),
            modes: (!plain).then(|| modes(request.claims.iter().map(|claim| claim.mode))),
            lease: lease(request.lease),
            owner: request.owner.as_bytes().to_vec(),
            queue: request.queue,
            nested: request.nested,
        }
    }

    /// Names the waiter that the request may become.
    pub(crate) fn place(&self) -> Place {
        (self.context.clone(), self.attempt as u64)
    }

    /// Reports whether it can be part of a batch: it wants one id, exclusively.
    pub(crate) fn fits_batch(&self) -> bool {
        self.ids.len() == 1 && self.modes.is_none()
    }
}

impl StoredGrant {
    pub(crate) fn new<I: Ident, C: ContextId>(grant: &Grant<I, C>) -> Self {
        StoredGrant {
            context: grant.context.stored().into(),
            ids: grant.locks.iter().map(|lock| key(&lock.target)).collect(),
            fences: grant.locks.iter().map(|lock| lock.granted.fence as i64).collect(),
            lease: lease(grant.lease),
        }
    }
}

/// Returns the stored form of an id.
pub(crate) fn key<I: Ident>(target: &Target<I>) -> Key {
    target.stored().as_bytes().to_vec()
}

/// Converts a duration to microseconds, rounded up.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(LONGEST).min(LONGEST)
}

/// `permanent` is not declared, so that every lease that arrives here is finite.
fn lease(lease: Option<Duration>) -> i64 {
    lease.map_or(LONGEST, micros)
}

fn modes(wanted: impl Iterator<Item = Mode>) -> Modes {
    let mut modes = Modes { codes: Vec::new(), permits: Vec::new(), limits: Vec::new() };
    for mode in wanted {
        let (code, permits, limit) = match mode {
            Mode::Shared => (0, 0, 0),
            Mode::Slots { permits, limit } => (1, i64::from(permits), i64::from(limit)),
            Mode::Exclusive => (2, 0, 0),
        };
        modes.codes.push(code);
        modes.permits.push(permits);
        modes.limits.push(limit);
    }
    modes
}

/// Reads a mode from its columns. An unknown code excludes everything.
pub(crate) fn mode(code: i64, permits: i64, limit: i64) -> Mode {
    match code {
        0 => Mode::Shared,
        1 => Mode::Slots {
            permits: u32::try_from(permits).unwrap_or(u32::MAX),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        },
        _ => Mode::Exclusive,
    }
}
