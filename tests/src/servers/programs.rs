//! The programs of a server: where they are, how its files are made, how it is started.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::unistd::{Uid, User};

use super::{Kind, container::last_lines, endpoint::MYSQL_DATABASE};

/// The programs that make and run a private server of a kind.
pub(super) struct Programs {
    kind: Kind,
    /// Makes the files of a new server, for those that need it.
    initialize: Option<PathBuf>,
    serve: PathBuf,
    /// Whom to run as: Postgres and `MariaDB` refuse to run as root, so that root does not run any.
    user: Option<User>,
}

impl Programs {
    /// Looks for the programs; an error says what is missing. `other`: the name of another program that serves.
    pub(super) fn find(kind: Kind, other: Option<&str>) -> Result<Self, String> {
        let (initialize, serve, user) = match kind {
            Kind::Redis => (None, find("redis-server")?, "redis"),
            Kind::Postgres => (Some(find("initdb")?), find("postgres")?, "postgres"),
            Kind::MariaDb => (Some(find("mariadb-install-db")?), find("mariadbd")?, "mysql"),
            // On Debian and others a `mysqld` on the PATH is MariaDB's.
            Kind::MySql => return Err("mysql is not started from a program".to_owned()),
            Kind::DynamoDb => (None, find("ministack")?, ""),
            Kind::Etcd => (None, find("etcd")?, "etcd"),
        };
        let serve = other.map_or(Ok(serve), find)?;
        // What comes from PyPI runs as any user, and may be installed where only this one can read.
        let user = match kind {
            Kind::DynamoDb => None,
            _ if serve.starts_with(pypi_folder()) => None,
            _ => instead_of_root(&[user, "nobody"]).map_err(|reason| format!("{kind}: {reason}"))?,
        };
        Ok(Self { kind, initialize, serve, user })
    }

    /// Makes the files of a new server in `folder`.
    pub(super) fn prepare(&self, folder: &Path, password: &str) -> Result<(), String> {
        self.prepare_files(folder, password).map_err(|error| format!("{}: {error}", folder.display()))?;
        let Some(initialize) = &self.initialize else {
            return Ok(());
        };
        let mut command = self.command(initialize, folder);
        match self.kind {
            Kind::Postgres => command.args(["-D", "data", "-U", "postgres", "--pwfile=password"]).args([
                "--auth=scram-sha-256",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
            ]),
            _ => command
                .args(["--no-defaults", "--skip-test-db"])
                .arg("--auth-root-authentication-method=normal")
                .arg(format!("--datadir={}", folder.join("data").display())),
        };
        let output = command.output().map_err(|error| format!("{}: {error}", initialize.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}", initialize.display(), last_lines(&said)))
    }

    /// The command that serves the files in `folder` on a port of the loopback. A file among the arguments, which has
    /// to be the first, comes before the usual ones and the others behind them, where they count more.
    pub(super) fn serve(&self, folder: &Path, port: u16, arguments: &[String]) -> Command {
        let mut command = self.command(&self.serve, folder);
        let is_file = arguments.first().is_some_and(|first| !first.starts_with('-'));
        let (file, options) = arguments.split_at(usize::from(is_file));
        command.args(file);
        let is_tls = arguments.iter().any(|argument| argument.starts_with("--cert-file"));
        let clients = format!("{}://127.0.0.1:{port}", if is_tls { "https" } else { "http" });
        match self.kind {
            Kind::Redis => command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]).args([
                "--save",
                "",
                "--appendonly",
                "no",
            ]),
            Kind::Postgres => command
                .args(["-D", "data", "-p", &port.to_string()])
                .args(["-c", "listen_addresses=127.0.0.1"])
                .args(["-c", "unix_socket_directories="])
                .args(["-c", "max_connections=300"])
                // In the folder, not in /dev/shm, where a SIGKILL would leave it.
                .args(["-c", "dynamic_shared_memory_type=mmap"]),
            Kind::DynamoDb => command
                .env("BIND_HOST", "127.0.0.1")
                .env("GATEWAY_PORT", port.to_string())
                .env("MOTO_PORT", port.to_string()),
            Kind::Etcd => command
                .args(["--name", "single", "--data-dir", "data"])
                .arg(format!("--listen-client-urls={clients}"))
                .arg(format!("--advertise-client-urls={clients}"))
                // No other member asks for it.
                .args(["--listen-peer-urls", "http://127.0.0.1:0"])
                .args(["--initial-advertise-peer-urls", "http://127.0.0.1:1"])
                .args(["--initial-cluster", "single=http://127.0.0.1:1"])
                // A machine that fails takes the tests with it.
                .arg("--unsafe-no-fsync"),
            _ => command
                .args(["--no-defaults", "--bind-address=127.0.0.1"])
                .arg(format!("--port={port}"))
                .arg(format!("--datadir={}", folder.join("data").display()))
                .arg(format!("--socket={}", folder.join("socket").display()))
                .arg(format!("--init-file={}", folder.join("init.sql").display()))
                .args(["--skip-name-resolve", "--max-connections=500"]),
        };
        command.args(options);
        command
    }

    fn prepare_files(&self, folder: &Path, password: &str) -> std::io::Result<()> {
        let mut own = vec![folder.to_owned()];
        for entry in fs::read_dir(folder)? {
            own.push(entry?.path());
        }
        match self.kind {
            Kind::Redis | Kind::DynamoDb | Kind::Etcd => {}
            Kind::Postgres => {
                own.push(folder.join("password"));
                fs::write(folder.join("password"), password)?;
            }
            Kind::MariaDb | Kind::MySql => {
                own.push(folder.join("data"));
                fs::create_dir(folder.join("data"))?;
                own.push(folder.join("init.sql"));
                // Read at every start. More specific hosts than this one come with the installation
                // and would be preferred, without a password.
                let sql = format!(
                    "CREATE DATABASE IF NOT EXISTS {MYSQL_DATABASE};\n\
                     CREATE OR REPLACE USER root@'127.0.0.1' IDENTIFIED BY '{password}';\n\
                     GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
                );
                fs::write(folder.join("init.sql"), sql)?;
            }
        }
        if let Some(user) = &self.user {
            for path in own {
                chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
            }
        }
        Ok(())
    }

    /// Runs `program` inside `folder`, as the user it is for.
    fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            // Ctrl-C is for the tests, which then remove the server.
            .process_group(0);
        if let Some(user) = &self.user {
            // The standard library drops root's other groups with this.
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }
}

/// Whom to run a program as that refuses to run as root: the first that there is, if this is root.
pub(super) fn instead_of_root(names: &[&str]) -> Result<Option<User>, String> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let named = |name: &&str| User::from_name(name).ok().flatten();
    let user = names.iter().find_map(named);
    user.map(Some).ok_or_else(|| "no user to run as instead of root".to_owned())
}

/// A program from where `ensure.sh` puts those of PyPI, which it repairs, or on the `PATH`, or where Debian puts servers
/// outside of it.
pub(super) fn find(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = vec![pypi_folder()];
    folders.extend(std::env::split_paths(&path));
    folders.push("/usr/sbin".into());
    folders.extend(postgres_folders());
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("no {program} on the PATH"))
}

/// Where `ensure.sh` puts the programs of PyPI.
fn pypi_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers/bin")
}

/// `/usr/lib/postgresql/<version>/bin`, the newest first.
fn postgres_folders() -> Vec<PathBuf> {
    let Ok(versions) = fs::read_dir("/usr/lib/postgresql") else {
        return Vec::new();
    };
    let mut versions: Vec<(u32, PathBuf)> = versions
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, folder)| folder).collect()
}
