//! A web server of many replicas, in one of which a task runs besides: it polls for orders. Where it runs is decided by a lock.

use std::{env, time::Duration};

use axum::{Router, routing::post};
use lockcore::{LockingService, Wait};
use lockcore_any::Config;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::sleep,
};

// ANCHOR: recipe
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let locks = Config::load(None, Config::default())?.service().await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let task = tokio::spawn(run_in_one_replica(locks.clone()));

    let app =
        Router::new().route("/orders", post(|order: String| async move { format!("ordered: {order}") }));
    let listener = TcpListener::bind(env::var("ADDRESS")?).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            terminate.recv().await;
            // Ends the task at its next await, which releases the lock: another replica goes on while this one still answers.
            task.abort();
        })
        .await?;
    locks.shutdown(Duration::from_secs(5)).await; // until the store knows of it
    Ok(())
}

async fn run_in_one_replica(locks: LockingService) {
    loop {
        let ended = locks.wait(Wait::forever()).try_with_locks(["orders/poller"], poll_orders).await;
        if let Err(error) = ended {
            eprintln!("polls no longer: {error:#}");
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn poll_orders() -> anyhow::Result<()> {
    println!("polling");
    loop {
        sleep(Duration::from_secs(1)).await; // one round
    }
}
// ANCHOR_END: recipe
