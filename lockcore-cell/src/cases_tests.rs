//! Cases that an attack broke once, in virtual time: whole services over cells in memory, with the latencies of a bucket.

pub(crate) mod cells;
mod clock;
mod full;
mod renewing;
mod resting;
mod sessions;
mod several;
mod sweeping;
mod too_long;
mod unreadable;
mod waiting;
mod writing;

use std::time::Duration;

use lockcore::{
    ClaimSet, FreshContext, Grant, LockDao, LockingService, Mode, Owner, Target,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use uuid::Uuid;

use self::cells::Process;
use crate::CellLockDao;

type Locks = LockingService<String, Uuid, CellLockDao<Process>>;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

fn id(id: &str) -> Target<String> {
    Target::Id(id.to_owned())
}

fn request(ids: &[&str]) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::fresh(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(ids, Mode::Exclusive).expect("valid claims"),
        lease: Some(4 * 3600 * SECOND),
        owner: Owner::default(),
        queue: false,
        nested: false,
        detached: false,
    }
}

async fn take(dao: &CellLockDao<Process>, id: &str) -> Grant<String, Uuid> {
    let request = request(&[id]);
    match dao.acquire(&request).await.expect("the store answers") {
        Acquired::Granted(granted) => {
            Grant::new(request.context, request.claims.clone(), granted, request.lease)
        }
        other => panic!("{other:?}"),
    }
}
