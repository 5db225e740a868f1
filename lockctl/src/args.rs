//! The command line.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;
use lockcore::{Claim, Ident, Mode, Target};
use lockcore_any::{Waiting, parse_duration, trimmed};
use lockcore_torture::worker::Cheat;
use uuid::Uuid;

use crate::exit::{self, Code, Failure};

/// Locks for programs in any language: hold a set of ids while a command runs.
#[derive(Parser, Debug)]
#[command(version, after_help = exit::help(), propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Store and output")]
pub(crate) struct Global {
    /// The store, such as sqlite:/var/lib/locks.db (env: LOCKCORE_URL; file: url)
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The configuration file (env: LOCKCORE_CONFIG; default: lockcore.toml if it is there, and only you and
    /// root can have written it)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Keeps applications in one store apart (env: LOCKCORE_NAMESPACE; file: namespace)
    #[arg(long, global = true)]
    pub(crate) namespace: Option<String>,
    /// The label that shows people who holds a lock (env: LOCKCORE_OWNER; default: user@host:pid)
    #[arg(long, global = true)]
    pub(crate) owner: Option<String>,
    /// A small JSON value that `show` and `leader` give beside the label, such as {"port":8080}
    #[arg(long, global = true, value_name = "JSON", value_parser = json)]
    pub(crate) data: Option<String>,
    /// Write JSON: results to stdout, what goes wrong to stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Hold a set of locks while a command runs; does not wait for them unless --wait is given
    #[command(after_long_help = RUN_HELP)]
    Run(Run),
    /// Run a command while this candidate leads: one of many at a time, which wait for their turn
    ///
    /// The command is ended before another candidate can lead. LOCKCORE_FENCE is the term, which is higher than that of every
    /// leader before.
    Elect(Elect),
    /// Show who leads: the value that the leader gave; exits with 120 if there is no leader
    Leader {
        /// The name of the election
        #[arg(value_parser = name)]
        name: String,
    },
    /// Take a set of locks that outlives this process, and print a token for them; they end with their lease
    ///
    /// The locks last for one lease (--lease, else the store's default) unless `lockctl renew TOKEN` extends them.
    #[command(after_long_help = ACQUIRE_HELP)]
    Acquire(Acquire),
    /// Release what a token stands for
    Release {
        /// What `acquire` printed; - reads it from standard input
        #[arg(value_parser = name)]
        token: String,
    },
    /// Extend the lease of what a token stands for to its whole length from now
    Renew {
        /// What `acquire` printed; - reads it from standard input
        #[arg(value_parser = name)]
        token: String,
        /// How long it lasts from now, such as 30s, if it would not last longer anyway; by default as long as it was taken for
        #[arg(long, value_parser = parse_duration, allow_hyphen_values = true)]
        lease: Option<Duration>,
    },
    /// Check that all that a token stands for is still held; exits with 122 if it is not
    Check {
        /// What `acquire` printed; - reads it from standard input
        #[arg(value_parser = name)]
        token: String,
    },
    /// List what is locked, waited for or frozen
    Ls,
    /// Show why an id cannot be had: its holders, what these wait for, and cycles among them
    Why {
        #[command(flatten)]
        target: TargetArg,
        /// Print the graph in the DOT language of Graphviz
        #[arg(long)]
        dot: bool,
    },
    /// Watch what is locked: a table that is refreshed on a terminal, a line of JSON for each change elsewhere
    ///
    /// With an id, a line of JSON for each change of it: acquired, ended (by release, lease or break), broken, frozen, thawed.
    Watch {
        /// The id, if only one is to be watched
        #[arg(value_parser = name)]
        id: Option<String>,
        /// How often to look, such as 1s
        #[arg(long, value_parser = parse_duration, default_value = "1s", value_name = "DURATION")]
        every: Duration,
    },
    /// Wait until no id is held, without taking any; exits with 124 if that takes too long
    Wait {
        /// The ids
        #[arg(required = true, value_parser = name)]
        ids: Vec<String>,
        /// For how long, such as 5m
        #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
        timeout: Option<Duration>,
        /// How often to look, such as 1s
        #[arg(long, value_parser = parse_duration, default_value = "1s", value_name = "DURATION")]
        every: Duration,
    },
    /// Measure how long the store takes to lock and release ids that were never locked before
    Bench(Bench),
    /// Try whether the store keeps its promises while processes are killed, stopped and paused, in a namespace of its own
    #[command(after_long_help = TORTURE_HELP)]
    Torture(Torture),
    /// Show all that is known of one id
    Show {
        #[command(flatten)]
        target: TargetArg,
    },
    /// Break a lock: its holder loses it, and the next waiter gets it
    Break {
        #[command(flatten)]
        target: TargetArg,
        /// The fence that the lock is held under, as `show` prints it; a later holder is not touched
        #[arg(long, allow_hyphen_values = true)]
        fence: u64,
        /// Do not wait for the holder to stop or its lease to end: both may run at the same time
        #[arg(long)]
        now: bool,
    },
    /// Freeze an id: its holders keep it, and no others get it
    Freeze {
        #[command(flatten)]
        target: TargetArg,
        /// Thaw it
        #[arg(long)]
        thaw: bool,
    },
    /// Remove expired entries
    Sweep {
        /// How much to remove in one step
        #[arg(long, default_value = "100")]
        batch: usize,
    },
    /// Create or migrate the store's schema
    Migrate {
        /// Change nothing; print what creates it, or what a program needs to be allowed, for another tool:
        /// cloudformation, terraform or iam for DynamoDB, sql for Postgres, MySQL and MariaDB
        #[arg(long, value_name = "LANGUAGE")]
        print: Option<String>,
    },
    /// Check the store for settings that weaken the guarantees
    Doctor {
        /// Try for so long whether the way from this host to a share, a bucket or etcd keeps its promises: run it on two hosts at the
        /// same time
        #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "30s", value_parser = parse_duration)]
        verify: Option<Duration>,
    },
    /// Write manual pages, one for each command, into a folder such as /usr/local/share/man/man1
    Man {
        /// The folder, which must exist
        folder: PathBuf,
    },
    /// Write a completion script for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// End a command in time if `lockctl run` cannot; started by `lockctl run` alone
    #[command(hide = true)]
    Watchdog {
        /// The pid of the `lockctl` that started it, for those who look at the list of processes
        lockctl: u32,
        /// The context that holds the command's locks
        context: Uuid,
    },
    /// Lock at random as standard input says; started by `lockctl torture` alone
    #[command(hide = true)]
    TortureWorker,
}

const RUN_HELP: &str = "\
Examples:
  lockctl run --id nightly-report -- ./report.sh
  lockctl run --id s3://bag/1 --id s3://bag/2 --wait 5m -- ./ingest bag/1 bag/2
  lockctl run --slots export=3 --wait forever -- sh -c './export \"$HOME\"'
  lockctl run --id nightly-report --once-per 24h -- ./report.sh

The command's environment:
  LOCKCORE_CONTEXT  the context that holds the locks
  LOCKCORE_FENCE    the fence, if there is one lock or --once
  LOCKCORE_FENCES   all fences as a JSON object, {\"ID\": FENCE, ...}; the global lock's key is \"\"
  LOCKCORE_PERMITS  the permit indexes of slots as a JSON object, {\"ID\": [INDEX, ...], ...}
  LOCKCORE_URL, LOCKCORE_NAMESPACE, LOCKCORE_CONFIG  what --url, --namespace and --config said, so that a lockctl inside the
                    command finds the same store; not a --url with a secret in it: put that into the variable yourself, instead
                    of --url, or the command finds `withheld:`, and no store
  LOCKCORE_ENCLOSING  the contexts of this and of all enclosing commands, each with an id: a lockctl inside the command passes
                    the queue while any of them holds locks in its store, and does not wait for an id of theirs

TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to the command's process group; while still waiting \
for the locks they end lockctl. Before the locks can be lost the process group gets TERM, and KILL \
shortly before the lease ends, or at once if the locks are gone already, as after `break --now`. If lockctl \
itself is stopped or killed, a watchdog process does the same; the locks then end with their lease. Whatever \
the command leaves running in the background, or in another process group, goes on without the locks.

As PID 1 of a container lockctl does not wait for orphans: put an init before it, such as `docker run --init`. A command that is \
started by socket activation or watched by systemd compares LISTEN_PID or WATCHDOG_PID with its own: start it with \
sh -c 'LISTEN_PID=$$ WATCHDOG_PID=$$ exec PROGRAM'. What it writes to NOTIFY_SOCKET does not come from the unit's main process: \
the unit needs NotifyAccess=all.";

const ACQUIRE_HELP: &str = "\
Example:
  token=$(lockctl acquire --id deploy --lease 10m --wait 1m) || exit
  ./deploy && lockctl renew \"$token\" && ./verify
  lockctl release \"$token\"

A token of many ids may be too long for a command line: `lockctl release -` reads it from standard input.";

const TORTURE_HELP: &str = "\
Says what it will do, and asks first. Processes of this host lock random sets and record what they see; they are killed, stopped \
and paused past their leases. A checker that uses nothing of lockcore looks for two holders at once, fences that go back, writes of \
former holders that a guard admitted, requests served out of turn, calls without an end, and locks that are left behind. Nothing but \
the namespace is touched. It exits with 0 if no promise was broken, with 1 if one was, and with 123 or 124 if it could not be judged: \
the store failed, or this machine stood still.

The last line has kind, version and topology of the store and what was counted: nothing of host, path, user or password. Send it in.";

/// How to try a store.
#[derive(Args, Debug)]
pub(crate) struct Torture {
    /// The store, instead of --url; where several ways lead to one store, such as two mounts of a share, all of them: the processes
    /// take turns
    #[arg(value_name = "URL")]
    pub(crate) stores: Vec<String>,
    /// How long, such as 2m
    #[arg(long = "for", value_parser = parse_duration, default_value = "2m", value_name = "DURATION")]
    pub(crate) time: Duration,
    /// End after so many operations instead, each of which locks a set
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) operations: Option<u64>,
    /// How many processes
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u64).range(1..=64), value_name = "N")]
    pub(crate) workers: u64,
    /// What decides which sets are locked and which processes are disturbed; the order of steps is the machine's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Have the processes break a promise, to see that it is found, such as NoLock
    #[arg(long, value_name = "WAY")]
    pub(crate) cheat: Option<Cheat>,
}

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// How many ids each set has
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) ids: u32,
    /// How many tasks lock at the same time
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) tasks: u32,
    /// How long to measure
    #[arg(long, value_parser = parse_duration, default_value = "5s", value_name = "DURATION")]
    pub(crate) time: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) locking: Locking,
    /// Keep the locks for so long at least, counted from when they are taken, such as 50s, whatever becomes of lockctl; for jobs that
    /// several hosts start. A CMD that cannot be started keeps nothing
    #[arg(long, value_parser = parse_duration, allow_hyphen_values = true, help_heading = "Locks", value_name = "DURATION")]
    pub(crate) keep_for: Option<Duration>,
    /// Run CMD once for this fire among all hosts, such as 2026-11-29; --id is the name of the job. While it runs elsewhere, or once it
    /// ran, CMD is not run: that is no failure (exit code 0), and said on a terminal and with --json only. If CMD fails or lockctl is
    /// killed another host may run it. Name a fire by when it was scheduled, not by the time at which a host starts
    #[arg(long, value_name = "FIRE", value_parser = name, help_heading = "Locks", conflicts_with_all = ["once_per", "keep_for"])]
    pub(crate) once: Option<String>,
    /// The same for a job that all hosts start each PERIOD, such as 24h, without a name for each fire: it may run again half a period
    /// after it began. No host may be late by more
    #[arg(long, value_name = "PERIOD", value_parser = parse_duration, help_heading = "Locks", conflicts_with = "keep_for")]
    pub(crate) once_per: Option<Duration>,
    /// How long a fire is known to have run, such as 7d [default: 2d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Locks", requires = "once")]
    pub(crate) keep: Option<Duration>,
    /// Exit with this code, and print nothing, if others are in the way (else 120 or 124); 0 for a cron job that may be skipped
    #[arg(long, help_heading = "Locks", value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD", help_heading = "Arguments")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// The name of the election
    #[arg(long, value_name = "NAME", value_parser = name)]
    id: String,
    /// What `lockctl leader` shows while this candidate leads, such as its address
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    value: String,
    /// How long a term lasts unless renewed, such as 30s (env: LOCKCORE_LEASE; default: the backend's)
    #[arg(long, value_parser = parse_duration, allow_hyphen_values = true)]
    lease: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD", help_heading = "Arguments")]
    command: Vec<OsString>,
}

impl Elect {
    /// Returns the owner label, and what holds the lock of the leader.
    pub(crate) fn into_run(self) -> (String, Run) {
        let Elect { id, value, lease, command } = self;
        let claims = Claims { id: vec![id], ..Claims::default() };
        let locking = Locking { claims, top: None, wait: Some(Waiting::Forever), lease };
        let (keep_for, once, once_per, keep) = (None, None, None, None);
        (value, Run { locking, keep_for, once, once_per, keep, conflict_exit_code: None, command })
    }
}

#[derive(Args, Debug)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) locking: Locking,
}

/// What to lock, and how.
#[derive(Args, Debug)]
#[command(next_help_heading = "Locks")]
pub(crate) struct Locking {
    #[command(flatten)]
    claims: Claims,
    /// The widest path that is ever locked with --subtree, such as s3://bucket/
    #[arg(long, value_name = "PATH", requires = "subtree", value_parser = name)]
    top: Option<String>,
    /// How long to wait for others to release, and for a store that is unavailable: never, forever, or a duration
    /// (env: LOCKCORE_WAIT; default: never). One request or connection takes no longer than the backend's own timeout
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) wait: Option<Waiting>,
    /// How long the locks last unless renewed, such as 30s (env: LOCKCORE_LEASE; default: the backend's)
    #[arg(long, value_parser = parse_duration, allow_hyphen_values = true)]
    pub(crate) lease: Option<Duration>,
}

#[derive(Args, Debug, Default)]
#[group(required = true, multiple = true)]
#[command(next_help_heading = "Locks")]
struct Claims {
    /// Lock this id alone; --id, --shared and --slots may be repeated
    #[arg(long, value_name = "ID", value_parser = name)]
    id: Vec<String>,
    /// Lock this id together with other shared holders
    #[arg(long, value_name = "ID", value_parser = name)]
    shared: Vec<String>,
    /// Take a permit of this id of which at most LIMIT may be held at once, or K permits: ID=K/LIMIT
    #[arg(long, value_name = "ID=LIMIT", value_parser = slots)]
    slots: Vec<Claim<String>>,
    /// Lock this path and all below it, against others that use --subtree with the same --top; /data/a and /data/a/ are one path,
    /// and its id is /data/a/
    #[arg(long, value_name = "PATH", requires = "top", value_parser = name)]
    subtree: Vec<String>,
    /// Lock the global lock of the namespace, alone
    #[arg(long)]
    global: bool,
}

impl Locking {
    pub(crate) fn claims(&self) -> Result<Vec<Claim<String>>, Failure> {
        let Claims { id, shared, slots, subtree, global } = &self.claims;
        let mut claims: Vec<_> = id.iter().cloned().map(Claim::exclusive).collect();
        claims.extend(shared.iter().cloned().map(Claim::shared));
        claims.extend(slots.iter().cloned());
        for path in subtree {
            let below = Claim::subtree(self.top.as_deref().unwrap_or_default(), path);
            claims.extend(below.map_err(|error| Failure::usage(error.to_string()))?);
        }
        claims.extend(global.then(Claim::global));
        Ok(claims)
    }

    /// Returns the id, if that is all.
    pub(crate) fn only_id(&self) -> Option<&str> {
        let Claims { id, shared, slots, subtree, global } = &self.claims;
        let others = !shared.is_empty() || !slots.is_empty() || !subtree.is_empty() || *global;
        match &id[..] {
            [only] if !others => Some(only),
            _ => None,
        }
    }
}

/// One id, or the global lock.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct TargetArg {
    /// The id
    #[arg(value_parser = name)]
    id: Option<String>,
    /// The global lock of the namespace instead
    #[arg(long)]
    global: bool,
}

impl TargetArg {
    pub(crate) fn target(&self) -> Target<String> {
        match &self.id {
            Some(id) => Target::Id(id.clone()),
            None => Target::Global,
        }
    }
}

/// Checks that it is JSON.
fn json(text: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
    Ok(value.to_string())
}

/// Reads an id, a path or a token: a line end behind it is not meant.
fn name(text: &str) -> Result<String, &'static str> {
    trimmed(text).map(str::to_owned)
}

/// Reads `ID=LIMIT` or `ID=K/LIMIT`; the id may hold a `=`.
fn slots(text: &str) -> Result<Claim<String>, String> {
    let expected = || "it must be ID=LIMIT or ID=K/LIMIT, such as pool=3 or pool=2/3".to_owned();
    let text = trimmed(text)?;
    let (id, numbers) = text.rsplit_once('=').ok_or_else(expected)?;
    let id = name(id)?;
    let (permits, limit) = numbers.split_once('/').unwrap_or(("1", numbers));
    match (permits.parse(), limit.parse()) {
        (Ok(permits), Ok(limit)) => {
            Ok(Claim { target: Target::Id(id), mode: Mode::Slots { permits, limit } })
        }
        _ => Err(expected()),
    }
}

/// How an id is shown: quoted, so that nothing in it is taken for anything else.
pub(crate) fn quoted<I: Ident>(target: &Target<I>) -> String {
    target.to_string()
}

/// Whether JSON was asked for on a command line that could not be read; behind `--` stands the command's own.
fn wants_json() -> bool {
    std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// Whether a command may have been given to `run` without `--` before it.
fn lacks_separator(kind: ErrorKind) -> bool {
    kind == ErrorKind::UnknownArgument
        && std::env::args_os().any(|argument| argument == "run")
        && !std::env::args_os().any(|argument| argument == "--")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes help to where it belongs, or a mistake as one line.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is no reason to complain: who asked has read enough.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(Code::Usage as u8)
        }
        _ => {
            let text = error.to_string();
            let mut paragraphs = text.split("\n\n").map(str::trim_start);
            let first = paragraphs.next().unwrap_or_default();
            let tips = paragraphs.filter(|paragraph| paragraph.starts_with("tip: "));
            let mut line = one_line(first.strip_prefix("error: ").unwrap_or(first));
            match lacks_separator(error.kind()) {
                true => line += "; a command stands behind `--`: lockctl run --id ID -- CMD",
                false => tips.for_each(|tip| line += &format!("; {}", one_line(tip))),
            }
            crate::output::Output::new(wants_json()).fail(&Failure::usage(line))
        }
    }
}
