//! Distributed locks on the command line, for programs in any language: `cargo install lockctl`, with `--features etcd,s3` for those two stores.
//!
//! ```text
//! lockctl --url sqlite:/var/lib/app/locks.db run --id nightly-report -- ./report.sh
//! ```

mod acquire;
mod admin;
mod args;
mod bench;
mod child;
mod clock;
mod environment;
mod exit;
mod group;
mod lease;
mod once;
mod output;
mod run;
mod session;
mod show;
mod signals;
mod terminal;
mod text;
mod token;
mod torture;
mod waiting;
mod watch;
mod watchdog;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use lockcore::Target;

use crate::{
    args::{Cli, Command},
    exit::Failure,
    output::Output,
};

/// The variable with the filter of the log on stderr, as `lockcore=debug`; nothing is logged if it is not set.
const LOG: &str = "LOCKCORE_LOG";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return args::report(&error),
    };
    let output = Output::new(cli.global.json);
    if std::env::var_os(LOG).is_some() {
        match tracing_subscriber::EnvFilter::try_from_env(LOG) {
            Ok(filter) => {
                tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
            }
            Err(error) => return output.fail(&Failure::usage(format!("{LOG}: {error}"))),
        }
    }
    if let Command::Watchdog { context, .. } = &cli.command {
        watchdog::watch(context);
        return ExitCode::SUCCESS;
    }
    // One thread of our own is enough: renewal runs on the library's, the store's work on the store's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(execute(cli, output)),
        Err(error) => Err(Failure::other(format!("no runtime: {error}"))),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => output.fail(&failure),
    }
}

async fn execute(cli: Cli, output: Output) -> Result<u8, Failure> {
    let Cli { mut global, command } = cli;
    match command {
        Command::Run(args) => run::run(&global, args, output).await,
        Command::Elect(args) => {
            let (value, run) = args.into_run();
            if global.owner.replace(value).is_some() {
                return Err(Failure::usage("--owner: observers of an election see --value, leave it out"));
            }
            run::run(&global, run, output).await
        }
        Command::Leader { name } => admin::leader(&global, name, output).await,
        Command::Acquire(args) => acquire::acquire(&global, args, output).await,
        Command::Release { token } => acquire::release(&global, &token, output).await,
        Command::Renew { token, lease } => acquire::renew(&global, &token, lease, output).await,
        Command::Check { token } => acquire::check(&global, &token, output).await,
        Command::Ls => admin::list(&global, output).await,
        Command::Why { target, dot } => admin::why(&global, &target, dot, output).await,
        Command::Watch { id: None, every } => watch::watch(&global, every, output).await,
        Command::Watch { id: Some(id), every } => {
            watch::watch_one(&global, &Target::Id(id), every, output).await
        }
        Command::Wait { ids, timeout, every } => admin::wait(&global, &ids, timeout, every).await,
        Command::Bench(args) => bench::bench(&global, &args, output).await,
        Command::Torture(args) => torture::torture(global, args, output).await,
        Command::TortureWorker => torture::work(&global).await,
        Command::Show { target } => admin::show(&global, &target, output).await,
        Command::Break { target, fence, now } => {
            admin::break_lock(&global, &target, fence, now, output).await
        }
        Command::Freeze { target, thaw } => admin::freeze(&global, &target, !thaw, output).await,
        Command::Sweep { batch } => admin::sweep(&global, batch, output).await,
        Command::Migrate { print } => admin::migrate(&global, print.as_deref(), output).await,
        Command::Doctor { verify } => admin::doctor(&global, verify, output).await,
        Command::Watchdog { .. } => unreachable!("it needs no runtime"),
        Command::Man { folder } => clap_mangen::generate_to(Cli::command(), &folder)
            .map(|()| 0)
            .map_err(|error| Failure::other(format!("{}: {error}", folder.display()))),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lockctl", &mut script);
            output.write(&script).map(|()| 0)
        }
    }
}
