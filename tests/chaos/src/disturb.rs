//! Causes faults, one after the other, until the workers are done.

use std::{
    convert::Infallible,
    iter,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use lockcore::{BreakMode, LockError, LockingService, Target};
use lockcore_conformance::servers::{self, Cluster, Copies, Mode as Line, Proxy, Server};
use lockcore_torture::{
    crew::Crew,
    history::{self, Recorder, Stage},
    worker::id,
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    clock,
    driver::{Run, STUCK},
    faults::Kind,
    store::{Home, NAMESPACE, Store},
};

/// More connections than any of the servers allows.
const MOST_CONNECTIONS: usize = 1100;

/// How often a server is looked at that may have ended.
const REVIVED: Duration = Duration::from_secs(2);

/// Causes faults.
pub(crate) struct Faults<'a> {
    run: &'a Run,
    store: Option<&'a Store>,
    locks: &'a LockingService,
    crew: &'a Crew,
    /// The ids of which a request to freeze may arrive after the one to thaw them.
    in_doubt: Mutex<Vec<Target<String>>>,
}

impl<'a> Faults<'a> {
    pub(crate) fn new(
        run: &'a Run,
        store: Option<&'a Store>,
        locks: &'a LockingService,
        crew: &'a Crew,
    ) -> Self {
        Faults { run, store, locks, crew, in_doubt: Mutex::default() }
    }

    /// Causes one fault after the other, each of which it ends, until the crew is told to end.
    pub(crate) async fn cause(&self) -> anyhow::Result<()> {
        let mut rng = Rng::with_seed(self.run.seed);
        let recorder = Recorder::create(&self.crew.history("driver"))?;
        let kinds = self.run.possible_faults();
        while !self.crew.has_ended() {
            let Some(kind) = rng.choice(kinds.iter().copied()) else { return Ok(()) };
            self.crew.pause(self.run.every.mul_f64(rng.f64())).await;
            let begun = history::now();
            let one = timeout(STUCK, self.one(kind, &mut rng)).await;
            let worker = one.with_context(|| format!("{kind} does not end"))??;
            let millis = (history::now() - begun) / 1_000_000 + 1;
            let (kind, loses_grants) = (kind.to_string(), self.run.backend.may_lose_grants(kind));
            recorder.at(begun, 0, Stage::Fault { kind, millis, worker, loses_grants });
            timeout(STUCK, self.thaw()).await.context("a request to thaw does not end")?;
        }
        Ok(())
    }

    /// Starts a server again that has ended by itself, on a disk that failed it for a moment: that is a fault as well. One whose files are
    /// in memory ends the run.
    pub(crate) async fn revive(&self) -> anyhow::Result<Infallible> {
        let recorder = Recorder::create(&self.crew.history("revived"))?;
        let servers: Vec<(&Server, &Proxy)> = match self.store.map(|store| &store.home) {
            Some(Home::Server(server, proxy, _)) => vec![(server, proxy)],
            Some(Home::Members(cluster, proxies)) => iter::zip(cluster.members(), proxies).collect(),
            _ => Vec::new(),
        };
        loop {
            sleep(REVIVED).await;
            for (server, proxy) in &servers {
                let begun = history::now();
                if server.revive().await? {
                    ensure!(
                        self.run.possible_faults().contains(&Kind::Restart),
                        "the server has ended by itself"
                    );
                    eprintln!("{server:?} had ended by itself");
                    proxy.redirect(server.address());
                    let millis = (history::now() - begun) / 1_000_000 + REVIVED.as_millis() as u64;
                    let (kind, loses_grants) = (Kind::Restart.to_string(), false);
                    recorder.at(begun, 0, Stage::Fault { kind, millis, worker: None, loses_grants });
                }
            }
        }
    }

    fn in_doubt(&self) -> MutexGuard<'_, Vec<Target<String>>> {
        self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thaws again what may be frozen by a late request: those who wait for ever would do so for it.
    async fn thaw(&self) {
        let in_doubt = self.in_doubt().clone();
        for target in in_doubt {
            // Tried again after the next fault.
            let _ = self.locks.admin().freeze(&target, false).await;
        }
    }

    /// Causes one fault and ends it; returns the worker that was disturbed, if it was only one.
    async fn one(&self, kind: Kind, rng: &mut Rng) -> anyhow::Result<Option<String>> {
        let lease = self.run.backend.lease();
        let short = Duration::from_millis(rng.u64(10..500));
        let long = lease.mul_f64(0.2 + rng.f64() * 2.0);
        match (kind, self.store.map(|store| &store.home)) {
            (Kind::Kill, _) => return Ok(self.crew.kill_one(rng)?),
            (Kind::Stop, _) => return Ok(self.crew.stop_one(rng, long).await?),
            // The store may be busy with the workers: a fault that could not be caused is one fewer.
            (Kind::Break, _) => drop(self.break_one(rng).await),
            (Kind::Freeze, _) => {
                let target = Target::Id(id(rng.u64(..self.run.ids)));
                // An answer that did not come in time says nothing: it may be frozen all the same.
                if let Err(error) = self.locks.admin().freeze(&target, true).await {
                    eprintln!("{target:?} is perhaps frozen: {error}");
                    self.in_doubt().push(target.clone());
                }
                sleep(short).await;
                // What is still frozen at the end is seen then.
                while self.locks.admin().freeze(&target, false).await.is_err() && !self.crew.has_ended() {
                    sleep(short).await;
                }
            }
            (Kind::StepClock, _) => {
                let worker = rng.u64(1..=self.run.workers);
                clock::set(&self.run.clock(worker), rng.i64(-clock::FURTHEST..=clock::FURTHEST))?;
            }
            (Kind::Pause, Some(Home::Server(server, ..))) => {
                // The kernel cannot always freeze a container; then there is nothing to resume.
                if server.pause().await.is_ok() {
                    sleep(long).await;
                    server.resume().await?;
                }
            }
            (Kind::Pause, Some(Home::Mounted(mounts))) => {
                let mount = rng.usize(..2);
                mounts.freeze(mount, true)?;
                sleep(long).await;
                mounts.freeze(mount, false)?;
            }
            (Kind::Restart | Kind::Forget, Some(Home::Server(server, proxy, _))) => {
                if kind == Kind::Forget {
                    servers::wire::redis_command(&server.address(), "FLUSHALL").await?;
                }
                server.kill().await?;
                sleep(short).await;
                server.restart().await?;
                proxy.redirect(server.address());
            }
            (Kind::Exhaust, Some(Home::Server(server, proxy, _))) => {
                proxy.set(Line::Reset).await;
                let mut taken = Vec::new();
                // Each is accepted by the kernel, also those that the server then refuses.
                for _ in 0..MOST_CONNECTIONS {
                    taken.extend(TcpStream::connect(server.address()).await.ok());
                }
                proxy.set(Line::Pass).await;
                sleep(long).await;
            }
            (Kind::FillDisk, Some(Home::Server(server, ..))) => {
                server.fill_disk().await?;
                sleep(long).await;
                server.free_disk().await?;
            }
            (Kind::Failover, Some(Home::Replicated(replicated, proxy))) => {
                proxy.redirect(replicated.fail_over().await?);
                proxy.set(Line::Reset).await;
                proxy.set(Line::Pass).await;
                sleep(short).await;
                replicated.replace().await?;
            }
            (Kind::Failover, Some(Home::Watched(watched))) => {
                let old = watched.current().await?;
                let mut both = [&watched.master, &watched.replica].into_iter();
                let new = both.find(|server| server.address() != old.address());
                let new = new.context("there are two")?;
                old.pause().await?;
                watched.promoted(new).await?;
                sleep(short).await;
                // Until the sentinel corrects it, it believes that it is the master.
                old.resume().await?;
                watched.in_step(old).await?;
            }
            // Of a minority, so that the others go on.
            (Kind::Pause | Kind::Restart | Kind::Failover, Some(Home::Members(cluster, proxies))) => {
                let leader = if kind == Kind::Failover { cluster.leader().await } else { None };
                let position = leader.unwrap_or_else(|| rng.usize(..proxies.len()));
                let member = &cluster.members()[position];
                if kind == Kind::Restart {
                    member.kill().await?;
                    sleep(short).await;
                    member.restart().await?;
                    proxies[position].redirect(member.address());
                } else {
                    member.pause().await?;
                    // The others need a second to have a leader, and a request to it lasts three.
                    sleep(long / 4).await;
                    member.resume().await?;
                }
            }
            (Kind::Reshard, Some(Home::Cluster(cluster))) => reshard(cluster, rng).await?,
            (Kind::Silence, Some(Home::Server(_, proxy, _))) => proxy.silence(),
            (Kind::Double, Some(Home::Server(_, _, Some(proxy)))) => {
                proxy.set(if rng.bool() { Copies::AtOnce } else { Copies::After(short) });
                sleep(long).await;
                proxy.set(Copies::None);
            }
            (_, Some(Home::Server(_, proxy, _))) => {
                let line = match kind {
                    Kind::Cut => Line::Reset,
                    Kind::CutAfter => Line::CutAfter(rng.u64(1..20)),
                    Kind::Refuse => Line::Refuse,
                    Kind::LoseRequests => Line::DropRequests,
                    Kind::LoseReplies => Line::DropReplies,
                    _ => Line::Delay { requests: short / 4, replies: short / 4 },
                };
                proxy.set(line).await;
                sleep(if kind == Kind::Cut { Duration::from_millis(1) } else { long }).await;
                proxy.set(Line::Pass).await;
            }
            (_, _) => bail!("{kind} is not for this backend"),
        }
        Ok(None)
    }

    async fn break_one(&self, rng: &mut Rng) -> Result<(), LockError> {
        let admin = self.locks.admin();
        let target = Target::Id(id(rng.u64(..self.run.ids)));
        let seen = admin.inspect(&target).await?;
        if let Some(holder) = rng.choice(&seen.holders) {
            admin.break_lock(&target, holder.fence, BreakMode::AfterLease).await?;
        }
        Ok(())
    }
}

/// Moves the slot of the namespace from the node that has it to another, key by key.
async fn reshard(cluster: &Cluster, rng: &mut Rng) -> anyhow::Result<()> {
    let ask =
        async |node: &Server, command: &str| servers::wire::redis_command(&node.address(), command).await;
    let mut others: Vec<&Server> = cluster.nodes().iter().collect();
    let mut source = None;
    for (at, node) in others.iter().enumerate() {
        // The others name the node that has it.
        if ask(node, &format!("EXISTS {}", key("/f"))).await.is_ok() {
            source = Some(at);
        }
    }
    let source = others.swap_remove(source.context("a node has the slot")?);
    let target = rng.choice(others).context("there are other nodes")?;
    let slot = ask(source, &format!("CLUSTER KEYSLOT {}", key("/f"))).await?;
    let (from, to) = (ask(source, "CLUSTER MYID").await?, ask(target, "CLUSTER MYID").await?);
    ask(target, &format!("CLUSTER SETSLOT {slot} IMPORTING {from}")).await?;
    ask(source, &format!("CLUSTER SETSLOT {slot} MIGRATING {to}")).await?;
    let address = target.address().replace(':', " ");
    loop {
        let keys = ask(source, &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await?;
        if keys.is_empty() {
            break;
        }
        for key in keys.lines() {
            ask(source, &format!("MIGRATE {address} {key} 0 5000")).await?;
        }
    }
    for node in [target, source] {
        ask(node, &format!("CLUSTER SETSLOT {slot} NODE {to}")).await?;
    }
    Ok(())
}

/// A key of the namespace on Redis.
fn key(name: &str) -> String {
    format!("{{{NAMESPACE}}}{name}")
}
