//! A server in a container.

use std::{sync::Arc, time::Duration};

use testcontainers::{
    ContainerAsync, GenericImage, ImageExt, TestcontainersError,
    bollard::{Docker, query_parameters::KillContainerOptionsBuilder},
    core::{ExecCommand, IntoContainerPort, Mount},
    runners::AsyncRunner,
};

use super::{
    Kind,
    endpoint::{Endpoint, MYSQL_DATABASE},
    error::ServerError,
    guard::{Guard, LABEL},
    image::{Image, engine},
    runtime, wire,
};

/// How long a server may take to answer: `MySQL` takes 7 s to set itself up on an idle machine.
const READY: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(250);

/// How often an engine that fails is called in all, and the pause between two calls.
const TRIES: usize = 5;
const AGAIN: Duration = Duration::from_millis(500);

/// What is special about a container.
#[derive(Default)]
pub(super) struct Setup {
    /// The server's files are in a memory of so many bytes instead of on this machine's disk.
    pub(super) memory: Option<u64>,
    /// Further arguments of the server.
    pub(super) arguments: &'static [&'static str],
    /// A command of the shell that root runs before the server starts.
    pub(super) before: Option<String>,
}

/// A container with a server in it; dropping it removes it.
pub(super) struct Container {
    kind: Kind,
    password: String,
    docker: Docker,
    container: Option<Arc<ContainerAsync<GenericImage>>>,
}

impl Container {
    pub(super) async fn start(
        kind: Kind,
        password: String,
        setup: Setup,
    ) -> Result<(Self, Endpoint), ServerError> {
        runtime::run(async move {
            let docker = engine().await.map_err(|reason| ServerError::unavailable(kind, reason))?;
            let image = Image::of(kind, &docker).await?;
            let failed = |reason: String| ServerError::failed(kind, "start", reason);
            let container = create(kind, &image, &password, &setup).await;
            let container = container.map_err(|error| failed(redacted(error, &password)))?;
            let container = Self { kind, password, docker, container: Some(Arc::new(container)) };
            let endpoint = ready(kind, &container.container(), &container.password).await;
            Ok((container, endpoint.map_err(failed)?))
        })
        .await
    }

    pub(super) async fn pause(&self) -> Result<(), String> {
        let pause = || {
            let container = self.container();
            runtime::run(async move { said(container.pause().await) })
        };
        again("already paused", pause).await
    }

    pub(super) async fn resume(&self) -> Result<(), String> {
        let resume = || {
            let container = self.container();
            runtime::run(async move { said(container.unpause().await) })
        };
        again("not paused", resume).await
    }

    /// SIGKILL to everything in the container. A paused one has to be resumed first.
    pub(super) async fn kill(&self) -> Result<(), String> {
        let kill = || {
            let (container, docker) = (self.container(), self.docker.clone());
            runtime::run(async move {
                // Not testcontainers' stop: that sends SIGTERM first, whatever the timeout.
                let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
                said(docker.kill_container(container.id(), Some(options)).await)
            })
        };
        again("not running", kill).await?;
        let container = self.container();
        runtime::run(async move {
            while said(container.is_running().await)? {
                tokio::time::sleep(POLL / 10).await;
            }
            Ok(())
        })
        .await
    }

    /// Returns whether it has ended, by itself unless it was killed.
    pub(super) async fn has_ended(&self) -> bool {
        let container = self.container();
        runtime::run(async move { said(container.is_running().await) }).await == Ok(false)
    }

    /// Starts the killed server again; its mapped port is another.
    pub(super) async fn start_again(&self) -> Result<Endpoint, String> {
        let (kind, password) = (self.kind, self.password.clone());
        let container = self.container();
        runtime::run(async move {
            said(container.start().await)?;
            ready(kind, &container, &password).await
        })
        .await
    }

    /// Runs a command of the shell in it; an error when it fails.
    pub(super) async fn shell(&self, command: &str) -> Result<(), String> {
        // The status comes as the last line: `ExecResult` cannot be asked for it in a future that is `Send`.
        let command = format!("{{ {command}; }} 2>&1; echo; echo $?");
        let (container, command) = (self.container(), ExecCommand::new(["sh", "-c", &command]));
        runtime::run(async move {
            let output = said(said(container.exec(command).await)?.stdout_to_vec().await)?;
            let output = String::from_utf8_lossy(&output);
            if output.ends_with("\n0\n") { Ok(()) } else { Err(last_lines(&output)) }
        })
        .await
    }

    /// Its address for other containers.
    pub(super) async fn inner_address(&self) -> Result<String, String> {
        let (container, docker) = (self.container(), self.docker.clone());
        runtime::run(async move {
            let seen = said(docker.inspect_container(container.id(), None).await)?;
            let networks = seen.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
            let address = networks.into_values().find_map(|network| network.ip_address);
            address.ok_or_else(|| "it has no address".to_owned())
        })
        .await
    }

    fn container(&self) -> Arc<ContainerAsync<GenericImage>> {
        let container = self.container.as_ref();
        Arc::clone(container.expect("only drop takes it"))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let container = self.container.take();
        runtime::run_blocking(async move {
            // If a cancelled call still has the container, its end drops and so removes it.
            if let Some(container) = container.and_then(Arc::into_inner) {
                // What cannot be removed now is tried again by the guard.
                let _ = container.rm().await;
            }
        });
    }
}

async fn create(
    kind: Kind,
    image: &Image,
    password: &str,
    setup: &Setup,
) -> Result<ContainerAsync<GenericImage>, TestcontainersError> {
    let guard = Guard::of_this_process().map_err(TestcontainersError::other)?;
    let (command, variables): (&[&str], &[(&str, &str)]) = match kind {
        Kind::Redis => (
            &[
                "redis-server",
                "--bind",
                "0.0.0.0",
                "--protected-mode",
                "no",
                "--save",
                "",
                "--appendonly",
                "no",
            ],
            &[],
        ),
        Kind::Postgres => (&["postgres", "-c", "max_connections=1000"], &[("POSTGRES_PASSWORD", password)]),
        Kind::MariaDb => (
            &["mariadbd", "--max-connections=1000"],
            &[("MARIADB_ROOT_PASSWORD", password), ("MARIADB_DATABASE", MYSQL_DATABASE)],
        ),
        Kind::Etcd => (
            &[
                "etcd",
                "--listen-client-urls=http://0.0.0.0:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
            ],
            &[],
        ),
        // Its image has the command.
        Kind::DynamoDb => (&["-jar", "DynamoDBLocal.jar", "-inMemory", "-sharedDb"], &[]),
        Kind::MySql => (
            // Its figures of performance cost time, and nothing reads them.
            &["mysqld", "--max-connections=1000", "--performance-schema=OFF"],
            &[("MYSQL_ROOT_PASSWORD", password), ("MYSQL_DATABASE", MYSQL_DATABASE)],
        ),
    };
    // The images run what is not the server's name as it is.
    let before = setup.before.as_ref().map(|before| {
        let then = format!("{before} && exec bash /usr/local/bin/docker-entrypoint.sh \"$@\"");
        ["bash", "-c", &then, "bash"].map(str::to_owned)
    });
    let command = command.iter().chain(setup.arguments).map(|&word| word.to_owned());
    let mut request = GenericImage::new(&image.name, &image.tag)
        .with_exposed_port(kind.default_port().tcp())
        .with_label(LABEL, guard.expect_containers()?)
        .with_cmd(before.into_iter().flatten().chain(command));
    for &(name, value) in variables {
        request = request.with_env_var(name, value);
    }
    if matches!(kind, Kind::MariaDb | Kind::MySql) {
        // For temporary tables, of which MariaDB makes a file each: slow on an image's own file system.
        request = request.with_mount(Mount::tmpfs_mount("/tmp"));
    }
    if let Some(bytes) = setup.memory {
        for &folder in folders(kind) {
            request = request.with_mount(Mount::tmpfs_mount(folder).with_size_bytes(bytes.cast_signed()));
        }
        request = request.with_env_var("PGDATA", "/disk/data");
    }
    request.start().await
}

/// Where a disk of its own is mounted. Postgres wants a folder below it; the others' is elsewhere in a stand-in.
pub(super) fn folders(kind: Kind) -> &'static [&'static str] {
    if kind == Kind::Postgres { &["/disk"] } else { &["/var/lib/mysql", "/var/lib/mysql-standin"] }
}

/// Waits until the server answers, or its container has ended.
async fn ready(
    kind: Kind,
    container: &ContainerAsync<GenericImage>,
    password: &str,
) -> Result<Endpoint, String> {
    // "localhost" may mean ::1 first, where another port is mapped or none.
    let host = match said(container.get_host().await)?.to_string() {
        host if host == "localhost" => "127.0.0.1".to_owned(),
        host => host,
    };
    let port = said(container.get_host_port_ipv4(kind.default_port()).await)?;
    let endpoint = Endpoint::own(kind, &host, port, password);
    let ended = async {
        while container.is_running().await.unwrap_or(true) {
            tokio::time::sleep(POLL).await;
        }
    };
    let address = endpoint.address();
    let problem = tokio::select! {
        answered = wire::until_answers(kind, &address, READY) => match answered {
            Ok(()) => return Ok(endpoint),
            Err(error) => format!("no answer in {} s ({error})", READY.as_secs()),
        },
        () = ended => "its container has ended".to_owned(),
    };
    let output = container.stderr_to_vec().await.unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    Err(redacted(format!("{problem}: {}", last_lines(&output)), password))
}

/// The end of a server's output, for an error.
pub(super) fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

/// `text` without the password, wherever it came from.
pub(super) fn redacted(text: impl ToString, password: &str) -> String {
    text.to_string().replace(password, "***")
}

/// Calls Docker's engine, which fails now and then where the machine is busy: then again, a few times. `done`: the error of a
/// call that the engine carried out before though it failed.
async fn again<F>(done: &str, call: impl Fn() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    for _ in 1..TRIES {
        match call().await {
            Err(error) if !error.contains(done) => tokio::time::sleep(AGAIN).await,
            _ => return Ok(()),
        }
    }
    call().await
}

fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
