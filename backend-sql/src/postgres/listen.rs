//! Listening: a connection of its own on which this process is notified.

use std::io;

use sqlx::{
    Executor, PgPool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions, PgSslMode},
};

use super::error::{failed, unconnected};
use crate::server::{ServerError, is_unusable};

/// Listens on one channel.
pub(super) async fn listen(options: PgConnectOptions, channel: &str) -> Result<PgListener, ServerError> {
    // A pool of its own: a listener keeps its connection for ever.
    let of_one = || {
        let of_one = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        of_one.test_before_acquire(false)
    };
    let pool: PgPool = match of_one().connect_with(options.clone()).await {
        Err(error) => match without_tls(&options, &error) {
            Some(plain) => of_one().connect_with(plain).await.map_err(|_| unconnected(error))?,
            None => return Err(unconnected(error)),
        },
        Ok(pool) => pool,
    };
    let mut listener = PgListener::connect_with(&pool).await.map_err(unconnected)?;
    // A lost connection is replaced by the caller, which also makes sure that the new one works.
    listener.eager_reconnect(false);
    listener.listen(channel).await.map_err(unconnected)?;
    Ok(listener)
}

/// Returns the options without TLS, if that is only preferred, and impossible with the certificate of the server.
pub(super) fn without_tls(options: &PgConnectOptions, error: &sqlx::Error) -> Option<PgConnectOptions> {
    let is_preferred = matches!(options.get_ssl_mode(), PgSslMode::Prefer);
    if !is_preferred || !is_unusable(error) {
        return None;
    }
    tracing::warn!(%error, "TLS is impossible with the server's certificate, connecting without it");
    Some(options.clone().ssl_mode(PgSslMode::Disable))
}

/// Waits for the next notification.
pub(super) async fn receive(listener: &mut PgListener) -> Result<String, ServerError> {
    match listener.try_recv().await.map_err(failed)? {
        Some(notification) => Ok(notification.payload().to_owned()),
        None => Err(failed(io::Error::from(io::ErrorKind::ConnectionAborted).into())),
    }
}

/// Returns once the server has answered on the connection that listens.
pub(super) async fn probe(listener: &mut PgListener) -> Result<(), ServerError> {
    // The listener keeps what is notified meanwhile for `receive`. An empty statement is answered without a
    // transaction.
    listener.execute(sqlx::raw_sql(";")).await.map(drop).map_err(failed)
}
