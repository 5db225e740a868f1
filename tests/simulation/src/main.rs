//! `lockcore-simulation cell --seed 7` runs one seed; without `--seed` new seeds are run, and printed.

use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use lockcore_simulation::{Broken, Kind, Plan, Reached, Run, World, run, shrink, table};

/// Whole locking services in virtual time, with faults, from one seed
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// memory, cell, cells or dynamo
    world: World,
    /// The seed to run; new ones, one after the other, unless given
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds are run from --seed on, or how many new ones
    #[arg(long)]
    seeds: Option<u64>,
    /// How long new seeds are run, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many operations each seed has
    #[arg(long)]
    operations: Option<u64>,
    #[arg(long)]
    processes: Option<u32>,
    /// How many tasks each process has
    #[arg(long)]
    actors: Option<u32>,
    #[arg(long)]
    ids: Option<u32>,
    /// The kinds of faults, separated by commas, instead of those that the seed chooses
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<Kind>>,
    /// Kinds of faults that are left out
    #[arg(long, value_delimiter = ',')]
    without: Vec<Kind>,
    /// Faults that are left out, by their number
    #[arg(long, value_delimiter = ',')]
    skip: Vec<u64>,
    /// A promise that the store breaks, to see that this is found
    #[arg(long)]
    broken: Option<Broken>,
    /// Makes the first failing plan as small as it goes, and prints it as a table
    #[arg(long)]
    shrink: bool,
    /// How many runs shrinking may take
    #[arg(long, default_value_t = 2_000)]
    tries: usize,
    /// Prints the whole history of one seed
    #[arg(long)]
    history: bool,
    /// Prints all writes to the store, too
    #[arg(long)]
    writes: bool,
    /// Goes on after a seed that fails
    #[arg(long)]
    keep_going: bool,
    /// Prints how often rare branches were reached
    #[arg(long)]
    reached: bool,
}

impl Arguments {
    fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::new(self.world, seed);
        plan.operations = self.operations.unwrap_or(plan.operations);
        plan.processes = self.processes.unwrap_or(plan.processes);
        plan.actors = self.actors.unwrap_or(plan.actors);
        plan.ids = self.ids.unwrap_or(plan.ids);
        if let Some(faults) = &self.faults {
            plan.kinds = faults.iter().copied().filter(|kind| kind.is_of(self.world)).collect();
        }
        plan.kinds.retain(|kind| !self.without.contains(kind));
        plan.skipped = self.skip.iter().copied().collect::<BTreeSet<_>>();
        plan.broken = self.broken;
        plan.writes = self.writes;
        plan
    }

    /// The arguments that run a plan again.
    fn again(&self, plan: &Plan) -> String {
        let Plan { world, seed, operations, processes, actors, ids, kinds, skipped, broken, .. } = plan;
        let join = |all: Vec<String>| all.join(",");
        let kinds = join(kinds.iter().map(ToString::to_string).collect());
        let mut text = format!(
            "{world} --seed {seed} --operations {operations} --processes {processes} --actors {actors} --ids {ids}"
        );
        text += &format!(" --faults={kinds}");
        if !skipped.is_empty() {
            text += &format!(" --skip {}", join(skipped.iter().map(ToString::to_string).collect()));
        }
        if let Some(broken) = broken {
            text += &format!(" --broken {broken}");
        }
        text
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let first = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let most = arguments.seeds.unwrap_or(if arguments.seed.is_some() { 1 } else { u64::MAX });
    let (mut seeds, mut operations, mut took, mut failed) = (0, 0, Duration::ZERO, 0_u64);
    let mut reached: Option<Reached> = None;
    for seed in (first..).take(usize::try_from(most).unwrap_or(usize::MAX)) {
        if seeds > 0 && arguments.seed.is_none() && begun.elapsed() > Duration::from_secs(arguments.seconds) {
            break;
        }
        let plan = arguments.plan(seed);
        let run = run(&plan);
        (seeds, operations, took) = (seeds + 1, operations + run.operations, took + run.took);
        match &mut reached {
            Some(reached) => reached.add(&run.reached),
            None => reached = Some(run.reached.clone()),
        }
        if arguments.history {
            print!("{}", run.text());
        }
        print!("{}", run.writes);
        if run.failures.is_empty() {
            continue;
        }
        failed += 1;
        show(&arguments, &plan, run);
        if !arguments.keep_going {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {first} on, {failed} of them failed; {operations} operations, {:.0} virtual seconds, in {seconds:.1} s: \
         {:.0} operations a second",
        took.as_secs_f64(),
        operations as f64 / seconds
    );
    if let Some(reached) = reached {
        if arguments.reached {
            print!("{reached}");
        }
        println!("never reached: {}", reached.missing().join("; "));
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(arguments: &Arguments, plan: &Plan, run: Run) {
    println!("FAILED {plan}");
    println!("again: {}", arguments.again(plan));
    for failure in run.failures.iter().take(8) {
        println!("  {failure}");
    }
    println!("  {} in all; {:?}", run.failures.len(), run.outcomes);
    if arguments.shrink {
        let (plan, run) = shrink::shrink(plan, run, arguments.tries);
        println!("SHRUNK {plan}");
        println!("again: {}", arguments.again(&plan));
        for failure in run.failures.iter().take(3) {
            println!("  {failure}");
        }
        println!("{}", table::around_failure(&run));
    }
}
