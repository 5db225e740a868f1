//! Listening: a connection that waits in a routine until another one interrupts it.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    dedicated,
    error::{is_interrupted, is_statement_timeout},
    link::{Argument, Link, Reply},
    schema::Names,
};
use crate::server::{ServerError, reply};

/// The time for which a call waits without being interrupted, in seconds: routers on the way must not forget the
/// connection.
const SECONDS: i64 = 20;

/// The time that an interruption may take to arrive, and the delay before it is sent again.
const ARRIVES: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(10);

/// A call that lasted so long before it was interrupted had the time to read its notices.
const SETTLED: Duration = Duration::from_millis(500);

/// The owner of the task that has the connection, so that waiting for it can be dropped in the middle of an exchange.
pub(crate) struct Listener {
    session: i64,
    received: mpsc::UnboundedReceiver<Result<String, ServerError>>,
    /// The number of times that the connection was interrupted.
    interrupted: watch::Receiver<u64>,
    task: JoinHandle<()>,
    /// The connection that keeps the other one waiting, and interrupts it to see that both still work.
    other: Link,
    /// The name of the routine with which it does that.
    wake: String,
}

/// Begins to listen, and makes sure that this connection can be woken as others will do it. `other` does that, and keeps
/// it waiting from then on.
pub(super) async fn listen(
    names: &Names,
    mut link: Link,
    mut other: Link,
    namespace: i64,
    session: i64,
) -> Result<Listener, ServerError> {
    // A new one each time: a connection that was cut off may go on holding its name.
    let other_name = fastrand::i64(1..);
    end_predecessor(&mut other, session).await?;
    take_name(names, &mut link, session).await?;
    take_name(names, &mut other, other_name).await?;
    dedicated::ensure(names, [&mut link, &mut other], Some([session, other_name])).await?;
    let (sender, received) = mpsc::unbounded_channel();
    let (count, interrupted) = watch::channel(0);
    let waiting = ListenTask {
        routine: names.quoted("v1_await"),
        link,
        namespace,
        session,
        other_name,
        probe: 0,
        known: String::new(),
        cut_short: 0,
        interrupted: count,
    };
    let task = tokio::spawn(waiting.run(sender));
    let wake = names.quoted("v1_wake");
    let mut listener = Listener { session, received, interrupted, task, other, wake };
    tokio::time::timeout(ARRIVES, listener.probe()).await.map_err(|_elapsed| not_interrupted())??;
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

async fn take_name(names: &Names, link: &mut Link, session: i64) -> Result<(), ServerError> {
    let taken = link.call(&names.quoted("v1_listen"), &[Argument::Int(session)]).await?;
    if taken.text == "1" {
        return Ok(());
    }
    let what = "the name of this session is held by a connection that cannot be ended".to_owned();
    Err(ServerError::Misconfigured { backend: "mysql", what })
}

fn not_interrupted() -> ServerError {
    let what = "KILL QUERY does not reach this user's own connections: is there a proxy between?".to_owned();
    ServerError::Misconfigured { backend: "mysql", what }
}

impl Listener {
    /// Waits for the next message. Cancel safe.
    pub(super) async fn receive(&mut self) -> Result<String, ServerError> {
        self.received.recv().await.unwrap_or_else(|| Err(not_interrupted()))
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
                    self.receive().await?;
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

/// The task.
struct ListenTask {
    /// The name of the routine in which it waits.
    routine: String,
    link: Link,
    namespace: i64,
    session: i64,
    /// The name that the other connection holds, for which it waits.
    other_name: i64,
    /// The last probe that was passed on.
    probe: u32,
    /// The marks of the notices that there were at the last look, which are not to be sent again.
    known: String,
    /// The number of calls in a row that were interrupted before they returned anything.
    cut_short: u32,
    interrupted: watch::Sender<u64>,
}

impl ListenTask {
    async fn run(mut self, messages: mpsc::UnboundedSender<Result<String, ServerError>>) {
        while !messages.is_closed() {
            if let Err(error) = self.wait(&messages).await {
                let _ = messages.send(Err(error));
                return;
            }
        }
    }

    /// Passes on what notices there are, and waits until it is interrupted, or nothing happened for long.
    async fn wait(
        &mut self,
        messages: &mpsc::UnboundedSender<Result<String, ServerError>>,
    ) -> Result<(), ServerError> {
        let int = Argument::Int;
        let arguments = [
            int(self.namespace),
            int(self.session),
            int(self.other_name),
            Argument::Text(&self.known),
            int(self.probe.into()),
            int(SECONDS),
            // The first may have been woken for nothing; the second had something to return.
            int((self.cut_short > 1).into()),
        ];
        self.cut_short += 1;
        let mut notices = String::new();
        let receive = |reply: Reply| {
            notices.push_str(&reply.text);
            // Before the routine has ended, which takes a while longer. Whether it is still received is checked then.
            let _ = messages.send(Ok(reply.text));
        };
        let begun = Instant::now();
        let ended = self.link.call_for_parts(&self.routine, &arguments, receive).await;
        self.note(&notices)?;
        match ended {
            // The next call finds what it was woken for.
            Err(error) if is_interrupted(&error) => {
                if !notices.is_empty() || begun.elapsed() >= SETTLED {
                    self.cut_short = 0;
                }
                self.interrupted.send_modify(|count| *count += 1);
                Ok(())
            }
            Err(error) if !is_statement_timeout(&error) => Err(error),
            _ => {
                self.cut_short = 0;
                Ok(())
            }
        }
    }

    /// Notes what is not to be sent again.
    fn note(&mut self, notices: &str) -> Result<(), ServerError> {
        let mut marks = Vec::new();
        for notice in reply::parts::<Noted>("mysql", notices) {
            let notice = notice?;
            marks.extend(notice.known);
            self.probe = notice.probe.unwrap_or(self.probe);
        }
        if !marks.is_empty() {
            self.known = marks.join(",");
        }
        Ok(())
    }
}

/// The part of a notice that this connection has to know, so that it is not sent again.
#[derive(Deserialize)]
struct Noted {
    known: Option<String>,
    probe: Option<u32>,
}
