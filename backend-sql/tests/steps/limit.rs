//! A server that takes no more connections of this user.

use std::sync::Arc;

use lockcore::{LockDao, backend::Acquired};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{Error, request, take};

/// More orders at once than there are connections, all of them held up until `go_on`: the server refuses one more connection.
/// That is told, and the connections that there are go on to be used.
pub(crate) async fn keeps_what_there_is(
    dao: &Arc<impl LockDao<String, Uuid>>,
    go_on: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let mut orders = JoinSet::new();
    for number in 0..8 {
        let dao = dao.clone();
        orders
            .spawn(async move { dao.acquire(&request([format!("a{number}"), format!("b{number}")])).await });
    }
    let first = orders.join_next().await.ok_or("there are some")??;
    let error = first.expect_err("only what gets no connection ends yet");
    assert!(!error.in_doubt() && error.is_retryable(), "{error:?}");
    go_on.await?;
    let mut granted = 0;
    while let Some(ended) = orders.join_next().await {
        granted += usize::from(matches!(ended?, Ok(Acquired::Granted(_))));
    }
    assert!(granted > 0, "one connection there was");
    take(dao, ["c"]).await?;
    Ok(())
}
