//! The URL of a cluster, taken apart by hand: it names several hosts.

use lockcore::BackendError;
use percent_encoding::percent_decode_str;
use secrecy::SecretString;

/// The port that clients of etcd use by default.
const PORT: u16 = 2379;

/// The place of the keys, and who asks for them.
pub(crate) struct Address {
    pub(crate) is_tls: bool,
    pub(crate) login: Option<(String, SecretString)>,
    /// Each as `HOST:PORT`.
    pub(crate) members: Vec<String>,
    pub(crate) prefix: String,
}

impl Address {
    /// Parses `etcd://[USER:PASSWORD@]HOST[:PORT][,..][/PREFIX]`. No error shows more than a host: there may be a password.
    pub(crate) fn read(url: &str) -> Result<Self, BackendError> {
        let refuse = |expected| Err(BackendError::bad_setting("url", "..", expected));
        // Else one cluster had several names.
        if url.trim() != url {
            return refuse("it must not begin or end with white space");
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return refuse("it must begin with etcd:// or etcds://");
        };
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "etcd" => false,
            "etcds" => true,
            _ => return refuse("it must begin with etcd:// or etcds://"),
        };
        if rest.contains(['?', '#']) {
            return refuse("options belong in the builder");
        }
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        if user.is_some_and(|user| user.contains(['/', '@', ','])) {
            return refuse(
                "within user and password / is %2F, @ is %40 and a comma is %2C, as @ is in the prefix",
            );
        }
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let Some(prefix) = decoded(prefix) else {
            return refuse("the prefix must be UTF-8 when it is decoded");
        };
        let prefix = prefix.trim_end_matches('/');
        if prefix.trim() != prefix {
            return refuse("the prefix must not begin or end with white space");
        }
        let members = hosts.split(',').map(|text| {
            member(text).ok_or_else(|| {
                // If the `@` is missing, a password may be behind the first colon.
                let shown = if user.is_some() { text } else { rest.split([':', '/']).next().unwrap_or("") };
                BackendError::bad_setting("url", shown, "each host must be NAME, NAME:PORT or [IPV6]:PORT")
            })
        });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let login = match user.map(|user| user.split_once(':')) {
            None => None,
            Some(Some((user, password))) => match (decoded(user), decoded(password)) {
                (Some(user), Some(password)) if !user.is_empty() => Some((user, password.into())),
                _ => {
                    return refuse(
                        "user and password must be UTF-8 when they are decoded, and the user not empty",
                    );
                }
            },
            Some(None) => return refuse("a user needs a password: USER:PASSWORD@"),
        };
        Ok(Address { is_tls, login, members, prefix: prefix.to_owned() })
    }
}

/// Returns `HOST:PORT`; `None` if it is no host.
fn member(text: &str) -> Option<String> {
    // An address of IPv6 has brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok().filter(|port| *port != 0)),
        _ => (text, Some(PORT)),
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_address = |host: &str| host.parse::<std::net::Ipv6Addr>().is_ok();
    let is_good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => is_address(address),
        None => !host.is_empty() && host.bytes().all(is_host),
    };
    let port = port.filter(|_| is_good)?;
    Some(format!("{host}:{port}"))
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_url_names_members_login_and_prefix() {
        let read = |url| {
            let Address { is_tls, login, members, prefix } = Address::read(url).expect(url);
            let login = login.map(|(user, password)| format!("{user} {}", password.expose_secret()));
            (is_tls, login.unwrap_or_default(), members.join(" "), prefix)
        };
        let all = [
            ("etcd://a", (false, "", "a:2379", "")),
            ("etcds://a:1,b.c/", (true, "", "a:1 b.c:2379", "")),
            ("ETCD://u:p%2F%40@[::1],[::1]:7/x/y%20z/", (false, "u p/@", "[::1]:2379 [::1]:7", "x/y z")),
        ];
        for (url, (is_tls, login, members, prefix)) in all {
            assert_eq!(read(url), (is_tls, login.to_owned(), members.to_owned(), prefix.to_owned()), "{url}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_its_password() {
        for url in [
            "hunter2",
            "etcd:hunter2",
            "http://u:hunter2@a",
            "etcd://",
            "etcd://u:hunter2@",
            "etcd://u:hunter2@a,",
            "etcd://u:hunter2@a:0",
            "etcd://u:hunter2@a:x",
            "etcd://u:hunter2@a:70000",
            "etcd://u:hunter2@[a]",
            "etcd://u:hunter2@::1",
            "etcd://u:hunter2@a b",
            "etcd://hunter2@a",
            "etcd://:hunter2@a",
            "etcd://u:hunter2%ff@a",
            "etcd://u:hunter2@a?x=y",
            "etcd://u:hunter2@a/%ff",
            "etcd://app:hunter2",
            "etcd://app:1,hunter2 ",
            "etcd://app:1,hun:hunter2",
            "etcd://app:1,[hunter2",
            "etcd://u:hunter2@a/x@y",
            "etcd://a/hunter2@y",
            "etcd://u:hunter2@a,v:hunter2@b",
            "etcd://u:hun@hunter2@a",
            "etcd://u:hun/hunter2@a",
            "etcd://u:hunter2@a/x\n",
            "etcd://u:hunter2@a/x%0A/",
            "etcd://u:hunter2@a/%20x",
            " etcd://u:hunter2@a",
        ] {
            let refused = Address::read(url).err().expect(url);
            assert_eq!(refused.kind(), lockcore::BackendErrorKind::BadSetting, "{url}");
            assert!(!refused.to_string().contains("hunter2"), "{refused}");
            assert!(refused.to_string().starts_with("url: "), "{refused}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        for (url, says) in [
            ("etcd://u:p@a/x@y", "%40"),
            ("etcd://u:p1@a,v:p2@b", "%2C"),
            ("etcd://app:hunter2", "\"app\""),
            ("etcd://a b,c:1", "\"a b,c\""),
            ("etcd://u:p@b,a:x", "\"a:x\""),
            ("etcd://a/x ", "white space"),
        ] {
            let refused = Address::read(url).err().expect(url).to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
