//! A cluster of etcd, as processes of this machine, each of which can be cut off from the others.

use std::{io, net::Ipv4Addr, time::Duration};

use futures_util::future::try_join_all;
use tokio::{
    io::{BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use super::{Kind, Server, ServerError, http::Message};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// The most bytes of a request's head.
const HEAD: usize = 16 * 1024;

/// Three members of one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Server>,
    cut_off: watch::Sender<Option<CutOff>>,
    /// The ways of the members to each other.
    _ways: JoinSet<()>,
}

/// The member that is cut off from the others.
#[derive(Clone, PartialEq, Debug)]
struct CutOff {
    position: usize,
    /// The name by which it presents itself to the others.
    id: String,
}

impl EtcdCluster {
    /// Starts the members, each with these further arguments.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn start(arguments: &[&str]) -> Result<Self, ServerError> {
        let failed = |error: io::Error| ServerError::failed(Kind::Etcd, "start", error);
        let (cut_off, seen) = watch::channel(None);
        let (mut ways, mut addresses, mut free) = (JoinSet::new(), Vec::new(), Vec::new());
        for to in 0..NAMES.len() {
            let way = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
            // Kept until all are there, so that no two are the same.
            let peer = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
            let address = peer.local_addr().map_err(failed)?;
            addresses.push((address, way.local_addr().map_err(failed)?));
            free.push(peer);
            ways.spawn(serve(way, to, address.to_string(), seen.clone()));
        }
        drop(free);
        let all = NAMES.iter().zip(&addresses).map(|(name, (_, way))| format!("{name}=http://{way}"));
        let all = all.collect::<Vec<_>>().join(",");
        let members = NAMES.iter().zip(&addresses).map(|(name, (peer, way))| {
            let mut own = vec![
                format!("--name={name}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{way}"),
                format!("--initial-cluster={all}"),
            ];
            own.extend(arguments.iter().map(|&argument| argument.to_owned()));
            Server::start_with(Kind::Etcd, move |_| Ok(own))
        });
        // None answers before most of them run.
        Ok(EtcdCluster { members: try_join_all(members).await?, cut_off, _ways: ways })
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// Returns the position of the leader, if the first member knows one.
    pub async fn leader(&self) -> Option<usize> {
        let leader = number(&self.members[0].address(), "leader").await.ok()?;
        for (position, member) in self.members.iter().enumerate() {
            if number(&member.address(), "member_id").await.is_ok_and(|id| id == leader) {
                return Some(position);
            }
        }
        None
    }

    /// Cuts a member off from the others, and no other one; clients still reach it.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn cut_off(&self, position: usize) -> io::Result<()> {
        let id = number(&self.members[position].address(), "member_id").await?;
        self.cut_off.send_replace(Some(CutOff { position, id: format!("{id:x}") }));
        Ok(())
    }

    /// Ends that.
    pub fn heal(&self) {
        self.cut_off.send_replace(None);
    }
}

/// Returns a number of the state of a member.
async fn number(address: &str, name: &str) -> io::Result<u64> {
    let mut member = BufReader::new(TcpStream::connect(address).await?);
    let headers = [("host", address), ("connection", "close"), ("content-length", "2")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let first = "POST /v3/maintenance/status HTTP/1.1".to_owned();
    Message { first, headers, body: b"{}".to_vec() }.write(&mut member).await?;
    let status = Message::read(&mut member, true).await?;
    let status = String::from_utf8(status.body).map_err(io::Error::other)?;
    let start = format!("\"{name}\":\"");
    let number = status.split_once(&start).and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(status))
}

/// Serves the way to the peer port of a member.
async fn serve(way: TcpListener, to: usize, peer: String, cut_off: watch::Receiver<Option<CutOff>>) {
    let mut connections = JoinSet::new();
    while let Ok((from, _)) = way.accept().await {
        let (peer, cut_off) = (peer.clone(), cut_off.clone());
        connections.spawn(async move { drop(relay(from, to, &peer, cut_off).await) });
        while connections.try_join_next().is_some() {}
    }
}

/// Carries one connection until it ends, or until one of its sides is cut off.
async fn relay(
    mut from: TcpStream,
    to: usize,
    peer: &str,
    mut cut_off: watch::Receiver<Option<CutOff>>,
) -> io::Result<()> {
    let sender = sender(&from).await?;
    let is_cut = |cut: &Option<CutOff>| {
        cut.as_ref().is_some_and(|cut| cut.position == to || sender.as_ref() == Some(&cut.id))
    };
    let mut peer = TcpStream::connect(peer).await?;
    from.set_nodelay(true)?;
    peer.set_nodelay(true)?;
    tokio::select! {
        biased;
        _ = cut_off.wait_for(is_cut) => Ok(()),
        carried = copy_bidirectional(&mut from, &mut peer) => carried.map(drop),
    }
}

/// Returns the member that opened a connection, as its first request says.
async fn sender(from: &TcpStream) -> io::Result<Option<String>> {
    let mut head = vec![0; HEAD];
    loop {
        let read = from.peek(&mut head).await?;
        let text = String::from_utf8_lossy(&head[..read]);
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let mut headers = head.lines().filter_map(|line| line.split_once(':'));
            let id = headers.find(|(name, _)| name.eq_ignore_ascii_case("x-server-from"));
            return Ok(id.map(|(_, id)| id.trim().to_owned()));
        }
        if read == 0 || read == HEAD {
            return Ok(None);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
