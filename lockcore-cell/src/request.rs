//! Requests and grants in stored forms.

use lockcore::{backend::AttemptId, engine};

use crate::table::{Claim, Table};

/// A request in stored forms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    pub(crate) claims: Vec<Claim>,
    pub(crate) lease: u64,
    pub(crate) owner: String,
    pub(crate) queue: bool,
    pub(crate) nested: bool,
}

/// A grant in stored forms: ids with fences.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    pub(crate) context: String,
    pub(crate) locks: Vec<(String, u64)>,
    pub(crate) lease: u64,
}

impl engine::Request for Request {
    type Id = String;
    type Context = String;

    fn context(&self) -> &String {
        &self.context
    }

    fn attempt(&self) -> AttemptId {
        AttemptId(self.attempt)
    }

    fn nested(&self) -> bool {
        self.nested
    }

    fn queue(&self) -> bool {
        self.queue
    }

    fn claims(&self) -> impl Iterator<Item = (&String, lockcore::Mode)> {
        self.claims.iter().map(|claim| (&claim.id, claim.mode))
    }
}

impl Request {
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.claims.iter().map(|claim| &claim.id)
    }

    /// Returns whether a request is to wait, has no place yet, and its context holds none of its ids: it is queued at least.
    pub(crate) fn is_new(&self, table: &Table) -> bool {
        let holds = |claim: &Claim| {
            let id = table.ids.get(&claim.id);
            id.is_some_and(|id| id.held.iter().any(|held| held.grant.context == self.context))
        };
        self.queue && table.ticket_of(&self.context, self.attempt).is_none() && !self.claims.iter().any(holds)
    }
}

impl Hold {
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.locks.iter().map(|(id, _)| id)
    }

    pub(crate) fn locks(&self) -> impl Iterator<Item = (&String, u64)> {
        self.locks.iter().map(|(id, fence)| (id, *fence))
    }
}
