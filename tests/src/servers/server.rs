//! A server that tests can use, stop in various ways, and start again.

use std::{
    fmt, io,
    net::SocketAddr,
    path::Path,
    sync::{Mutex, PoisonError},
};

use super::{
    Kind,
    container::{Container, Setup, folders},
    endpoint::Endpoint,
    error::ServerError,
    process::Process,
};

/// The most that the files of a server in memory may take. A whole test run writes some hundred megabytes.
const ROOM: u64 = 4 << 30;

/// Where a server comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It runs already, at a URL from the environment.
    Url,
    /// It was started in a container.
    Container,
    /// It was started as a process of this machine.
    Process,
}

/// A real server. Dropping it removes it, unless it came from the environment.
///
/// The methods that stop and start it are not cancel safe: after one was cancelled, drop the server.
pub struct Server {
    kind: Kind,
    endpoint: Mutex<Endpoint>,
    /// The lock is held while the state changes.
    machine: tokio::sync::Mutex<Machine>,
    way: Way,
}

struct Machine {
    home: Home,
    state: State,
}

enum Home {
    Elsewhere,
    Container(Container),
    Process(Process),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    Paused,
    Killed,
}

impl Server {
    /// Starts a server of the caller's own, which it may pause and kill: in a container, else as a process.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where there is none; [`ServerError::Failed`] when there is one and
    /// it does not start.
    pub async fn start(kind: Kind) -> Result<Self, ServerError> {
        let mut reasons = Vec::new();
        for way in [Way::Container, Way::Process] {
            match Self::start_by(kind, way).await {
                Err(ServerError::Unavailable { reason, .. }) => reasons.push(reason),
                found => return found,
            }
        }
        Err(ServerError::unavailable(kind, reasons.join("; ")))
    }

    /// Gets a server in one way only.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_by(kind: Kind, way: Way) -> Result<Self, ServerError> {
        // No test needs to guess it, and none can come to rely on it.
        let password = uuid::Uuid::new_v4().simple().to_string();
        let (home, endpoint) = match way {
            Way::Url => (Home::Elsewhere, from_environment(kind)?),
            Way::Container => return Self::start_container(kind, password, Setup::default()).await,
            Way::Process => {
                let (process, endpoint) = Process::start(kind, None, password, |_| Ok(Vec::new())).await?;
                (Home::Process(process), endpoint)
            }
        };
        Ok(Self::running(kind, way, home, endpoint))
    }

    /// Starts a process of this machine that is set up in another way than the tests' usual server: a node of a
    /// cluster, a replica, one with TLS. `configure` gets the folder that the server will run in, and owns with all that
    /// is put there, and gives further arguments, which count more than the usual ones; a configuration file comes first.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(
        kind: Kind,
        configure: impl FnOnce(&Path) -> io::Result<Vec<String>> + Send + 'static,
    ) -> Result<Self, ServerError> {
        Self::start_process(kind, None, configure).await
    }

    /// The same with another program than the kind's usual one, as of an older release.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_program(
        kind: Kind,
        program: &str,
        configure: impl FnOnce(&Path) -> io::Result<Vec<String>> + Send + 'static,
    ) -> Result<Self, ServerError> {
        Self::start_process(kind, Some(program), configure).await
    }

    async fn start_process(
        kind: Kind,
        program: Option<&str>,
        configure: impl FnOnce(&Path) -> io::Result<Vec<String>> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let password = uuid::Uuid::new_v4().simple().to_string();
        let (process, endpoint) = Process::start(kind, program, password, configure).await?;
        Ok(Self::running(kind, Way::Process, Home::Process(process), endpoint))
    }

    /// Starts a server of Postgres, `MySQL` or `MariaDB` whose disk holds no more than `bytes`: a container, whose engine
    /// can do that.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_small(kind: Kind, bytes: u64) -> Result<Self, ServerError> {
        let password = uuid::Uuid::new_v4().simple().to_string();
        // On a full disk MySQL's binary log lets every statement wait until there is room, and looks for it each minute.
        let arguments: &[&str] = if kind == Kind::MySql { &["--skip-log-bin"] } else { &[] };
        let setup = Setup { memory: Some(bytes), arguments, before: None };
        Self::start_container(kind, password, setup).await
    }

    /// Starts a server of Postgres, `MySQL` or `MariaDB` with TLS: `pem` has its certificate and the key.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with_certificate(kind: Kind, pem: &str) -> Result<Self, ServerError> {
        let password = uuid::Uuid::new_v4().simple().to_string();
        let (user, arguments): (_, &[&str]) = match kind {
            Kind::Postgres => {
                ("postgres", &["-c", "ssl=on", "-c", "ssl_cert_file=/tls.pem", "-c", "ssl_key_file=/tls.pem"])
            }
            _ => ("mysql", &["--ssl-cert=/tls.pem", "--ssl-key=/tls.pem"]),
        };
        let before = format!("echo '{pem}' > /tls.pem && chown {user} /tls.pem && chmod 600 /tls.pem");
        let setup = Setup { arguments, before: Some(before), ..Setup::default() };
        Self::start_container(kind, password, setup).await
    }

    /// Starts a server of Postgres as a replica of `primary`, which is a container as well, with the files in memory.
    pub(super) async fn start_replica(primary: &Server) -> Result<Self, ServerError> {
        let failed = |reason| ServerError::failed(Kind::Postgres, "start", reason);
        let machine = primary.machine.lock().await;
        let Home::Container(container) = &machine.home else { return Err(primary.not_controllable()) };
        let address = container.inner_address().await.map_err(failed)?;
        let before = format!(
            "PATH=$PATH:$(echo /usr/lib/postgresql/*/bin) && install -d -o postgres -g postgres -m 700 \"$PGDATA\" \
             && setpriv --reuid postgres --regid postgres --init-groups \
             pg_basebackup -h {address} -U postgres -D \"$PGDATA\" -R -X stream -c fast"
        );
        let setup = Setup { memory: Some(ROOM), before: Some(before), ..Setup::default() };
        // Users and passwords come with the files.
        let password = primary.endpoint().password();
        Self::start_container(Kind::Postgres, password, setup).await
    }

    async fn start_container(kind: Kind, password: String, setup: Setup) -> Result<Self, ServerError> {
        let (container, endpoint) = Container::start(kind, password, setup).await?;
        Ok(Self::running(kind, Way::Container, Home::Container(container), endpoint))
    }

    /// Starts a server for many tests at once: its settings are those of [`start`](Self::start), but in a container its
    /// files are in memory, so that commits do not wait for this machine's disk.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_for_many(kind: Kind) -> Result<Self, ServerError> {
        let password = uuid::Uuid::new_v4().simple().to_string();
        let setup = Setup { memory: Some(ROOM), ..Setup::default() };
        match Self::start_container(kind, password, setup).await {
            Err(ServerError::Unavailable { .. }) => Self::start(kind).await,
            started => started,
        }
    }

    fn running(kind: Kind, way: Way, home: Home, endpoint: Endpoint) -> Self {
        let machine = Machine { home, state: State::Runs };
        Self { kind, endpoint: Mutex::new(endpoint), machine: tokio::sync::Mutex::new(machine), way }
    }

    /// What kind of server it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it comes from.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether this test process may pause and kill it.
    #[must_use]
    pub fn is_controllable(&self) -> bool {
        self.way != Way::Url
    }

    /// Its URL, with the password. It may change with [`restart`](Self::restart).
    ///
    /// For a server that was started here the user may do everything; the database is there and empty.
    #[must_use]
    pub fn url(&self) -> String {
        self.endpoint().url()
    }

    /// Its URL with another host and port, as of a [`Proxy`](super::Proxy) in front of it.
    #[must_use]
    pub fn url_through(&self, proxy: SocketAddr) -> String {
        self.endpoint().url_through(proxy)
    }

    /// Its `host:port`. It may change with [`restart`](Self::restart).
    #[must_use]
    pub fn address(&self) -> String {
        self.endpoint().address()
    }

    /// Freezes it: connections stay, new ones are accepted by the kernel, nothing is answered.
    ///
    /// # Errors
    /// [`ServerError::NotControllable`], or [`ServerError::Failed`] as when it was killed.
    pub async fn pause(&self) -> Result<(), ServerError> {
        let mut machine = self.machine.lock().await;
        let done = match machine.state {
            State::Paused => return Ok(()),
            State::Killed => Err("it is not running".to_owned()),
            State::Runs => match &machine.home {
                Home::Elsewhere => return Err(self.not_controllable()),
                Home::Container(container) => container.pause().await,
                Home::Process(process) => process.pause(),
            },
        };
        machine.state = self.settled(done, "pause", State::Paused)?;
        Ok(())
    }

    /// Lets a paused server run on. What it was sent meanwhile it answers now.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<(), ServerError> {
        let mut machine = self.machine.lock().await;
        self.resume_locked(&mut machine).await
    }

    /// Kills it with SIGKILL, all of its processes. What it had written, [`restart`](Self::restart)
    /// finds again; Redis is set up to have written nothing.
    ///
    /// A paused server is resumed for the moment before: a frozen container cannot be killed.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn kill(&self) -> Result<(), ServerError> {
        let mut machine = self.machine.lock().await;
        self.kill_locked(&mut machine).await
    }

    /// Starts it again and waits until it answers; kills it first if it is not killed yet.
    ///
    /// Read [`url`](Self::url) again afterwards: the port may be another.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn restart(&self) -> Result<(), ServerError> {
        let mut machine = self.machine.lock().await;
        self.kill_locked(&mut machine).await?;
        self.start_locked(&mut machine).await
    }

    /// Starts it again if it has ended by itself, as one does whose disk fails for a moment; returns whether it had.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub async fn revive(&self) -> Result<bool, ServerError> {
        let mut machine = self.machine.lock().await;
        let has_ended = machine.state == State::Runs
            && match &mut machine.home {
                Home::Elsewhere => false,
                Home::Container(container) => container.has_ended().await,
                Home::Process(process) => process.has_ended(),
            };
        if has_ended {
            machine.state = State::Killed;
            self.start_locked(&mut machine).await?;
        }
        Ok(has_ended)
    }

    async fn start_locked(&self, machine: &mut Machine) -> Result<(), ServerError> {
        let started = match &mut machine.home {
            Home::Elsewhere => return Err(self.not_controllable()),
            Home::Container(container) => container.start_again().await,
            Home::Process(process) => process.start_again().await,
        };
        let endpoint = started.map_err(|reason| ServerError::failed(self.kind, "restart", reason))?;
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = endpoint;
        machine.state = State::Runs;
        Ok(())
    }

    /// Fills the disk of a [small](Self::start_small) server.
    ///
    /// # Errors
    /// [`ServerError::NotControllable`] unless it is a container, or [`ServerError::Failed`] as when it was killed.
    pub async fn fill_disk(&self) -> Result<(), ServerError> {
        let fill = |folder: &str| format!("cat /dev/zero >{folder}/filler 2>/dev/null; true");
        self.on_disk("fill the disk of", fill).await
    }

    /// Takes away what [`fill_disk`](Self::fill_disk) wrote.
    ///
    /// # Errors
    /// As [`fill_disk`](Self::fill_disk).
    pub async fn free_disk(&self) -> Result<(), ServerError> {
        self.on_disk("free the disk of", |folder| format!("rm -f {folder}/filler")).await
    }

    async fn on_disk(
        &self,
        doing: &'static str,
        command: impl Fn(&str) -> String,
    ) -> Result<(), ServerError> {
        for folder in folders(self.kind) {
            self.shell(doing, &command(folder)).await?;
        }
        Ok(())
    }

    /// Runs a command of the shell in its container.
    pub(super) async fn shell(&self, doing: &'static str, command: &str) -> Result<(), ServerError> {
        let machine = self.machine.lock().await;
        let Home::Container(container) = &machine.home else { return Err(self.not_controllable()) };
        let done = container.shell(command).await;
        done.map_err(|reason| ServerError::failed(self.kind, doing, reason))
    }

    async fn resume_locked(&self, machine: &mut Machine) -> Result<(), ServerError> {
        let done = match (machine.state, &machine.home) {
            (_, Home::Elsewhere) => return Err(self.not_controllable()),
            (State::Runs, _) => return Ok(()),
            (State::Killed, _) => Err("it is not running".to_owned()),
            (State::Paused, Home::Container(container)) => container.resume().await,
            (State::Paused, Home::Process(process)) => process.resume(),
        };
        machine.state = self.settled(done, "resume", State::Runs)?;
        Ok(())
    }

    async fn kill_locked(&self, machine: &mut Machine) -> Result<(), ServerError> {
        if machine.state == State::Killed {
            return Ok(());
        }
        self.resume_locked(machine).await?;
        let done = match &mut machine.home {
            Home::Elsewhere => return Err(self.not_controllable()),
            Home::Container(container) => container.kill().await,
            Home::Process(process) => process.kill(),
        };
        machine.state = self.settled(done, "kill", State::Killed)?;
        Ok(())
    }

    fn endpoint(&self) -> Endpoint {
        let endpoint = self.endpoint.lock();
        endpoint.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn not_controllable(&self) -> ServerError {
        ServerError::NotControllable { kind: self.kind }
    }

    fn settled(
        &self,
        done: Result<(), String>,
        doing: &'static str,
        state: State,
    ) -> Result<State, ServerError> {
        match done {
            Ok(()) => Ok(state),
            Err(reason) => Err(ServerError::failed(self.kind, doing, reason)),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("kind", &self.kind)
            .field("way", &self.way)
            .field("address", &self.address())
            .finish()
    }
}

fn from_environment(kind: Kind) -> Result<Endpoint, ServerError> {
    let variable = kind.url_variable();
    match std::env::var(&variable) {
        Ok(url) => Endpoint::parse(kind, &url)
            .map_err(|error| ServerError::failed(kind, "start", format!("{variable}: {error}"))),
        Err(_) => Err(ServerError::unavailable(kind, format!("{variable} is not set"))),
    }
}
