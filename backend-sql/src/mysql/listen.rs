//! Listening: a connection that sits in a routine until somebody interrupts it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    engine::Routines,
    error::{is_interrupted, is_statement_timeout},
    link::{Answer, Argument, Link},
};
use crate::server::{Heard, ServerError, reply};

/// How long the connection sits there without being interrupted: routers between here and there must not forget it.
const SECONDS: i64 = 20;

/// What was offered is not told again for so long: as long as an offer lasts at most.
const KNOWN: Duration = Duration::from_secs(2);

/// How long it may take until an interruption arrives, and after how long it is sent again.
const ARRIVES: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(10);

/// The task that has the connection; so that what waits here can be dropped in the middle of an exchange.
#[derive(Debug)]
pub struct Listener {
    heard: mpsc::UnboundedReceiver<Result<Heard, ServerError>>,
    task: JoinHandle<()>,
}

/// Begins to listen, and makes sure that this connection can be woken as others will do it. `other` does that.
pub(super) async fn listen(
    routines: Routines,
    mut link: Link,
    other: &mut Link,
    namespace: i64,
    session: i64,
) -> Result<Listener, ServerError> {
    let named = link.call(&routines.listen, &[Argument::Int(session)]).await?;
    if named.text != "1" {
        let what = "the name of this session is held by a connection that cannot be ended".to_owned();
        return Err(ServerError::Misconfigured { backend: "mysql", what });
    }
    let wake = super::link::Routine::clone(&routines.wake);
    let (sender, heard) = mpsc::unbounded_channel();
    let (proof, mut proven) = oneshot::channel();
    let sits =
        Sitting { routines, link, namespace, session, probe: 0, known: VecDeque::new(), proof: Some(proof) };
    let listener = Listener { heard, task: tokio::spawn(sits.run(sender)) };
    let (text, begun) = (format!("{session},"), Instant::now());
    while begun.elapsed() < ARRIVES {
        other.call(&wake, &[Argument::Text(&text)]).await?;
        if let Ok(woken) = tokio::time::timeout(AGAIN, &mut proven).await {
            return woken.map(|()| listener).map_err(|_| unheard());
        }
    }
    Err(unheard())
}

fn unheard() -> ServerError {
    let what = "KILL QUERY does not reach this user's own connections: is there a proxy between?".to_owned();
    ServerError::Misconfigured { backend: "mysql", what }
}

impl Listener {
    /// The next thing heard. Cancel safe.
    pub(super) async fn hear(&mut self) -> Result<Heard, ServerError> {
        self.heard.recv().await.unwrap_or_else(|| Err(unheard()))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Sitting {
    routines: Routines,
    link: Link,
    namespace: i64,
    session: i64,
    /// The last probe that was told.
    probe: u32,
    /// Attempts that were told of their offers, and when.
    known: VecDeque<(i64, Instant)>,
    proof: Option<oneshot::Sender<()>>,
}

impl Sitting {
    async fn run(mut self, heard: mpsc::UnboundedSender<Result<Heard, ServerError>>) {
        loop {
            let told = match self.sit().await {
                Ok(Some(told)) => Ok(Heard::Told(told)),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            let over = told.is_err();
            if heard.send(told).is_err() || over {
                return;
            }
        }
    }

    /// Waits until something is told, somebody interrupts, or nothing happened for long.
    async fn sit(&mut self) -> Result<Option<String>, ServerError> {
        while self.known.front().is_some_and(|(_, told)| told.elapsed() >= KNOWN) {
            self.known.pop_front();
        }
        let known: Vec<String> = self.known.iter().map(|(attempt, _)| attempt.to_string()).collect();
        let known = known.join(",");
        let int = Argument::Int;
        let arguments = [
            int(self.namespace),
            int(self.session),
            Argument::Text(&known),
            int(self.probe.into()),
            int(SECONDS),
        ];
        match self.link.call(&self.routines.hear, &arguments).await {
            Ok(Answer { text, .. }) if text.is_empty() => Ok(None),
            Ok(Answer { text, .. }) => {
                self.note(&text)?;
                Ok(Some(text))
            }
            // The next call finds what it was woken for.
            Err(error) if is_interrupted(&error) => {
                let _ = self.proof.take().map(|proof| proof.send(()));
                Ok(None)
            }
            Err(error) if is_statement_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes what is not to be told again.
    fn note(&mut self, text: &str) -> Result<(), ServerError> {
        let told: reply::Told = reply::read("mysql", text)?;
        let now = Instant::now();
        self.known.extend(told.o.iter().map(|handed| (handed.a, now)));
        self.probe = told.probe.unwrap_or(self.probe);
        Ok(())
    }
}
