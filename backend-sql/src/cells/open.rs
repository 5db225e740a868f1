//! Opening: tables are made if they are missing, and the namespace is entered.

use std::sync::{Arc, PoisonError};

use lockcore::{BackendError, BackendErrorKind, backend::shared_runtime};

use super::{Ask, CellOptions, Shared, SqlCells, Statements};
use crate::server::{ServerError, patience};

/// Connects with [prepared](super::prepare) settings, on the library's runtime, as all calls are made: a caller needs none.
pub(crate) async fn opened<S: Statements>(
    server: S,
    options: &CellOptions,
) -> Result<SqlCells<S>, BackendError> {
    let shared = Arc::new(Shared::new(server, options));
    let opening = shared.clone();
    let opened = shared_runtime().spawn(async move { opening.open().await }).await;
    let ended = |_| BackendError::new(BackendErrorKind::Unavailable, "the runtime of the library ended");
    opened.map_err(ended)?.map_err(|error| error.at(shared.pool.engine.address()))?;
    Ok(SqlCells(shared))
}

impl<S: Statements> Shared<S> {
    async fn open(&self) -> Result<(), ServerError> {
        if let Err(error) = self.ask_within(self.limit, &Ask::Enter).await {
            self.make(error).await?;
            self.ask_within(self.limit, &Ask::Enter).await?;
        }
        let version = self.ask_within(self.limit, &Ask::Version).await?.text;
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
        Ok(())
    }

    /// Makes the tables, if `error` says that they are missing and this program may make them.
    async fn make(&self, error: ServerError) -> Result<(), ServerError> {
        let is_missing =
            matches!(error, ServerError::Database { .. }) && error.kind() == BackendErrorKind::Misconfigured;
        if !is_missing {
            return Err(error);
        }
        let settings = self.pool.engine.settings();
        let place = self.pool.engine.location();
        let missing = |why: &str| {
            let what = format!(
                "{place}: there are no tables for locks without routines{why}: let a user who may create tables open it, or run \
                 what `lockctl migrate --print sql` prints with routines=no"
            );
            Err(ServerError::Misconfigured { backend: S::NAME, what })
        };
        if !settings.migrates() {
            return missing("");
        }
        let limit = patience(settings.timeout);
        match self.ask_within(limit, &Ask::Make).await {
            Err(error) if error.kind() == BackendErrorKind::Denied => {
                missing(&format!(", and this user may not create them ({error})"))
            }
            made => made.map(drop),
        }
    }
}
