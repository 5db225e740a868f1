//! A real `PgBouncer` in front of a Postgres server: connections that change hands after each transaction.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::{fs::chown, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::unistd::User;
use tempfile::TempDir;
use url::Url;

use super::{
    Kind, Server, ServerError,
    container::last_lines,
    guard::{Guard, PID_FILE},
    process::free_port,
    programs::{find, instead_of_root},
    wire,
};

const READY: Duration = Duration::from_secs(30);

/// A `pgbouncer` of Debian's or of the `PATH`, in `pool_mode=transaction`; dropping it kills it and removes its files.
#[derive(Debug)]
pub struct Pooler {
    address: SocketAddr,
    process: Child,
    folder: TempDir,
}

impl Pooler {
    /// Starts it in front of `server`, for its user and database, with so many connections to the server.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where there is no `pgbouncer`; [`ServerError::Failed`] if it does not start.
    pub async fn start(server: &Server, connections: usize) -> Result<Self, ServerError> {
        let failed = |reason: String| ServerError::failed(server.kind(), "start pgbouncer", reason);
        let missing = |reason: String| ServerError::unavailable(Kind::Postgres, reason);
        let program = find("pgbouncer").map_err(missing)?;
        // The first two exist where Debian's packages are.
        let user = instead_of_root(&["postgres", "nobody"]).map_err(missing)?;
        let guard = Guard::of_this_process().map_err(failed)?;
        let prepared = prepare(guard.folder(), server, connections, user.as_ref());
        let (folder, port) = prepared.map_err(|error| failed(error.to_string()))?;
        let process = spawn(&program, folder.path(), user).map_err(|error| failed(error.to_string()))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        // Made before it is waited for, so that it is ended if it does not answer.
        let pooler = Pooler { address, process, folder };
        match wire::until_answers(Kind::Postgres, &address.to_string(), READY).await {
            Ok(()) => Ok(pooler),
            Err(error) => {
                let said = fs::read_to_string(pooler.folder.path().join("log")).unwrap_or_default();
                Err(failed(format!("{error}: {}", last_lines(&said))))
            }
        }
    }

    /// Where it listens; for [`Server::url_through`].
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // What cannot be ended now is tried again by the guard.
        if self.process.kill().is_ok() {
            let _ = self.process.wait();
            let _ = fs::remove_file(self.folder.path().join(PID_FILE));
        }
    }
}

fn prepare(
    within: &Path,
    server: &Server,
    connections: usize,
    user: Option<&User>,
) -> io::Result<(TempDir, u16)> {
    let url = Url::parse(&server.url()).map_err(io::Error::other)?;
    let (address, port) = (server.address(), free_port()?);
    let (host, server_port) = address.rsplit_once(':').ok_or_else(|| io::Error::other("no port"))?;
    let folder = tempfile::Builder::new().prefix("pgbouncer").tempdir_in(within)?;
    let settings = format!(
        "[databases]\n* = host={host} port={server_port}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = users\n\
         pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 1000\n\
         server_round_robin = 1\n"
    );
    let users = format!("\"{}\" \"{}\"\n", url.username(), url.password().unwrap_or_default());
    let files = [folder.path().join("settings"), folder.path().join("users")];
    fs::write(&files[0], settings)?;
    fs::write(&files[1], users)?;
    if let Some(user) = user {
        for path in files.iter().map(AsRef::as_ref).chain([folder.path()]) {
            chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
    }
    Ok((folder, port))
}

fn spawn(program: &Path, folder: &Path, user: Option<User>) -> io::Result<Child> {
    let log = File::create(folder.join("log"))?;
    let mut command = Command::new(program);
    command
        .arg("settings")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C is for the tests, which then end it.
        .process_group(0);
    if let Some(user) = user {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    let child = command.spawn()?;
    fs::write(folder.join(PID_FILE), child.id().to_string())?;
    Ok(child)
}
