//! The schemes of URLs: which backend each means, compiled in or not.

/// The name of each backend, which is its scheme and its cargo feature. `backends` has those of this build.
pub(crate) const BACKENDS: [&str; 9] =
    ["memory", "sqlite", "dynamodb", "etcd", "mysql", "postgres", "redis", "s3", "share"];

/// The URL that stands for one with a secret, which was not handed on.
pub const WITHHELD: &str = "withheld:";

/// Schemes that mean a backend of another name.
const ALIASES: &[(&str, &str)] = &[
    ("etcds", "etcd"),
    ("mariadb", "mysql"),
    ("postgresql", "postgres"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+sentinel", "redis"),
    ("redis+cluster", "redis"),
    ("rediss+cluster", "redis"),
    ("gs", "s3"),
    ("az", "s3"),
    ("memory-object", "s3"),
];

/// The options of all backends that name files.
pub(crate) const FILE_OPTIONS: &[&str] = &[
    "client_certificate",
    "client_key",
    "root_certificate",
    "socket",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "sslcert",
    "sslkey",
    "sslrootcert",
];

/// Returns whether the URLs of a scheme name a file or a folder.
pub(crate) fn is_file(scheme: &str) -> bool {
    ["share", "sqlite"].contains(&scheme)
}

/// Returns whether the URLs of a scheme have a user and a password before the host.
pub(crate) fn has_credentials(scheme: &str) -> bool {
    ["etcd", "mysql", "postgres", "redis"].contains(&backend_of(scheme)) && scheme != "redis+unix"
}

/// Returns the backend that a scheme means, whose name is also that of its table in the file.
pub(crate) fn backend_of(scheme: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == scheme).map_or(scheme, |(_, backend)| backend)
}
