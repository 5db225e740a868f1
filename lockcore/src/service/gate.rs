//! The in-process gate: of this process's own waiters for an id only the first asks the store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

/// One fair queue for each id that calls of this process wait for.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    turns: Mutex<HashMap<String, Arc<FairMutex<()>>>>,
}

/// The right to ask the store for some ids; the next waiter has it when this is dropped.
pub(crate) struct Turn<'a> {
    gate: &'a Gate,
    ids: Vec<(String, Option<OwnedMutexGuard<()>>)>,
}

impl Gate {
    /// Waits for the turn of all `ids`, which are in the order of their stored forms: so no two waiters
    /// wait for each other.
    pub(crate) async fn turn(&self, ids: impl Iterator<Item = String>) -> Turn<'_> {
        let mut turn = Turn { gate: self, ids: Vec::new() };
        for id in ids {
            let queue = self.turns().entry(id.clone()).or_default().clone();
            // Entered first, so that a waiter that gives up here also clears up.
            turn.ids.push((id, None));
            let mine = queue.lock_owned().await;
            turn.ids.last_mut().expect("just pushed").1 = Some(mine);
        }
        turn
    }

    fn turns(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<FairMutex<()>>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Out of the lock: dropping a turn wakes a task.
        self.ids.iter_mut().for_each(|(_, mine)| drop(mine.take()));
        let mut turns = self.gate.turns();
        for (id, _) in self.ids.drain(..) {
            if turns.get(&id).is_some_and(|queue| Arc::strong_count(queue) == 1) {
                turns.remove(&id);
            }
        }
    }
}
