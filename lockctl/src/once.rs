//! `lockctl run --once` and `--once-per`: a command that one of many hosts runs.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use lockcore::{AnyLockDao, Claim, Held, Holder, LockError, LockingService, Once, OnceCall, OnceGuard, Wait};
use lockcore_any::Waiting;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    args::Run,
    environment::{self, Guard},
    exit::Failure,
    output::{Output, say},
    show, text,
};

/// A fire of a job.
#[derive(Clone, Debug)]
pub(crate) struct Fire {
    name: String,
    when: When,
}

/// The part of a fire that tells it from others of its job.
#[derive(Clone, Debug)]
enum When {
    /// Its name, and for how long it is kept if that is not the default.
    Named(String, Option<Duration>),
    /// The time between two fires.
    Each(Duration),
}

impl Fire {
    /// Returns the fire that the command is to be run for, if it is.
    pub(crate) fn of(run: &Run) -> Result<Option<Self>, Failure> {
        let (option, when) = match (&run.once, run.once_per) {
            (Some(fire), _) => ("--once", When::Named(fire.clone(), run.keep)),
            (None, Some(period)) => ("--once-per", When::Each(period)),
            (None, None) => return Ok(None),
        };
        let only = run.locking.only_id();
        let name = only.ok_or_else(|| {
            Failure::usage(format!("{option}: it needs one --id, the name of the job, and no other locks"))
        })?;
        Ok(Some(Fire { name: name.to_owned(), when }))
    }

    /// Returns the id that stays locked after a success.
    pub(crate) fn id(&self) -> String {
        match &self.when {
            When::Named(fire, _) => format!("{}@{fire}", self.name),
            When::Each(_) => format!("{}@latest", self.name),
        }
    }

    /// Returns the locks of the fire, the first of which is locked only while the command runs.
    pub(crate) fn claims(&self) -> Vec<Claim<String>> {
        vec![Claim::exclusive(format!("{}@running", self.id())), Claim::exclusive(self.id())]
    }

    /// Takes the locks of the fire, unless it runs or ran elsewhere.
    pub(crate) async fn lock(
        &self,
        locks: &LockingService,
        wait: Waiting,
    ) -> Result<Once<OnceGuard>, LockError<String, Uuid>> {
        environment::refuse_enclosed(locks, wait, &self.claims()).await?;
        self.call(locks, wait.into()).lock().await
    }

    fn call<'a>(&self, locks: &'a LockingService, wait: Wait) -> OnceCall<'a, Uuid, AnyLockDao> {
        match &self.when {
            When::Named(fire, keep) => {
                let call = locks.wait(wait).once(&self.name, fire);
                if let Some(keep) = *keep { call.keep(keep) } else { call }
            }
            When::Each(period) => locks.wait(wait).once_per(&self.name, *period),
        }
    }

    /// Says that the command is running or ran elsewhere: on a terminal to people, and as JSON.
    pub(crate) fn elsewhere(&self, output: Output, by: &Elsewhere) -> Result<(), Failure> {
        let (state, verb, holder) = match by {
            Elsewhere::Running(holder) => ("running", "is running since", holder),
            Elsewhere::Ran(holder) => ("ran", "ran at", holder),
        };
        if output.is_json() {
            let shown = || json!({ "id": self.id(), "state": state, "by": shown(holder) });
            return output.result(String::new, shown);
        }
        // Not in the mail of a cron job: that another host runs it is as it should be.
        if io::stderr().is_terminal() {
            let since = holder.since().map_or_else(|| "?".to_owned(), text::time);
            let owner = match holder.owner.label() {
                "" => text::harmless(&holder.context.to_string()),
                label => text::harmless(label),
            };
            say(&format!("{:?} {verb} {since} by {owner}", self.id()));
        }
        Ok(())
    }
}

/// The holder of a fire that is not this process's to run.
#[derive(Debug)]
pub(crate) enum Elsewhere {
    Running(Holder<Uuid>),
    Ran(Holder<Uuid>),
}

fn shown(holder: &Holder<Uuid>) -> Value {
    let mut shown = show::holder_in_the_way(holder);
    shown.insert("since".to_owned(), holder.since().map_or(Value::Null, show::time));
    shown.into()
}

/// The locks that a command runs under.
pub(crate) enum Job {
    Set(Guard),
    Fire(OnceGuard),
}

impl Job {
    pub(crate) fn held(&self) -> &Held<String, Uuid> {
        match self {
            Job::Set(guard) => guard.held(),
            Job::Fire(guard) => guard.held(),
        }
    }

    /// Returns the fence, if there is one that stands for all of it.
    pub(crate) fn fence(&self) -> Option<u64> {
        match (self, self.held().locks()) {
            (Job::Set(_), [only]) => Some(only.granted.fence),
            (Job::Fire(_), [first, ..]) => Some(first.granted.fence),
            _ => None,
        }
    }
}
