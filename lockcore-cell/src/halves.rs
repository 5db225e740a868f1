//! Steps on a part of a set, where each id has a cell of its own: all of it may be too long for a write, by those who wait for its ids,
//! or one of its cells cannot be read.

use std::{ops::Range, sync::Arc};

use futures_util::future::join_all;
use lockcore::backend::Withdraw;

use crate::{
    cell::Cell,
    error::StoreError,
    step::{Hold, Losses, Request},
    store::Store,
};

/// The outcome of a step that was made in halves.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    pub(crate) lost: Losses,
    /// The locks of which a part could not be made, by position, and why.
    pub(crate) failed: Vec<(Range<usize>, StoreError)>,
}

impl<C: Cell> Store<C> {
    /// Makes a step on all that is held, or on the halves of what it cannot be made on, down to single ids.
    pub(crate) async fn in_halves<F: Future<Output = Result<Losses, StoreError>>>(
        &self,
        hold: Hold,
        step: impl Fn(Hold) -> F,
    ) -> Result<Halves, StoreError> {
        let all = hold.locks.len();
        let (mut halves, mut left) = (Halves::default(), vec![(0, hold)]);
        while let Some((first, mut hold)) = left.pop() {
            let count = hold.locks.len();
            match step(hold.clone()).await {
                Ok(lost) => {
                    let lost = lost.into_iter().map(|(position, reason)| (first + position, reason));
                    halves.lost.extend(lost);
                }
                Err(error) if count > 1 && self.is_apart() && error.is_of_some() => {
                    let rest = hold.locks.split_off(count / 2);
                    left.push((first + count / 2, Hold { locks: rest, ..hold.clone() }));
                    left.push((first, hold));
                }
                Err(error) if count == all => return Err(error),
                Err(error) => halves.failed.push((first..first + count, error)),
            }
        }
        Ok(halves)
    }

    /// Undoes an attempt in the cell of each of its ids by itself. Each has a tombstone then, for as long as a place that is left in one of
    /// them may be found; that of the first id refuses a late request.
    pub(crate) async fn undo_each(self: &Arc<Self>, request: &Request) -> Result<(), StoreError> {
        let first = request.ids().min();
        let steps = request.claims.iter().map(|claim| {
            let lease = if Some(&claim.id) == first { request.lease } else { 0 };
            let alone = Request { claims: vec![claim.clone()], lease, ..request.clone() };
            let parts = self.parts(alone.ids());
            self.submit(parts, false, move |step| step.withdraw(&alone, Withdraw::Undo).map(drop))
        });
        join_all(steps).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// Leaves the queue, if the request has a place: with those that stay behind it, a write of what it wants is too long.
    pub(crate) async fn leave_queue(self: &Arc<Self>, request: &Request) -> Result<(), StoreError> {
        let known = self.view(&self.parts(request.ids()));
        if known.table.ticket_of(&request.context, request.attempt).is_none() {
            return Ok(());
        }
        let steps = request.claims.iter().map(|claim| {
            let alone = Request { claims: vec![claim.clone()], ..request.clone() };
            let parts = self.parts(alone.ids());
            self.submit(parts, false, move |step| step.leave_queue(&alone))
        });
        join_all(steps).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}
