//! Steps on a part of a set, where each id has a cell of its own: all of it may be too long for a write, by those who wait for its ids,
//! or one of its cells cannot be read.

use std::{ops::Range, sync::Arc};

use futures_util::future::join_all;
use lockcore::backend::Withdraw;

use crate::{
    cell::Cell,
    error::StoreError,
    request::{Hold, Request},
    step::{Losses, Step},
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

    /// Undoes an attempt in the cell of each of its ids by itself. Each has a tombstone then: a place that is left in one of them counts no
    /// more where it is seen together with another one. That of the first id also refuses a late request. The others are many, and `last`
    /// as long only where a cell cannot be read, which keeps the place.
    pub(crate) async fn undo_each(self: &Arc<Self>, request: &Request, last: bool) -> Result<(), StoreError> {
        let first = request.ids().min().cloned();
        let undo = move |step: &mut Step<'_>, alone: &Request| {
            let lease = if last || alone.ids().next() == first.as_ref() { alone.lease } else { 0 };
            step.withdraw(&Request { lease, ..alone.clone() }, Withdraw::Undo);
        };
        self.for_each_id(request, undo).await
    }

    /// Leaves the queue, if the request has a place: with those that stay behind it, a write of what it wants is too long.
    pub(crate) async fn leave_queue(self: &Arc<Self>, request: &Request) -> Result<(), StoreError> {
        let known = self.view(&self.parts(request.ids()));
        match known.table.ticket_of(&request.context, request.attempt) {
            Some(_) => self.for_each_id(request, |step, alone| step.leave_queue(alone)).await,
            None => Ok(()),
        }
    }

    /// Makes a step for each id of a request by itself.
    async fn for_each_id(
        self: &Arc<Self>,
        request: &Request,
        apply: impl Fn(&mut Step<'_>, &Request) + Clone + Send + 'static,
    ) -> Result<(), StoreError> {
        let steps = request.claims.iter().map(|claim| {
            let (alone, apply) = (Request { claims: vec![claim.clone()], ..request.clone() }, apply.clone());
            self.submit(self.parts(alone.ids()), move |step| apply(step, &alone))
        });
        join_all(steps).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}
