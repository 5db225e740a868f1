//! One server of each kind for all tests of a process.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Kind, Server, ServerError, Way};

type Shared = Mutex<Option<Result<Arc<Server>, ServerError>>>;

static SHARED: [Shared; Kind::ALL.len()] = [const { Mutex::const_new(None) }; Kind::ALL.len()];

/// Returns the server of this kind that tests share: the one whose URL is in the environment, else one that this
/// process starts at the first call.
///
/// A test that pauses or kills starts its own with [`Server::start`]; every other takes this one and
/// makes a schema, table or namespace of its own in it.
///
/// # Errors
/// As [`Server::start_by`]; later calls return the first call's error.
pub async fn shared(kind: Kind) -> Result<Arc<Server>, ServerError> {
    // Held while the server starts: the others wait for it.
    let mut shared = SHARED[kind as usize].lock().await;
    match &*shared {
        Some(known) => known.clone(),
        None => {
            let found = match Server::start_by(kind, Way::Url).await {
                Err(ServerError::Unavailable { .. }) => Server::start_for_many(kind).await,
                found => found,
            };
            shared.insert(found.map(Arc::new)).clone()
        }
    }
}

/// Removes the shared servers that no test uses any more, as [`run`](super::run) does at its end.
///
/// Without this call they are removed shortly after the end of the process.
pub async fn forget_shared() {
    for shared in &SHARED {
        let server = shared.lock().await.take();
        // Blocks until it is removed, and may do so: there is nothing else to do.
        drop(server);
    }
}
