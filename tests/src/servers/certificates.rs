//! Certificates for servers that tests reach over TLS, each with its key behind it. OpenSSL made them, for a century.

/// The certificate of an authority, which issued [`SERVER`] and [`ELSEWHERE`]; without its key.
pub const AUTHORITY: &str = include_str!("certificates/authority.pem");

/// For `localhost`, `127.0.0.1` and `::1`.
pub const SERVER: &str = include_str!("certificates/server.pem");

/// For another host.
pub const ELSEWHERE: &str = include_str!("certificates/elsewhere.pem");

/// As `openssl req -x509` makes it: an authority's, which issued itself.
pub const SELF_SIGNED: &str = include_str!("certificates/self-signed.pem");

/// As `openssl x509 -req` makes it without extensions: of X.509 version 1.
pub const VERSION_1: &str = include_str!("certificates/version-1.pem");
