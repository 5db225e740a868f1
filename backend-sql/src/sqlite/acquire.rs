//! Taking a set.

use lockcore::{
    Granted,
    engine::{self, Reasons, Table as _},
};

use super::{
    error::StoreError,
    row::{Request, Text},
    step::Step,
};

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Verdict {
    Granted(Vec<Granted>),
    Refused(Reasons<Text>),
    Queued {
        conflicts: Reasons<Text>,
        /// The time until the first lease in the way ends, in microseconds from now.
        first_end: i64,
    },
}

/// Takes the whole set, or nothing of it; with `heartbeat` one is written where a place is taken.
pub(super) fn acquire(
    step: &mut Step<'_>,
    request: &Request,
    heartbeat: bool,
) -> Result<Verdict, StoreError> {
    // The usual case: there is nothing to decide, and nothing to be noted for a decision.
    if !step.is_withdrawn(request)? && step.load_all(&request.claims)? {
        return step.grant_unused(request).map(Verdict::Granted);
    }
    Ok(match engine::acquire(step, request)? {
        engine::Verdict::Withdrawn => return Err(StoreError::Withdrawn),
        engine::Verdict::Granted(granted) => Verdict::Granted(granted),
        engine::Verdict::Refused(conflicts) => Verdict::Refused(conflicts),
        engine::Verdict::Queued(conflicts) => {
            if heartbeat {
                step.heartbeat()?;
            }
            let holders = request.claims.iter().flat_map(|claim| &step.ids[&claim.id].holders);
            let first_end = holders.map(|row| row.remaining(&step.now)).min().unwrap_or(i64::MAX);
            Verdict::Queued { conflicts, first_end }
        }
    })
}
