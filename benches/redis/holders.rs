//! What the server spends on one slot of an id, by its own account, however many hold another.

use lockcore::{Claim, Wait};
use lockcore_benches::Case;

use crate::{bare::Meter, service};

/// With so many holders: taking and freeing one more, and renewing one.
pub(crate) async fn of_one_id(url: &str, holders: usize) -> Case {
    const ROUNDS: u32 = 200;
    let candidates = ["take one more", "renew", "release", "refuse"];
    let mut case = Case::new(format!("{holders} holders of a slot id, server time"), &candidates);
    let (locks, name) = (service(url).await, format!("held by {holders}"));
    let claim = || Claim::slots(name.clone(), 100_000);
    let mut held = Vec::with_capacity(holders);
    for _ in 0..holders {
        held.push(locks.lock([claim()]).await.expect("there are slots enough"));
    }
    let mut meter = Meter::new(url).await;
    for _ in 0..ROUNDS {
        let more = meter.once(case.times(0), locks.lock([claim()])).await.expect("there are slots enough");
        let grant = more.leave();
        let dao = locks.dao();
        meter.once(case.times(1), lockcore::LockDao::renew(dao, &grant)).await.expect("redis");
        meter.once(case.times(2), lockcore::LockDao::release(dao, &grant)).await.expect("redis");
        let alone = locks.wait(Wait::never()).lock([Claim::exclusive(name.clone())]);
        meter.once(case.times(3), alone).await.map(drop).expect_err("it is held");
    }
    for guard in held {
        guard.release().await.expect("redis");
    }
    case
}
