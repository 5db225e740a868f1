//! Long random histories, compared step by step with a plain model of what a store has to do.

use std::{env, time::Duration};

use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use tokio::time::timeout;

use crate::{
    Backend, PATIENCE, Store,
    judge::{self, late},
    player::{Op, Player, Wanted},
};

/// The seed of the histories, unless `LOCKCORE_TEST_SEED` names another.
const SEED: u64 = 20_261_120;

/// 2, 3.7, 3.8, 4, 6: whatever many contexts do, in any order, every answer is the model's, and in the end
/// nothing is left. Nothing expires in these histories.
pub async fn random_histories_agree_with_the_model<B: Backend>(store: Store<B>) {
    play(&store, 1, 48, vec(op(false), 80));
}

/// 2.7 and 2.9: the same with holders that die, whose locks are found expired by the next caller.
pub async fn histories_with_deaths_agree_with_the_model<B: Backend>(store: Store<B>) {
    play(&store, 2, 6, vec(op(true), 24));
}

/// 2, 3.7, 3.8, 4, 6: the same for every history of `length` steps of two callers on one or two ids, so that no order of
/// them is left out. For stores that answer within microseconds.
pub async fn every_short_history_agrees_with_the_model<B: Backend>(store: Store<B>, length: u32) {
    let steps = short_steps();
    for number in 0..steps.len().pow(length) {
        let step = |place| steps[number / steps.len().pow(place) % steps.len()].clone();
        let history: Vec<Op> = (0..length).map(step).collect();
        if let Some(failure) = failure(&store, &history, Duration::from_secs(5)) {
            panic!("{failure}: {history:?}");
        }
    }
}

/// What may happen next in a short history. Releases and the like refer to the request of the first step that made one.
fn short_steps() -> Vec<Op> {
    let acquire = |who, wanted: &[(usize, Wanted)], queue| {
        let claims = wanted.to_vec();
        Op::Acquire { who, claims, queue, nested: false }
    };
    use Wanted::{Exclusive, Shared};
    let slot = Wanted::Slots { permits: 1, limit: 2 };
    vec![
        acquire(0, &[(0, Exclusive)], true),
        acquire(1, &[(0, Exclusive), (1, Exclusive)], true),
        acquire(0, &[(0, Shared)], true),
        acquire(1, &[(0, Shared)], true),
        acquire(0, &[(0, slot)], true),
        acquire(1, &[(0, slot), (1, Shared)], false),
        Op::Release { back: 0, live: true },
        Op::Release { back: 1, live: true },
        Op::Renew { back: 0, live: true },
        Op::Again { back: 0 },
        Op::Leave { back: 1 },
        Op::Undo { back: 0 },
        Op::Undo { back: 1 },
        Op::Break { back: 0, lock: 0, live: true, now: true },
        Op::Freeze { id: 0, frozen: true },
        Op::ReleaseContext { who: 0 },
    ]
}

/// Plays histories one after the other, all in the same store, on ids and contexts of their own. One that
/// fails is shrunk.
fn play<B: Backend>(store: &Store<B>, kind: u64, cases: u32, histories: impl Strategy<Value = Vec<Op>>) {
    let seed = number("LOCKCORE_TEST_SEED").unwrap_or(SEED);
    let cases = number("LOCKCORE_TEST_CASES").map_or(cases, |cases| cases as u32);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&kind.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut generator = TestRunner::new_with_rng(Config::default(), rng);
    for case in 0..cases {
        let history = histories.new_tree(&mut generator).expect("nothing is rejected").current();
        let kept_up = judge::watch();
        if let Some(failure) = failure(store, &history, Duration::from_secs(5)) {
            if !kept_up() || failure == UNENDED {
                // To look for what is enough would take long, and find nothing.
                late(format_args!("LOCKCORE_TEST_SEED={seed}, history {case}: {failure}"));
            }
            let shortest = shrunk(store, history);
            let steps = shortest.iter().filter(|op| !matches!(op, Op::Skip));
            let steps: String = steps.map(|op| format!("\n    {op:?},")).collect();
            panic!(
                "LOCKCORE_TEST_SEED={seed}, history {case}: {failure}; these steps are enough: [{steps}\n]"
            );
        }
    }
}

/// The failure of a history that did not end in time.
const UNENDED: &str = "it did not end";

/// Returns why a history does not agree with the model, if it does not. `patience` is how long a waiter may take to notice its turn.
fn failure<B: Backend>(store: &Store<B>, history: &[Op], patience: Duration) -> Option<String> {
    let play = async { timeout(PATIENCE * 2, Player::new(store, patience).play(history)).await };
    let play = || tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(play));
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)) {
        Ok(Ok(())) => None,
        Ok(Err(_)) => Some(UNENDED.to_owned()),
        Err(panic) => Some(judge::message(&*panic)),
    }
}

/// Leaves out as many steps of a history that fails as possible, so that it still does: halves first, then
/// quarters, down to single steps.
fn shrunk<B: Backend>(store: &Store<B>, mut history: Vec<Op>) -> Vec<Op> {
    // Short, for it is waited for each time that the history still fails.
    let patience = Duration::from_millis(300);
    let mut length = history.len() / 2;
    while length > 0 {
        let mut left_out = false;
        for start in (0..history.len()).step_by(length) {
            let end = (start + length).min(history.len());
            if history[start..end].iter().all(|op| matches!(op, Op::Skip)) {
                continue;
            }
            let mut fewer = history.clone();
            fewer[start..end].fill(Op::Skip);
            if failure(store, &fewer, patience).is_some() {
                history = fewer;
                left_out = true;
            }
        }
        if !(left_out && length == 1) {
            length /= 2;
        }
    }
    history
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value:?} is not a number")))
}

fn op(deaths: bool) -> impl Strategy<Value = Op> {
    let n = 0..1000_usize;
    let (back, who, id) = (n.clone(), 0..1000_usize, 0..1000_usize);
    let live = || any::<bool>();
    prop_oneof![
        1 => Just(Op::Sweep),
        2 => id.clone().prop_map(|id| Op::Inspect { id }),
        3 => (back.clone(), live()).prop_map(|(back, live)| Op::Renew { back, live }),
        10 => (back.clone(), 0..4_u8).prop_map(|(back, live)| Op::Release { back, live: live > 0 }),
        12 => (who.clone(), claims(), any::<bool>(), 0..8_u8).prop_map(|(who, claims, queue, nested)| {
            Op::Acquire { who, claims, queue, nested: nested == 7 }
        }),
        2 => (back.clone(), who.clone()).prop_map(|(back, who)| Op::Forge { back, who }),
        3 => back.clone().prop_map(|back| Op::Again { back }),
        2 => back.clone().prop_map(|back| Op::Leave { back }),
        2 => back.clone().prop_map(|back| Op::Undo { back }),
        1 => (who.clone(), claims()).prop_map(|(who, claims)| Op::UndoUnsent { who, claims }),
        2 => (back, n, live(), any::<bool>())
            .prop_map(|(back, lock, live, now)| Op::Break { back, lock, live, now }),
        1 => (id, any::<bool>()).prop_map(|(id, frozen)| Op::Freeze { id, frozen }),
        1 => who.clone().prop_map(|who| Op::ReleaseContext { who }),
        4 => (who, claims()).prop_map(move |(who, claims)| match deaths {
            true => Op::Die { claims },
            false => Op::Acquire { who, claims, queue: false, nested: false },
        }),
    ]
}

fn claims() -> impl Strategy<Value = Vec<(usize, Wanted)>> {
    vec((0..1000_usize, wanted()), 1..4)
}

fn wanted() -> impl Strategy<Value = Wanted> {
    prop_oneof![
        3 => Just(Wanted::Exclusive),
        3 => Just(Wanted::Shared),
        4 => (1..4_u32, 0..4_u32).prop_map(|(permits, more)| Wanted::Slots { permits, limit: permits + more }),
    ]
}
