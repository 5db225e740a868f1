//! Shows that each kind of server starts, pauses, dies and comes back, and that nothing of it is left.
//!
//! Called as `suite hold <kind> <way>`, this program is the test process that its own tests kill: it
//! gets a server, says where it is, and waits.

use std::{
    env,
    future::Future,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use lockcore_conformance::servers::{
    Kind, Server, ServerError, TestResult, Trial, Way, shared, trial, trial_by, wire,
};
use tokio::time::{sleep, timeout};

/// Long enough for anything that is going to happen on a loaded machine.
const SOON: Duration = Duration::from_secs(60);
/// Long enough to call an answer missing: these exchanges take a millisecond.
const SILENCE: Duration = Duration::from_millis(400);

const WAYS: [(&str, Way); 3] = [("url", Way::Url), ("container", Way::Container), ("process", Way::Process)];

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        trials.extend([
            trial(kind, "is_shared", move || is_shared(kind)),
            trial(kind, "comes_from_the_environment", move || comes_from_the_environment(kind)),
            by(kind, Way::Container, "lives_and_dies", lives_and_dies),
            by(kind, Way::Process, "lives_and_dies", lives_and_dies),
        ]);
    }
    // Removal depends on the way, and for processes on how many a server has.
    for (kind, way) in
        [(Kind::Redis, Way::Container), (Kind::Redis, Way::Process), (Kind::Postgres, Way::Process)]
    {
        trials.extend([
            by(kind, way, "is_removed_by_a_panic", is_removed_by_a_panic),
            by(kind, way, "is_removed_while_paused", is_removed_while_paused),
            by(kind, way, "goes_with_a_killed_test", |server| async move {
                goes_with_a_killed_test(server.kind(), server.way()).await
            }),
        ]);
    }
    // The one kind that ends when it is told to.
    for way in [Way::Container, Way::Process] {
        trials.push(by(Kind::Redis, way, "is_revived", is_revived));
    }
    // The one kind that can be made unavailable on every machine.
    trials.push(trial(Kind::MySql, "shows_as_ignored", || async { shows_as_ignored() }));
    trials.into_iter().map(|trial| trial.thorough().at_once("servers", 4)).collect()
}

fn by<F>(kind: Kind, way: Way, name: &str, test: impl FnOnce(Server) -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    trial_by(kind, way, &format!("{}::{name}", name_of(way)), test)
}

async fn is_shared(kind: Kind) -> TestResult {
    let (one, other) = tokio::join!(shared(kind), shared(kind));
    let (one, other) = (one?, other?);
    assert!(Arc::ptr_eq(&one, &other));
    wire::exchange(kind, &one.address()).await?;
    let password = one.url().split([':', '@']).nth(2).map(str::to_owned);
    if let Some(password) = password
        .filter(|_| one.is_controllable() && !matches!(kind, Kind::Redis | Kind::DynamoDb | Kind::Etcd))
    {
        assert!(password.len() > 30, "the URL has a generated password");
        assert!(!format!("{one:?}").contains(&password));
    }
    Ok(())
}

async fn comes_from_the_environment(kind: Kind) -> TestResult {
    let server = shared(kind).await?;
    let variable = kind.url_variable();
    let (_, url, mut child) = held(kind, Way::Url, &[(&variable, &server.url())])?;
    assert_eq!(url, server.url());
    // The end of its input ends it; the server is not its own and stays.
    drop(child.stdin.take());
    assert!(child.wait()?.success());
    wire::exchange(kind, &server.address()).await?;
    Ok(())
}

async fn lives_and_dies(server: Server) -> TestResult {
    let kind = server.kind();
    wire::exchange(kind, &server.address()).await?;

    server.pause().await?;
    server.pause().await?;
    let address = server.address();
    let mut pending = tokio::spawn(async move { wire::exchange(kind, &address).await });
    assert!(timeout(SILENCE, &mut pending).await.is_err(), "paused");
    server.resume().await?;
    server.resume().await?;
    timeout(SOON, pending).await???;
    wire::exchange(kind, &server.address()).await?;

    server.kill().await?;
    server.kill().await?;
    wire::exchange(kind, &server.address()).await.unwrap_err();
    assert!(matches!(server.pause().await, Err(ServerError::Failed { .. })));
    server.restart().await?;
    wire::exchange(kind, &server.address()).await?;

    // A paused server can be killed too, and restart does that itself.
    server.pause().await?;
    server.restart().await?;
    wire::exchange(kind, &server.address()).await?;
    is_gone_after(server, drop).await
}

async fn is_revived(server: Server) -> TestResult {
    assert!(!server.revive().await?, "it runs");
    // It ends without a reply.
    let _ = wire::redis_command(&server.address(), "SHUTDOWN NOSAVE").await;
    let revived = async {
        while !server.revive().await? {
            sleep(SILENCE / 20).await;
        }
        Ok::<(), ServerError>(())
    };
    timeout(SOON, revived).await??;
    wire::exchange(server.kind(), &server.address()).await?;
    assert!(!server.revive().await?, "it runs");
    Ok(())
}

async fn is_removed_by_a_panic(server: Server) -> TestResult {
    let panics = |server: Server| {
        let test = std::thread::spawn(move || {
            let _server = server;
            std::panic::resume_unwind(Box::new("a failed test, without its message"));
        });
        test.join().unwrap_err();
    };
    is_gone_after(server, panics).await
}

async fn is_removed_while_paused(server: Server) -> TestResult {
    server.pause().await?;
    is_gone_after(server, drop).await
}

async fn is_gone_after(server: Server, end: impl FnOnce(Server)) -> TestResult {
    let (kind, address) = (server.kind(), server.address());
    end(server);
    wire::exchange(kind, &address).await.unwrap_err();
    Ok(())
}

async fn goes_with_a_killed_test(kind: Kind, way: Way) -> TestResult {
    let (address, _, mut child) = held(kind, way, &[])?;
    wire::exchange(kind, &address).await?;
    child.kill()?;
    child.wait()?;
    let gone = async {
        while wire::exchange(kind, &address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, gone).await?;
    Ok(())
}

fn shows_as_ignored() -> TestResult {
    let run = |required: &str| {
        Command::new(env::current_exe()?)
            .args(["--exact", "--include-ignored", "mysql::is_shared"])
            .env_remove(Kind::MySql.url_variable())
            .env("DOCKER_HOST", "unix:///nonexistent/docker.sock")
            .env("LOCKCORE_REQUIRE_SERVERS", required)
            .output()
    };
    let output = run("0")?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 ignored"), "{said}");
    assert!(said.contains("no Docker engine answers"), "{said}");
    let output = run("1")?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("no mysql server: "), "{said}");
    Ok(())
}

/// The address and URL of a server that another process has got, and that process, this program.
fn held(
    kind: Kind,
    way: Way,
    environment: &[(&str, &str)],
) -> Result<(String, String, Child), Box<dyn std::error::Error + Send + Sync>> {
    let mut child = Command::new(env::current_exe()?)
        .args(["hold", kind.name(), name_of(way)])
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line)?;
    match line.trim_end().split_once(' ') {
        Some((address, url)) => Ok((address.to_owned(), url.to_owned(), child)),
        None => Err(format!("hold ended with {}", child.wait()?).into()),
    }
}

pub(crate) fn hold_server(kind: &str, way: &str) -> ExitCode {
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind);
    let way = WAYS.into_iter().find(|(name, _)| *name == way);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start_by(kind.unwrap(), way.unwrap().1));
    match server {
        Ok(server) => {
            println!("{} {}", server.address(), server.url());
            let _ = std::io::stdin().read(&mut [0]);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn name_of(way: Way) -> &'static str {
    let known = WAYS.into_iter().find(|(_, known)| *known == way);
    known.unwrap().0
}
