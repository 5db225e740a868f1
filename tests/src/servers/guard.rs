//! The guard: a process that removes what a test process left when it is gone.
//!
//! Statics are never dropped, and no destructor runs at an abort or a SIGKILL. The guard waits on a
//! pipe that only this process holds open: its end is the sign, whatever way this process ends.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use std::os::unix::{fs::PermissionsExt, process::CommandExt};

/// The label by which containers of this process are found.
pub(super) const LABEL: &str = "lockcore.test-process";

/// The file in a server's folder that names its process.
pub(super) const PID_FILE: &str = "server.pid";

/// Arguments: the folder, the label with its value.
///
/// The children are killed too: Postgres's end by themselves when their parent has died, unless they
/// are stopped. A container that was asked for in the last moment may appear after the first round.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
cat >/dev/null
for file in "$1"/*/server.pid; do
  server=$(cat "$file" 2>/dev/null) || continue
  children=$(grep -ls "^PPid:[[:space:]]*$server\$" /proc/[0-9]*/status | tr -dc '0-9\n')
  kill -9 "$server" $children
done
for round in 1 2 3; do
  [ -e "$1/containers" ] || break
  docker ps --all --quiet --filter "label=$2" | while read -r container; do
    docker rm --force --volumes "$container"
  done
  sleep 0.3
done
rm -rf -- "$1"
"#;

/// What a guard looks after: everything of this process is in its folder or carries its label.
pub(super) struct Guard {
    folder: PathBuf,
    token: String,
    _process: Child,
}

static GUARD: LazyLock<Result<Guard, String>> =
    LazyLock::new(|| Guard::start().map_err(|error| error.to_string()));

impl Guard {
    /// This process's guard, started at the first call.
    pub(super) fn of_this_process() -> Result<&'static Self, String> {
        GUARD.as_ref().map_err(|error| format!("no guard process: {error}"))
    }

    fn start() -> io::Result<Self> {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let folder = tempfile::Builder::new()
            .prefix("lockcore-servers-")
            // Servers may run as another user than this process: they have to get through.
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir()?
            .keep()
            .canonicalize()?;
        let process = Command::new("sh")
            .args(["-c", SCRIPT, "lockcore-test-guard"])
            .arg(&folder)
            .arg(format!("{LABEL}={token}"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Outside the terminal's group: Ctrl-C is for the tests.
            .process_group(0)
            .spawn()?;
        Ok(Self { folder, token, _process: process })
    }

    /// The folder of which all is removed, and before that all processes that a [`PID_FILE`] names.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The value of [`LABEL`] for a container, which is looked for from now on.
    pub(super) fn expect_containers(&self) -> io::Result<&str> {
        std::fs::write(self.folder.join("containers"), "")?;
        Ok(&self.token)
    }
}
