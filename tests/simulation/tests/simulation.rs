//! Some seconds of fixed seeds, and a minute of new ones in `./test.sh all`. `docs/src/reliability.md` says how to replay one.

use std::{
    error::Error,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use lockcore_conformance::servers::{self, TestResult, Trial};
use lockcore_simulation::{Broken, Plan, Run, World, run, shrink};

fn main() -> ExitCode {
    let mut trials = vec![
        trial("memory::fixed_seeds_break_no_promise", || fixed(World::Memory, 0..5)),
        trial("cell::fixed_seeds_break_no_promise", || fixed(World::Cell, 0..5)),
        trial("cells::fixed_seeds_break_no_promise", || fixed(World::Cells, 0..5)),
        trial("dynamo::fixed_seeds_break_no_promise", || fixed(World::Dynamo, 0..5)),
        trial("memory::a_seed_repeats", || repeats(World::Memory, 3)),
        trial("cell::a_seed_repeats", || repeats(World::Cell, 3)),
        trial("cells::a_seed_repeats", || repeats(World::Cells, 3)),
        trial("dynamo::a_seed_repeats", || repeats(World::Dynamo, 3)),
        trial("memory::new_seeds_break_no_promise", || fresh(World::Memory)).thorough(),
        trial("cell::new_seeds_break_no_promise", || fresh(World::Cell)).thorough(),
        trial("cells::new_seeds_break_no_promise", || fresh(World::Cells)).thorough(),
        trial("dynamo::new_seeds_break_no_promise", || fresh(World::Dynamo)).thorough(),
        trial("a_failing_plan_becomes_smaller", a_failing_plan_becomes_smaller).thorough(),
    ];
    // Of a store that denies a doubt the engine notices nothing: it looks for its own writes after each failure.
    for broken in Broken::ALL.into_iter().filter(|broken| *broken != Broken::DeniesDoubt) {
        let name = format!("a_broken_store_is_found::{broken}");
        let test = trial(name, move || a_broken_store_is_found(World::Cell, broken).map(drop));
        trials.push(if broken == Broken::WrongTime { test } else { test.thorough() });
        let name = format!("cells::a_broken_store_is_found::{broken}");
        trials.push(trial(name, move || a_broken_store_is_found(World::Cells, broken).map(drop)).thorough());
    }
    for broken in DYNAMO_FOUND {
        let name = format!("dynamo::a_broken_store_is_found::{broken}");
        trials.push(trial(name, move || a_broken_store_is_found(World::Dynamo, broken).map(drop)).thorough());
    }
    servers::run(trials)
}

/// What DynamoDB's DAO does not survive. A stale read is followed by a write whose condition is that nothing changed, and a write that
/// was denied knows itself again.
const DYNAMO_FOUND: [Broken; 3] = [Broken::IgnoresConditions, Broken::ForgetsWrites, Broken::WrongTime];

fn trial(name: impl Into<String>, test: impl FnOnce() -> TestResult + Send + 'static) -> Trial {
    Trial::test(name, move || test().map_err(Into::into))
}

fn clean(plan: &Plan) -> TestResult {
    let run = run(plan);
    match run.failures.first() {
        None => Ok(()),
        Some(failure) => Err(format!("{plan}: {failure}").into()),
    }
}

/// A plan of a second or so without optimisation.
fn short(world: World, seed: u64) -> Plan {
    Plan { operations: if world == World::Memory { 1_000 } else { 60 }, ..Plan::new(world, seed) }
}

fn fixed(world: World, seeds: std::ops::Range<u64>) -> TestResult {
    seeds.map(|seed| short(world, seed)).try_for_each(|plan| clean(&plan))
}

/// Runs new seeds for half a minute. How many that are does not matter.
fn fresh(world: World) -> TestResult {
    let begun = Instant::now();
    let first = fastrand::u64(..1 << 40);
    println!("{world}: seeds from {first} on");
    for seed in first.. {
        let plan = Plan::new(world, seed);
        // What is expected of a calm store is no promise, and its bounds fit most seeds: those that it fails are for a person to look at.
        match run(&plan).failures.iter().find(|failure| !failure.rule.ends_with("InCalm")) {
            None => {}
            Some(failure) => return Err(format!("{plan}: {failure}").into()),
        }
        if begun.elapsed() > Duration::from_secs(30) {
            println!("{} seeds", seed - first + 1);
            break;
        }
    }
    Ok(())
}

/// The same seed gives the same history, byte by byte: twice in this process, and in another one.
fn repeats(world: World, seed: u64) -> TestResult {
    let plan = short(world, seed);
    let (one, two) = (run(&plan), run(&plan));
    let there = Command::new(env!("CARGO_BIN_EXE_lockcore-simulation"))
        .args([&world.to_string(), "--history", "--seed", &seed.to_string()])
        .args(["--operations", &plan.operations.to_string()])
        .output()?;
    let there = String::from_utf8(there.stdout)?;
    let text = one.text();
    if text.lines().count() < 200 {
        return Err(format!("only {} lines were recorded", text.lines().count()).into());
    }
    for (place, other) in [("in this process", &two.text()), ("in another process", &there)] {
        let differs = text.lines().zip(other.lines()).position(|(one, other)| one != other);
        if let Some(line) = differs {
            return Err(format!("line {line} is another one {place}").into());
        }
        if !other.starts_with(&text) {
            return Err(format!("the history {place} is shorter").into());
        }
    }
    match one.reached == two.reached {
        true => Ok(()),
        false => Err("other branches were reached".into()),
    }
}

/// Returns the first plan that shows what the store breaks, and its run.
fn a_broken_store_is_found(
    world: World,
    broken: Broken,
) -> Result<(Plan, Run), Box<dyn Error + Send + Sync>> {
    for seed in 0..200 {
        let sound = short(world, seed);
        let plan = Plan { broken: Some(broken), ..sound.clone() };
        let failed = run(&plan);
        if !failed.failures.is_empty() && clean(&sound).is_ok() {
            println!("{plan}: {}", failed.failures[0]);
            return Ok((plan, failed));
        }
    }
    Err(format!("no seed shows {broken}").into())
}

fn a_failing_plan_becomes_smaller() -> TestResult {
    let (plan, failed) = a_broken_store_is_found(World::Cell, Broken::WrongTime)?;
    let before = failed.history.len();
    let (smaller, run) = shrink::shrink(&plan, failed, 20);
    match run.history.len() < before && !run.failures.is_empty() {
        true => Ok(()),
        false => Err(format!("{smaller} is not smaller: {} of {before} lines", run.history.len()).into()),
    }
}
