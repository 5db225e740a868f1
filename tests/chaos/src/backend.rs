//! The backends to run on, and which faults each can have.

use std::{fmt, str::FromStr, time::Duration};

use anyhow::bail;
use lockcore_conformance::servers::{self, Mounts};

use crate::{clock, faults::Kind};

/// A backend to run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// In the driver's process; there are tasks instead of workers.
    Memory,
    /// A file.
    Sqlite,
    /// A server that the driver starts.
    Server(servers::Kind),
    /// A server of SQL that the driver starts, without routines.
    Statements(servers::Kind),
    /// A Postgres server with a synchronous replica.
    Replicated,
    /// A Redis master with a replica, and a sentinel.
    Sentinel,
    /// A Redis cluster of three nodes.
    Cluster,
    /// A cluster of etcd of three members.
    Members,
    /// A bucket of an emulator of S3.
    Bucket,
    /// A folder, on two mounts by `sshfs` where something may be mounted.
    Share,
}

impl FromStr for Backend {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match name {
            "memory" => Ok(Backend::Memory),
            "sqlite" => Ok(Backend::Sqlite),
            "postgres-replica" => Ok(Backend::Replicated),
            "redis-sentinel" => Ok(Backend::Sentinel),
            "redis-cluster" => Ok(Backend::Cluster),
            "etcd-cluster" => Ok(Backend::Members),
            "s3" => Ok(Backend::Bucket),
            "share" => Ok(Backend::Share),
            "postgres-statements" => Ok(Backend::Statements(servers::Kind::Postgres)),
            "mariadb-statements" => Ok(Backend::Statements(servers::Kind::MariaDb)),
            "mysql-statements" => Ok(Backend::Statements(servers::Kind::MySql)),
            name => match servers::Kind::ALL.into_iter().find(|kind| kind.name() == name) {
                Some(kind) => Ok(Backend::Server(kind)),
                None => bail!("no such backend: {name}"),
            },
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Statements(kind) => return write!(f, "{}-statements", kind.name()),
            Backend::Memory => "memory",
            Backend::Sqlite => "sqlite",
            Backend::Server(kind) => kind.name(),
            Backend::Replicated => "postgres-replica",
            Backend::Sentinel => "redis-sentinel",
            Backend::Cluster => "redis-cluster",
            Backend::Members => "etcd-cluster",
            Backend::Bucket => "s3",
            Backend::Share => "share",
        })
    }
}

impl Backend {
    /// The lease of all locks: short, so that stopped processes outlast it.
    pub(crate) fn lease(self) -> Duration {
        match self {
            Backend::Server(servers::Kind::DynamoDb) | Backend::Statements(_) => Duration::from_secs(5),
            Backend::Bucket | Backend::Share | Backend::Members | Backend::Server(servers::Kind::Etcd) => {
                Duration::from_secs(10)
            }
            _ => Duration::from_secs(1),
        }
    }

    /// Returns whether the store may forget or end grants by a fault, which the documentation says: then two may be inside at once
    /// until the former holder learns of it, but fences and guarded writes stay in order.
    pub(crate) fn may_lose_grants(self, fault: Kind) -> bool {
        fault == Kind::Forget || (fault == Kind::Failover && self == Backend::Sentinel)
    }

    /// Returns whether a kind of fault can be caused.
    pub fn can(self, fault: Kind) -> bool {
        use servers::Kind::{DynamoDb, Etcd, MariaDb, MySql, Postgres, Redis};
        if let Backend::Statements(kind) = self {
            return Backend::Server(kind).can(fault);
        }
        match fault {
            Kind::Break | Kind::Freeze => true,
            Kind::Kill | Kind::Stop => self != Backend::Memory,
            Kind::StepClock => self != Backend::Memory && clock::library().is_some(),
            Kind::Failover => matches!(self, Backend::Replicated | Backend::Sentinel | Backend::Members),
            Kind::Reshard => self == Backend::Cluster,
            // What is sent twice within a TCP stream is no request; what speaks HTTP has proxies that send one again.
            Kind::Double => matches!(self, Backend::Server(DynamoDb) | Backend::Bucket),
            Kind::Forget => self == Backend::Server(Redis),
            Kind::FillDisk => matches!(self, Backend::Server(MariaDb | MySql)),
            // A server of Postgres starts a process for each connection: too many for a small machine. etcd has no limit of them.
            Kind::Exhaust => {
                matches!(self, Backend::Server(kind) if ![DynamoDb, Etcd, Postgres].contains(&kind))
            }
            // The engine keeps its data in memory.
            Kind::Restart => match self {
                Backend::Server(kind) => kind != DynamoDb,
                _ => self == Backend::Members,
            },
            Kind::Cut
            | Kind::CutAfter
            | Kind::Refuse
            | Kind::LoseRequests
            | Kind::LoseReplies
            | Kind::Delay
            | Kind::Silence => matches!(self, Backend::Server(_) | Backend::Bucket),
            Kind::Pause => match self {
                Backend::Share => Mounts::can_be_had().is_ok(),
                _ => matches!(self, Backend::Server(_) | Backend::Bucket | Backend::Members),
            },
        }
    }
}
