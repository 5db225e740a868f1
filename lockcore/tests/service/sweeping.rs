//! The sweep in the background.

use std::time::Duration;

use lockcore::LockingService;
use pollster::block_on;

use super::rigged::{Rigged, eventually};

/// The first step of a sweep leaves it to another process that has swept just now; what follows goes on until nothing is left.
#[test]
fn one_process_sweeps_until_nothing_is_left() {
    let dao = Rigged::new();
    let dead = LockingService::builder(dao.clone()).sweep(None, 1).build().unwrap();
    let lease = Duration::from_millis(1);
    for id in ["a", "b", "c"] {
        block_on(dead.lease(lease).lock([id])).unwrap().leave();
    }
    std::thread::sleep(lease * 5);
    assert_eq!(dao.sweeps(), []);

    let every = Duration::from_millis(20);
    let locks = LockingService::builder(dao.clone()).sweep(Some(every), 1).build().unwrap();
    let held = block_on(locks.lock(["d"])).unwrap();
    eventually("it sweeps", || dao.sweeps().len() > 4);
    let elected = Some(every / 2);
    assert_eq!(dao.sweeps()[..5], [elected, None, None, None, elected]);
    assert_eq!(dao.memory.current().len(), 1, "what is live stays");
    block_on(held.release()).unwrap();
}
