//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

const EXIT_CODES: &str = "\
Exit codes: 0 every object is in the archive and verified; 1 something failed, see the report; 2 bad usage; 3 damage: an \
object was written more than once, or its manifest describes another version of it.

Archives elsewhere take their settings from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, \
AWS_ENDPOINT_URL, AWS_ALLOW_HTTP and so on.";

/// Copies a directory tree into an object store, each object exactly once, though every worker tries every object.
///
/// An object is its file and a manifest beside it, which no store writes in one step. Under the object's lock a worker
/// looks whether it is there, writes both, and reads them back; with --no-locks the same workers do the same without.
#[derive(Parser, Debug)]
#[command(version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// The folder to copy; without it the `.git` folder of the checkout that the current directory is in, except its
    /// `config`, which may hold credentials
    pub(crate) source: Option<PathBuf>,

    /// Where the archive is: a folder, or a URL such as s3://bucket/prefix [default: a folder under target/archive, or
    /// under the folder for temporary files outside of a cargo project]
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,

    /// How many workers each process runs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,

    /// How many processes race [default: 2, or 1 if the locks or the archive are in memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) processes: Option<u16>,

    /// Where the locks are: sqlite:FILE, memory:, s3://BUCKET/PREFIX, ... [default: an SQLite file beside the archive]
    #[arg(
        long,
        value_name = "URL",
        env = "LOCKCORE_URL",
        hide_env_values = true,
        conflicts_with = "no_locks"
    )]
    pub(crate) locks: Option<String>,

    /// How long a worker waits for an object that another one has locked
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) wait: Duration,

    /// Shows what goes wrong without locks
    #[arg(long)]
    pub(crate) no_locks: bool,

    /// Prints the report as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Pauses before and between the two writes of an object, to make races likelier
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration, hide = true)]
    pub(crate) pause: Duration,

    /// A folder in which all workers of all processes meet at an object before one of them writes it: they have found it
    /// missing, or locked
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) meet: Option<PathBuf>,

    /// Is one of several processes: takes its plan from stdin
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}
