//! A Redis cluster, as processes of this machine.

use std::{env, io, net::TcpListener, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Kind, Server, ServerError, wire};

const FORMED: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The 16 384 slots, divided among three masters.
const SLOTS: [&str; 3] = ["0 5460", "5461 10922", "10923 16383"];

/// Three Redis masters that share the slots.
#[derive(Debug)]
pub struct Cluster {
    addresses: String,
    /// Empty if the cluster runs already.
    nodes: Vec<Server>,
}

impl Cluster {
    /// The environment variable with the addresses of a running cluster's nodes, separated by commas.
    pub const VARIABLE: &str = "LOCKCORE_TEST_REDIS_CLUSTER";

    /// Starts three nodes of this test's own.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn start() -> Result<Self, ServerError> {
        let failed =
            |error: io::Error| ServerError::failed(Kind::Redis, "start", format!("a cluster: {error}"));
        let (mut nodes, mut buses) = (Vec::new(), Vec::new());
        for _ in SLOTS {
            // The default bus port, 10 000 above the port, may exceed the range of ports.
            let bus =
                TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).map_err(failed)?.port();
            let options = "--cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 2000 \
                           --enable-debug-command local";
            let mut arguments: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
            arguments.extend(["--cluster-port".to_owned(), bus.to_string()]);
            nodes.push(Server::start_with(Kind::Redis, move |_| Ok(arguments)).await?);
            buses.push(bus);
        }
        let addresses: Vec<String> = nodes.iter().map(Server::address).collect();
        form(&addresses, &buses).await.map_err(failed)?;
        Ok(Cluster { addresses: addresses.join(","), nodes })
    }

    /// Returns the cluster that tests share: the one in `LOCKCORE_TEST_REDIS_CLUSTER`, else `None`.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        Some(Cluster { addresses: env::var(Self::VARIABLE).ok()?, nodes: Vec::new() })
    }

    /// The addresses of all nodes, separated by commas.
    #[must_use]
    pub fn addresses(&self) -> &str {
        &self.addresses
    }

    /// The nodes, if this process started them.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }
}

/// Makes a cluster of nodes that do not know one another yet, and waits until each reports it as complete.
async fn form(addresses: &[String], buses: &[u16]) -> io::Result<()> {
    for ((number, address), slots) in addresses.iter().enumerate().zip(SLOTS) {
        wire::redis_command(address, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await?;
        wire::redis_command(address, &format!("CLUSTER ADDSLOTSRANGE {slots}")).await?;
    }
    for (address, bus) in addresses.iter().zip(buses).skip(1) {
        let meet = format!("CLUSTER MEET {} {bus}", address.replace(':', " "));
        wire::redis_command(&addresses[0], &meet).await?;
    }
    let deadline = Instant::now() + FORMED;
    for address in addresses {
        loop {
            let info = wire::redis_command(address, "CLUSTER INFO").await?;
            if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") {
                break;
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, info));
            }
            sleep(POLL).await;
        }
    }
    Ok(())
}
