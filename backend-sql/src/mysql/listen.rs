//! Listening: a connection that sits in a routine until somebody interrupts it.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    dedicated,
    engine::Routines,
    error::{is_interrupted, is_statement_timeout},
    link::{Argument, Link, Reply, Routine},
};
use crate::server::{ServerError, reply};

/// How long the connection sits there without being interrupted: routers between here and there must not forget it.
const SECONDS: i64 = 20;

/// How long it may take until an interruption arrives, and after how long it is sent again.
const ARRIVES: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(10);

/// A call that lasted so long before it was interrupted had the time to look.
const SETTLED: Duration = Duration::from_millis(500);

/// The task that has the connection; so that what waits here can be dropped in the middle of an exchange.
pub struct Listener {
    session: i64,
    heard: mpsc::UnboundedReceiver<Result<String, ServerError>>,
    /// How often the connection was interrupted.
    interrupted: watch::Receiver<u64>,
    task: JoinHandle<()>,
    /// The connection that keeps the other one waiting, and interrupts it to see that both still work.
    other: Link,
    wake: Routine,
}

/// Begins to listen, and makes sure that this connection can be woken as others will do it. `other` does that, and keeps
/// it waiting from then on.
pub(super) async fn listen(
    routines: Routines,
    mut link: Link,
    mut other: Link,
    namespace: i64,
    session: i64,
) -> Result<Listener, ServerError> {
    // Another one each time: a connection that was cut off may go on keeping what it kept.
    let kept = fastrand::i64(1..);
    end_predecessor(&mut other, session).await?;
    name(&mut link, &routines, session).await?;
    name(&mut other, &routines, kept).await?;
    dedicated::ensure(&routines.connection, [&mut link, &mut other], Some([session, kept])).await?;
    // It has nothing to say for as long as this process listens.
    other.text("SET SESSION wait_timeout = 2147483").await?;
    let wake = Routine::clone(&routines.wake);
    let (sender, heard) = mpsc::unbounded_channel();
    let (count, interrupted) = watch::channel(0);
    let sits = Sitting {
        routines,
        link,
        namespace,
        session,
        kept,
        probe: 0,
        known: String::new(),
        vain: 0,
        interrupted: count,
    };
    let task = tokio::spawn(sits.run(sender));
    let mut listener = Listener { session, heard, interrupted, task, other, wake };
    tokio::time::timeout(ARRIVES, listener.probe()).await.map_err(|_elapsed| unheard())??;
    Ok(listener)
}

/// Ends the connection that has the name of this session: one on which this process listened before, and of whose loss the
/// server knows nothing, as after a silent failure of the network.
async fn end_predecessor(link: &mut Link, session: i64) -> Result<(), ServerError> {
    let holder = format!("SELECT CAST(IS_USED_LOCK('lockcore:{session}') AS CHAR)");
    if let Some(holder) = link.text(&holder).await? {
        // If it ended meanwhile there is nothing to do; if it may not be ended, the name cannot be had.
        let _ = link.text(&format!("KILL {holder}")).await;
    }
    Ok(())
}

async fn name(link: &mut Link, routines: &Routines, session: i64) -> Result<(), ServerError> {
    let named = link.call(&routines.listen, &[Argument::Int(session)]).await?;
    if named.text == "1" {
        return Ok(());
    }
    let what = "the name of this session is held by a connection that cannot be ended".to_owned();
    Err(ServerError::Misconfigured { backend: "mysql", what })
}

fn unheard() -> ServerError {
    let what = "KILL QUERY does not reach this user's own connections: is there a proxy between?".to_owned();
    ServerError::Misconfigured { backend: "mysql", what }
}

impl Listener {
    /// Waits for the next message. Cancel safe.
    pub(super) async fn hear(&mut self) -> Result<String, ServerError> {
        self.heard.recv().await.unwrap_or_else(|| Err(unheard()))
    }

    /// Interrupts the connection that listens, as others do, until it has noticed.
    pub(super) async fn probe(&mut self) -> Result<(), ServerError> {
        self.interrupted.mark_unchanged();
        let text = format!("{},", self.session);
        loop {
            self.other.call(&self.wake, &[Argument::Text(&text)]).await?;
            // Between two calls there is nothing to interrupt.
            match tokio::time::timeout(AGAIN, self.interrupted.changed()).await {
                Ok(Ok(())) => return Ok(()),
                // The task has ended, and its last message says why.
                Ok(Err(_)) => loop {
                    self.hear().await?;
                },
                Err(_elapsed) => {}
            }
        }
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
    /// The name of what it waits for.
    kept: i64,
    /// The last probe that was told.
    probe: u32,
    /// Marks of what there was when something was last told, which is not to be told again.
    known: String,
    /// So many calls in a row were interrupted and told nothing.
    vain: u32,
    interrupted: watch::Sender<u64>,
}

impl Sitting {
    async fn run(mut self, heard: mpsc::UnboundedSender<Result<String, ServerError>>) {
        while !heard.is_closed() {
            if let Err(error) = self.sit(&heard).await {
                let _ = heard.send(Err(error));
                return;
            }
        }
    }

    /// Tells `heard` what there is to tell, and waits until somebody interrupts, or nothing happened for long.
    async fn sit(
        &mut self,
        heard: &mpsc::UnboundedSender<Result<String, ServerError>>,
    ) -> Result<(), ServerError> {
        let int = Argument::Int;
        let arguments = [
            int(self.namespace),
            int(self.session),
            int(self.kept),
            Argument::Text(&self.known),
            int(self.probe.into()),
            int(SECONDS),
            // The first told nothing because there was nothing; the second had something to tell.
            int((self.vain > 1).into()),
        ];
        self.vain += 1;
        let mut all_told = String::new();
        let tell = |told: Reply| {
            all_told.push_str(&told.text);
            // Before the routine has ended, which takes a while longer. Whether anybody hears is looked at then.
            let _ = heard.send(Ok(told.text));
        };
        let begun = Instant::now();
        let ended = self.link.call_for_parts(&self.routines.hear, &arguments, tell).await;
        self.note(&all_told)?;
        match ended {
            // The next call finds what it was woken for.
            Err(error) if is_interrupted(&error) => {
                if !all_told.is_empty() || begun.elapsed() >= SETTLED {
                    self.vain = 0;
                }
                self.interrupted.send_modify(|count| *count += 1);
                Ok(())
            }
            Err(error) if !is_statement_timeout(&error) => Err(error),
            _ => {
                self.vain = 0;
                Ok(())
            }
        }
    }

    /// Notes what is not to be told again.
    fn note(&mut self, text: &str) -> Result<(), ServerError> {
        let mut marks = Vec::new();
        for told in reply::parts::<Noted>("mysql", text) {
            let told = told?;
            marks.extend(told.known);
            self.probe = told.probe.unwrap_or(self.probe);
        }
        if !marks.is_empty() {
            self.known = marks.join(",");
        }
        Ok(())
    }
}

/// Of what a session is told, what this connection has to know so that it is not told again.
#[derive(Deserialize)]
struct Noted {
    known: Option<String>,
    probe: Option<u32>,
}
