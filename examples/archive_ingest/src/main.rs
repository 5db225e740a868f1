//! Copies a directory tree into an object store with many workers that race for every object, each under its lock.

mod args;
mod audit;
mod job;
mod manifest;
mod meeting;
mod plan;
mod processes;
mod progress;
mod report;
mod source;
mod store;
mod tally;

use std::{process::ExitCode, sync::Arc};

use clap::Parser;

use crate::{args::Args, plan::Plan, progress::Progress, report::Report, store::Archive};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let ended =
        if args.child { processes::serve().await.map(|()| ExitCode::SUCCESS) } else { run(&args).await };
    ended.unwrap_or_else(|error| {
        eprintln!("archive-ingest: {}", report::describe(&error));
        ExitCode::FAILURE
    })
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Arc::new(Plan::new(args)?);
    let files = Arc::new(plan.scan()?);
    let archive = Arc::new(Archive::open(&plan)?);
    if !args.json {
        report::introduce(&plan, &files);
    }
    let progress = Progress::new();
    let copied = {
        let _bar = progress.show(plan.visits(&files));
        match plan.processes {
            1 => job::Job::new(&plan, &files, &archive, &progress).await?.run().await,
            _ => processes::run(&plan, &progress).await?,
        }
    };
    let audit = audit::audit(&plan, &files, &archive, &copied).await;
    let report = Report::new(&plan, &files, copied, audit);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(report.exit_code())
}
