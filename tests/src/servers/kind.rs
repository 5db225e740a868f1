//! The kinds of server that tests can ask for.

use std::fmt;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Redis, or a server that speaks its protocol.
    Redis,
    /// `PostgreSQL`.
    Postgres,
    /// `MariaDB`.
    MariaDb,
    /// `MySQL` itself: its locks, defaults and SQL differ from `MariaDB`'s.
    MySql,
    /// An engine that speaks `DynamoDB`'s protocol.
    DynamoDb,
    /// etcd, of one member.
    Etcd,
}

impl Kind {
    /// Every kind there is.
    pub const ALL: [Self; 6] =
        [Self::Redis, Self::Postgres, Self::MariaDb, Self::MySql, Self::DynamoDb, Self::Etcd];

    /// Its name in test names, image names and, in capitals, environment variables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::DynamoDb => "dynamodb",
            Self::Etcd => "etcd",
        }
    }

    /// The environment variable that names a running server: `LOCKCORE_TEST_REDIS_URL`.
    #[must_use]
    pub fn url_variable(self) -> String {
        format!("LOCKCORE_TEST_{}_URL", self.name().to_uppercase())
    }

    /// The environment variable that names an image, `name:tag`: `LOCKCORE_TEST_REDIS_IMAGE`.
    #[must_use]
    pub fn image_variable(self) -> String {
        format!("LOCKCORE_TEST_{}_IMAGE", self.name().to_uppercase())
    }

    /// The port that its protocol has by default.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Redis => 6379,
            Self::Postgres => 5432,
            Self::MariaDb | Self::MySql => 3306,
            Self::DynamoDb => 8000,
            Self::Etcd => 2379,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
