//! Faults of a server's certificate, in words.

use std::fmt;

/// The reason why a server's certificate is not accepted; its `Display` says it in words, and how the certificate has
/// to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CertificateFault {
    /// It is a certificate of X.509 version 1, which TLS by rustls cannot use, whether or not it is verified.
    VersionOne,
    /// It is an authority's own, used for a server.
    Authority,
    /// No authority that is trusted issued it.
    UnknownIssuer,
    /// It is for other names; says for which.
    OtherName(String),
    /// Anything else, as rustls says it.
    Other(String),
}

impl CertificateFault {
    /// Finds the fault in the message of an error, in which rustls has told it: drivers pass its errors on as text.
    pub fn find(message: &str) -> Option<Self> {
        let (_, told) = message.split_once("invalid peer certificate: ")?;
        Some(match told {
            _ if told.contains("UnsupportedCertVersion") => CertificateFault::VersionOne,
            _ if told.contains("CaUsedAsEndEntity") => CertificateFault::Authority,
            _ if told.contains("UnknownIssuer") => CertificateFault::UnknownIssuer,
            _ => {
                // Without what a driver adds behind it.
                let told = told.lines().next().unwrap_or_default();
                let told = told.strip_prefix("certificate ").unwrap_or(told);
                let is_name = told.contains("not valid for name") || told.contains("NotValidForName");
                if is_name {
                    CertificateFault::OtherName(told.to_owned())
                } else {
                    CertificateFault::Other(told.to_owned())
                }
            }
        })
    }
}

impl fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's certificate ")?;
        match self {
            CertificateFault::VersionOne => f.write_str(
                "is of X.509 version 1, which is not supported: any extension makes it version 3, such as \
                 `openssl req -x509 -addext subjectAltName=DNS:HOST -addext basicConstraints=critical,CA:FALSE`",
            ),
            CertificateFault::Authority => f.write_str(
                "is that of an authority (CA:TRUE), as `openssl req -x509` makes it, which none for a server may be: make it \
                 with `-addext basicConstraints=critical,CA:FALSE`",
            ),
            CertificateFault::UnknownIssuer => f.write_str("was issued by no authority that is trusted"),
            CertificateFault::OtherName(told) | CertificateFault::Other(told) => write!(f, "is refused: {told}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_said_in_words() {
        use CertificateFault::{Authority, Other, OtherName, UnknownIssuer, VersionOne};
        for (told, fault) in [
            ("Other(OtherError(UnsupportedCertVersion))", VersionOne),
            ("Other(OtherError(CaUsedAsEndEntity))", Authority),
            ("UnknownIssuer", UnknownIssuer),
            (
                "certificate not valid for name \"a\"; certificate is only valid for DnsName(\"b\")",
                OtherName(
                    "not valid for name \"a\"; certificate is only valid for DnsName(\"b\")".to_owned(),
                ),
            ),
            ("certificate expired: 3 seconds ago", Other("expired: 3 seconds ago".to_owned())),
        ] {
            let message = format!("error communicating with database: invalid peer certificate: {told}");
            let found = CertificateFault::find(&message).expect("rustls says so");
            assert_eq!(found, fault);
            assert!(!found.to_string().contains("OtherError"), "{found}");
        }
        assert_eq!(CertificateFault::find("connection refused"), None);
    }
}
