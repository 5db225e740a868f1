//! The last process of a run: it locks each id.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use lockcore::{LockingService, Wait};

use crate::{
    history::{Claim, Mode, Outcome, Recorder, Stage},
    worker::{self, Plan},
};

/// How long a store may fail after the last fault.
const STORE_PATIENCE: Duration = Duration::from_secs(120);

/// How many ids are locked at once: each may need a connection.
const AT_ONCE: usize = 200;

/// Locks each id, when what killed workers held has ended with its lease. `report` gets what was in the way. Returns why the store
/// failed, if it did to the last.
pub async fn audit(
    locks: &LockingService,
    plan: &Plan,
    recorder: &Recorder,
    report: impl Fn(String),
) -> Option<String> {
    let one = async |number: u64| {
        let claim = Claim { id: worker::id(number), mode: Mode::Exclusive };
        let (op, id) = (recorder.next_op(), claim.id.clone());
        recorder.now(op, Stage::Asked { claims: vec![claim], nested: false });
        let wait = plan.lease * 4 + Duration::from_secs(10);
        let begun = Instant::now();
        // A machine that is busy with other stores may not answer in time; only a lock that is in the way is a violation.
        let (outcome, failure) = loop {
            let ended = locks.wait(Wait::up_to(wait)).run_locked([id.clone()], async || {}).await;
            let error = ended.as_ref().err().map(ToString::to_string);
            if let Some(error) = &error {
                report(format!("{id} is not locked {:.1?} after the run: {error}", begun.elapsed()));
            }
            let outcome = worker::outcome(ended);
            if outcome != Outcome::Failed || begun.elapsed() > STORE_PATIENCE {
                break (outcome, error.filter(|_| outcome == Outcome::Failed));
            }
        };
        recorder.now(op, Stage::Ended { outcome });
        failure
    };
    let failures: Vec<_> = stream::iter(0..plan.ids).map(one).buffer_unordered(AT_ONCE).collect().await;
    recorder.now(0, Stage::Finished);
    failures.into_iter().flatten().next()
}
