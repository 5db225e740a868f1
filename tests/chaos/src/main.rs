//! `lockcore-chaos run` runs workers under faults and checks what they recorded; `check` checks it again.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use lockcore_chaos::{
    backend::Backend,
    check::Report,
    driver::Run,
    faults::Kind,
    store,
    worker::{self, Cheat},
};
use lockcore_torture::history;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run workers under faults, and check what they recorded
    Run(RunArguments),
    /// Check the histories of an earlier run
    Check {
        /// The folder of the run
        folder: PathBuf,
    },
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        url: String,
    },
}

#[derive(Args)]
struct RunArguments {
    /// memory, sqlite, redis, redis-sentinel, redis-cluster, postgres, postgres-replica, mariadb, mysql, dynamodb, etcd, etcd-cluster,
    /// s3, share, and without routines postgres-statements, mariadb-statements, mysql-statements; servers are started for the run
    #[arg(long)]
    backend: Backend,
    /// The seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many operations there are in all
    #[arg(long, default_value_t = 10_000)]
    operations: u64,
    /// How many worker processes
    #[arg(long, default_value_t = 4)]
    workers: u64,
    /// How many tasks each of them has
    #[arg(long, default_value_t = 16)]
    actors: u64,
    /// How many ids are locked
    #[arg(long, default_value_t = 48)]
    ids: u64,
    /// The kinds of faults, separated by commas; none if empty. Unless given, all that the backend can have but fill-disk
    /// and forget
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<String>>,
    /// The longest pause between two faults
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    every: Duration,
    /// One call in so many is dropped before it ends; a dropped call costs most servers a connection
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    dropped: u32,
    /// Has the workers cheat, to test the checker
    #[arg(long)]
    cheat: Option<Cheat>,
    /// Where the histories go, and stay; a temporary folder unless given
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Run(arguments) => {
            let temporary = tempfile::tempdir()?;
            let folder = arguments.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
            Ok(show(&run(arguments, folder).await?))
        }
        Command::Check { folder } => Ok(show(&history::check(&folder)?)),
        Command::Worker { url } => {
            // The line may be cut just now.
            worker::process(async |_| store::connect(&url).await).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn run(arguments: RunArguments, folder: PathBuf) -> anyhow::Result<Report> {
    let faults = match arguments.faults {
        None => Kind::usual(),
        Some(names) => {
            names.iter().filter(|name| !name.is_empty()).map(|name| name.parse()).collect::<Result<_, _>>()?
        }
    };
    let run = Run {
        backend: arguments.backend,
        seed: arguments.seed,
        operations: arguments.operations,
        workers: arguments.workers,
        actors: arguments.actors,
        ids: arguments.ids,
        faults,
        every: arguments.every,
        dropped: arguments.dropped,
        cheat: arguments.cheat,
        program: std::env::current_exe().context("the program finds itself")?,
        folder,
    };
    run.run().await
}

fn show(report: &Report) -> ExitCode {
    println!("{report}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
