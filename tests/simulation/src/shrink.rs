//! Makes a failing plan smaller, as long as the same rule is broken.

use crate::{
    plan::Plan,
    run::{Run, run},
};

/// Returns a smaller plan that breaks the same rule as `plan`, and its run; at most `tries` runs are made.
pub fn shrink(plan: &Plan, failed: Run, tries: usize) -> (Plan, Run) {
    let Some(rule) = failed.failures.first().map(|failure| failure.rule.clone()) else {
        return (plan.clone(), failed);
    };
    let (mut best, mut of_best, mut tries) = (plan.clone(), failed, tries);
    loop {
        let mut found = false;
        for smaller in smaller(&best, &of_best) {
            if tries == 0 {
                return (best, of_best);
            }
            tries -= 1;
            let run = run(&smaller);
            if run.failures.iter().any(|failure| failure.rule == rule) {
                (best, of_best, found) = (smaller, run, true);
                break;
            }
        }
        if !found {
            return (best, of_best);
        }
    }
}

/// Plans with less of something, those with the least first.
fn smaller(plan: &Plan, run: &Run) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan {
            all.push(smaller);
        }
    };
    for share in [4, 2] {
        add(&|plan| plan.operations = (plan.operations / share).max(1));
    }
    // Nothing after the failure was needed for it.
    add(&|plan| plan.operations = plan.operations.min(run.operations));
    for kind in &plan.kinds {
        add(&|plan| plan.kinds.retain(|one| one != kind));
    }
    for processes in [1, 2, plan.processes.saturating_sub(1).max(1)] {
        add(&|plan| plan.processes = plan.processes.min(processes));
    }
    for actors in [1, 2, plan.actors / 2, plan.actors.saturating_sub(1)] {
        add(&|plan| plan.actors = plan.actors.min(actors.max(1)));
    }
    for ids in [1, 2, plan.ids.saturating_sub(1).max(1)] {
        add(&|plan| plan.ids = plan.ids.min(ids));
    }
    let faults: Vec<u64> = crate::faults::numbers(plan, run.took);
    if faults.len() <= 400 {
        let half = faults.len() / 2;
        if half > 1 {
            add(&|plan| plan.skipped.extend(&faults[..half]));
            add(&|plan| plan.skipped.extend(&faults[half..]));
        }
        for number in faults.iter().rev() {
            add(&|plan| plan.skipped.extend([*number]));
        }
    }
    add(&|plan| plan.operations = plan.operations.saturating_sub(plan.operations / 8).max(1));
    add(&|plan| plan.operations = plan.operations.saturating_sub(1).max(1));
    all
}
