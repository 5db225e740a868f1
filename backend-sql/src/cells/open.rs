//! Opening: tables are made if they are missing, and the namespace is entered.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind, backend::shared_runtime};

use super::{CellOptions, Shared, SqlCells, Statements, server::Ask};
use crate::server::{ServerError, patience};

/// Connects with [prepared](super::prepare) settings, on the library's runtime, as all calls are made: a caller needs none. Each request
/// has the time of a step: nothing tries it again.
pub(crate) async fn opened<S: Statements>(
    server: S,
    options: &CellOptions,
    step: Duration,
) -> Result<SqlCells<S>, BackendError> {
    let shared = Arc::new(Shared::new(server, options));
    let opening = shared.clone();
    let opened = shared_runtime().spawn(async move { opening.open(step).await }).await;
    let ended = |_| BackendError::new(BackendErrorKind::Unavailable, "the runtime of the library ended");
    opened.map_err(ended)?.map_err(|error| error.at(shared.pool.engine.address()))?;
    Ok(SqlCells(shared))
}

impl<S: Statements> Shared<S> {
    async fn open(&self, step: Duration) -> Result<(), ServerError> {
        if let Err(error) = self.ask_within(step, &Ask::Enter).await {
            self.make(error).await?;
            self.ask_within(step, &Ask::Enter).await?;
        }
        let version = self.ask_within(step, &Ask::Version).await?.text;
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
        Ok(())
    }

    /// Makes the tables, if `error` says that they are missing and this program may make them. MySQL tells a user who has no right to a
    /// table nothing of whether there is one.
    async fn make(&self, error: ServerError) -> Result<(), ServerError> {
        use BackendErrorKind::{Denied, Misconfigured};
        let may_be_missing =
            matches!(error, ServerError::Database { .. }) && matches!(error.kind(), Denied | Misconfigured);
        if !may_be_missing {
            return Err(error);
        }
        let settings = self.pool.engine.settings();
        let place = self.pool.engine.location();
        let missing = |error: &ServerError| ServerError::Misconfigured {
            backend: S::NAME,
            what: format!(
                "{place}: there are no tables for locks without routines that this user may use: let one who may create tables open it, \
                 or run what `lockctl migrate --print sql` prints with routines=no, and let this user read and write them \
                 ({error})"
            ),
        };
        if !settings.migrates() {
            return Err(missing(&error));
        }
        match self.ask_within(patience(settings.timeout), &Ask::Make).await {
            Err(error) if error.kind() == Denied => Err(missing(&error)),
            made => made.map(drop),
        }
    }
}
