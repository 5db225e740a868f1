//! Listening: a connection of its own on which this process is notified.

use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};

use super::error::{failed, unconnected};
use crate::server::{Heard, ServerError};

/// Listens on one channel.
pub(super) async fn listen(options: PgConnectOptions, channel: &str) -> Result<PgListener, ServerError> {
    // A pool of its own: a listener keeps its connection for ever.
    let pool: PgPool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
        .connect_with(options)
        .await
        .map_err(unconnected)?;
    let mut listener = PgListener::connect_with(&pool).await.map_err(unconnected)?;
    listener.listen(channel).await.map_err(unconnected)?;
    Ok(listener)
}

/// The next thing heard.
pub(super) async fn hear(listener: &mut PgListener) -> Result<Heard, ServerError> {
    // `try_recv`, because it tells of a connection that was lost; not all losses, but then it fails.
    Ok(match listener.try_recv().await.map_err(failed)? {
        Some(notification) => Heard::Told(notification.payload().to_owned()),
        None => Heard::Gap,
    })
}
