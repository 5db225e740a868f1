//! Sets of more ids than one transaction takes.

use std::sync::Arc;

use lockcore::{BadRequest, LockingError, LockingService};
use lockcore_conformance::servers::{Kind, TestResult, Trial, trial};

use crate::engine::front::rig::Rig;

pub(crate) fn tests() -> Vec<Trial> {
    vec![trial(Kind::DynamoDb, "large_sets::they_are_refused_before_anything_is_sent", refused)]
}

async fn refused() -> TestResult {
    for (strict, most) in [(false, 100), (true, 50)] {
        let rig = Rig::with(|builder| builder.strict_fence(strict)).await?;
        let locks = LockingService::new(Arc::into_inner(rig.dao).expect("no other has it"));
        let ids: Vec<String> = (0..=most).map(|number| number.to_string()).collect();
        let outcome = locks.with_locks(ids, || async { Ok::<_, std::io::Error>(()) }).await;
        let Err(LockingError::BadRequest(BadRequest::TooManyIds { count, max, .. })) = outcome else {
            panic!("not refused: {outcome:?}");
        };
        assert_eq!((count, max), (most + 1, most));
        assert!(rig.front.counted().is_empty(), "nothing was sent");
    }
    Ok(())
}
