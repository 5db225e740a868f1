//! Several processes on one archive: this program started again, which reads the plan from stdin and reports on stdout.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin, Stdout},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    job::Job,
    plan::Plan,
    progress::{self, Progress},
    report::describe,
    store::Archive,
    tally::Tally,
};

/// A line of what a process tells.
#[derive(Serialize, Deserialize)]
enum Message {
    /// It is connected and waits for the start.
    Ready,
    Progress {
        visits: u64,
        written: u64,
    },
    Ended(Tally),
}

/// A process that was started.
struct Process {
    number: u16,
    child: Child,
    stdin: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

/// Runs the plan in as many processes as it says, which all start at the same moment.
///
/// A process that dies is an error in the tally, not of this: the others do its work.
pub(crate) async fn run(plan: &Plan, progress: &Progress) -> anyhow::Result<Tally> {
    let mut processes = Vec::new();
    for number in 1..=plan.processes {
        processes.push(Process::start(number, plan).await?);
    }
    for process in &mut processes {
        process.expect_ready().await?;
    }
    let started = Instant::now();
    let mut tally = Tally::default();
    for ended in join_all(processes.into_iter().map(|process| process.run_to_end(progress))).await {
        match ended {
            Ok(counted) => tally.merge(counted),
            Err(died) => tally.fail(describe(&died)),
        }
    }
    tally.elapsed = started.elapsed();
    Ok(tally)
}

/// Is one of the processes.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let (mut stdin, mut stdout) = (BufReader::new(tokio::io::stdin()).lines(), tokio::io::stdout());
    let plan: Plan = serde_json::from_str(&next_line(&mut stdin).await?).context("the plan")?;
    let plan = Arc::new(plan);
    let files = Arc::new(plan.scan()?);
    let archive = Arc::new(Archive::open(&plan)?);
    let progress = Progress::new();
    let job = Job::new(&plan, &files, &archive, &progress).await?;
    tell(&mut stdout, &Message::Ready).await?;
    next_line(&mut stdin).await?;

    let mut job = std::pin::pin!(job.run());
    let tally = loop {
        tokio::select! {
            tally = &mut job => break tally,
            () = tokio::time::sleep(progress::EVERY) => tell(&mut stdout, &Message::of(&progress)).await?,
        }
    };
    tell(&mut stdout, &Message::of(&progress)).await?;
    tell(&mut stdout, &Message::Ended(tally)).await
}

impl Message {
    fn of(progress: &Progress) -> Self {
        Message::Progress { visits: progress.visits.load(Relaxed), written: progress.written.load(Relaxed) }
    }
}

impl Process {
    async fn start(number: u16, plan: &Plan) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own path")?;
        let mut child = Command::new(program)
            .arg("--child")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start another process")?;
        let mut stdin = child.stdin.take().expect("piped just now");
        let said = BufReader::new(child.stdout.take().expect("piped just now")).lines();
        let mut told = serde_json::to_vec(plan)?;
        told.push(b'\n');
        // That it died at once is reported when its output is read.
        let _ = stdin.write_all(&told).await;
        Ok(Process { number, child, stdin, said })
    }

    async fn expect_ready(&mut self) -> anyhow::Result<()> {
        match self.receive().await? {
            Message::Ready => Ok(()),
            _ => bail!("process {} speaks out of turn", self.number),
        }
    }

    async fn run_to_end(mut self, progress: &Progress) -> anyhow::Result<Tally> {
        let _ = self.stdin.write_all(b"go\n").await;
        let (mut visits_told, mut written_told) = (0, 0);
        let add = |to: &AtomicU64, told: &mut u64, now: u64| {
            to.fetch_add(now.saturating_sub(std::mem::replace(told, now)), Relaxed);
        };
        loop {
            match self.receive().await? {
                Message::Ready => bail!("process {} speaks out of turn", self.number),
                Message::Progress { visits, written } => {
                    add(&progress.visits, &mut visits_told, visits);
                    add(&progress.written, &mut written_told, written);
                }
                Message::Ended(tally) => {
                    self.child.wait().await?;
                    return Ok(tally);
                }
            }
        }
    }

    async fn receive(&mut self) -> anyhow::Result<Message> {
        match self.said.next_line().await? {
            Some(line) => Ok(serde_json::from_str(&line)?),
            None => {
                let status = self.child.wait().await?;
                bail!(
                    "process {} died before its end ({status}), what it counted is not in this report",
                    self.number
                )
            }
        }
    }
}

async fn next_line(stdin: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    stdin.next_line().await?.context("the process that started this one is gone")
}

async fn tell(stdout: &mut Stdout, message: &Message) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stdout.write_all(&line).await?;
    stdout.flush().await?;
    Ok(())
}
