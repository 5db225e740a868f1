//! Long random histories, compared step by step with a plain model of what a store has to do.

use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};

use crate::{
    Backend, Store,
    player::{Op, Player, Wanted},
};

/// The seed of the histories, unless `LOCKCORE_TEST_SEED` names another.
const SEED: u64 = 20_261_120;

/// 2, 3.7, 3.8, 4, 6: whatever many contexts do, in any order, every answer is the model's, and in the end
/// nothing is left. Nothing expires in these histories.
pub async fn random_histories_agree_with_the_model<B: Backend>(store: Store<B>) {
    play(&store, 1, 48, vec(op(false), 1..90));
}

/// 2.7 and 2.9: the same with holders that die, whose locks are found expired by whoever comes next.
pub async fn histories_with_deaths_agree_with_the_model<B: Backend>(store: Store<B>) {
    play(&store, 2, 6, vec(op(true), 1..30));
}

/// Plays histories one after the other, all in the same store, on ids and contexts of their own. One that
/// fails is shrunk.
fn play<B: Backend>(store: &Store<B>, kind: u64, cases: u32, histories: impl Strategy<Value = Vec<Op>>) {
    let seed = number("LOCKCORE_TEST_SEED").unwrap_or(SEED);
    let cases = number("LOCKCORE_TEST_CASES").map_or(cases, |cases| cases as u32);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_time: 60_000,
        max_shrink_iters: 5_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&kind.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let played = AtomicUsize::new(0);
    let result = runner.run(&histories, |ops| {
        let number = played.fetch_add(1, Ordering::Relaxed);
        tokio::task::block_in_place(|| {
            let run = Player::new(store, number).play(&ops);
            let limit = Duration::from_secs(60);
            let run = async { tokio::time::timeout(limit, run).await.expect("a history comes to its end") };
            tokio::runtime::Handle::current().block_on(run);
        });
        Ok(())
    });
    let Err(error) = result else { return };
    let played = played.into_inner();
    match error {
        TestError::Fail(why, ops) => {
            let steps: String = ops.iter().map(|op| format!("\n    {op:?},")).collect();
            panic!(
                "LOCKCORE_TEST_SEED={seed}, history {played}: {why}\nthe shortest that fails so: [{steps}\n]"
            );
        }
        TestError::Abort(why) => panic!("LOCKCORE_TEST_SEED={seed}, history {played}: given up: {why}"),
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value:?} is not a number")))
}

fn op(deaths: bool) -> impl Strategy<Value = Op> {
    let n = 0..1000_usize;
    prop_oneof![
        12 => (n.clone(), claims(), any::<bool>(), 0..8_u8).prop_map(|(who, claims, queue, nested)| {
            Op::Acquire { who, claims, queue, nested: nested == 0 }
        }),
        10 => n.clone().prop_map(|grant| Op::Release { grant }),
        2 => (n.clone(), n.clone()).prop_map(|(grant, who)| Op::Forge { grant, who }),
        3 => n.clone().prop_map(|grant| Op::Renew { grant }),
        3 => n.clone().prop_map(|attempt| Op::Again { attempt }),
        2 => n.clone().prop_map(|attempt| Op::Leave { attempt }),
        2 => n.clone().prop_map(|attempt| Op::Undo { attempt }),
        1 => (n.clone(), claims()).prop_map(|(who, claims)| Op::UndoUnsent { who, claims }),
        2 => (n.clone(), any::<bool>()).prop_map(|(lock, now)| Op::Break { lock, now }),
        1 => (n.clone(), any::<bool>()).prop_map(|(id, frozen)| Op::Freeze { id, frozen }),
        1 => Just(Op::Sweep),
        1 => n.clone().prop_map(|who| Op::ReleaseContext { who }),
        2 => n.clone().prop_map(|id| Op::Inspect { id }),
        4 => (n, claims()).prop_map(move |(who, claims)| match deaths {
            true => Op::Die { claims },
            false => Op::Acquire { who, claims, queue: false, nested: false },
        }),
    ]
}

fn claims() -> impl Strategy<Value = Vec<(usize, Wanted)>> {
    let wanted = prop_oneof![
        3 => Just(Wanted::Exclusive),
        3 => Just(Wanted::Shared),
        4 => (1..4_u32, 0..4_u32).prop_map(|(permits, more)| Wanted::Slots { permits, limit: permits + more }),
    ];
    vec((0..1000_usize, wanted), 1..4)
}
