//! Runs a command with one test server of each kind: `with-servers COMMAND [ARGUMENT...]`.
//!
//! Each server's URL is in the command's environment, where [`lockcore_conformance::servers::shared`] finds it, so that
//! all test processes use the same servers. A kind whose URL is set already is not started. A kind that cannot be had is
//! named on stderr, and its tests in `LOCKCORE_TEST_SKIP`, a filter expression of cargo-nextest; with
//! `LOCKCORE_REQUIRE_SERVERS=1` it is an error. The servers are removed when the command ends, whatever its exit code,
//! which this program passes on.

use std::{
    env,
    error::Error,
    fmt::Display,
    process::{Command, ExitCode},
};

use futures_util::future::join_all;
use lockcore_conformance::servers::{Cluster, Kind, Server, ServerError};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [program, arguments @ ..] = &arguments[..] else {
        return Err("usage: with-servers COMMAND [ARGUMENT...]".into());
    };
    let missing_kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| env::var_os(kind.url_variable()).is_none()).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    let (started, cluster) = runtime.block_on(async {
        tokio::join!(join_all(missing_kinds.iter().map(|&kind| Server::start_for_many(kind))), cluster())
    });

    let mut command = Command::new(program);
    command.args(arguments);
    let (mut servers, mut skipped) = (Vec::new(), Vec::new());
    for (kind, server) in missing_kinds.into_iter().zip(started) {
        match server {
            Ok(server) => {
                command.env(kind.url_variable(), server.url());
                servers.push(server);
            }
            Err(missing @ ServerError::Unavailable { .. }) if !required() => {
                report(&missing);
                skipped.push(format!("test(/^{kind}::/)"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let cluster = match cluster {
        Ok(cluster) => {
            command.env(Cluster::VARIABLE, cluster.addresses());
            Some(cluster)
        }
        Err(missing @ ServerError::Unavailable { .. }) if !required() => {
            report(&missing);
            skipped.push("test(/^redis::cluster::/)".to_owned());
            None
        }
        Err(error) => return Err(error.into()),
    };
    if !skipped.is_empty() {
        command.env("LOCKCORE_TEST_SKIP", format!("not ({})", skipped.join(" | ")));
    }
    let status = command.status().map_err(|error| format!("{}: {error}", program.display()))?;
    drop((servers, cluster));
    // Killed by a signal: there is no code to pass on.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

async fn cluster() -> Result<Cluster, ServerError> {
    match Cluster::from_environment() {
        Some(cluster) => Ok(cluster),
        None => Cluster::start().await,
    }
}

fn required() -> bool {
    env::var_os("LOCKCORE_REQUIRE_SERVERS").is_some_and(|value| value == "1")
}

fn report(missing: &impl Display) {
    eprintln!("with-servers: its tests are skipped: {missing}");
}
