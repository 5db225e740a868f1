//! Requests in stored form, as the steps and the engine take them.

use lockcore::{Mode, Owner, backend::AttemptId, engine};

/// A request in stored form.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) context: String,
    pub(crate) attempt: u64,
    pub(crate) claims: Vec<StoredClaim>,
    /// In microseconds.
    pub(crate) lease: u64,
    pub(crate) owner: Owner,
}

/// One claim in stored form.
#[derive(Clone, Debug)]
pub(crate) struct StoredClaim {
    pub(crate) key: String,
    pub(crate) mode: Mode,
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
        false
    }

    fn queue(&self) -> bool {
        false
    }

    fn claims(&self) -> impl Iterator<Item = (&String, Mode)> {
        self.claims.iter().map(|claim| (&claim.key, claim.mode))
    }
}
