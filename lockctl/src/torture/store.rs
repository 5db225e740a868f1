//! Descriptions of a store: in the line to send in, and of the rest that a run leaves in it.

use lockcore::Finding;

use super::IDS;

/// Describes a store for others by its kind, version and topology: by numbers, and by words that stand here or in a backend.
pub(super) fn described(url: &str, ways: usize, kind: &str, findings: &[Finding]) -> String {
    let detail = |check: &str| {
        findings.iter().find(|finding| finding.check == check).map(|found| found.detail.as_str())
    };
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let kind = match detail("server") {
        Some(server) if server.to_ascii_lowercase().contains("mariadb") => "mariadb",
        _ => kind,
    };
    let version =
        ["version", "server version", "server", "etcd"].into_iter().find_map(detail).and_then(version);
    let has = |word: &str| scheme.to_ascii_lowercase().contains(word);
    let mut topology = Vec::new();
    topology.extend(["cluster", "sentinel", "unix"].into_iter().filter(|word| has(word)).map(str::to_owned));
    topology
        .extend(["gs", "az"].into_iter().filter(|word| scheme.eq_ignore_ascii_case(word)).map(str::to_owned));
    if kind == "etcd" {
        let members = rest.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
        topology.push(format!("{} named members", members.split(',').count()));
    }
    if detail("pooler").is_some_and(|found| found.starts_with("a pooler")) {
        topology.push("pooler".to_owned());
    }
    if detail("form").is_some() {
        topology.push("statements".to_owned());
    }
    if rest.contains("endpoint=") {
        topology.push("another endpoint".to_owned());
    }
    topology.extend(detail("file system").and_then(|found| found.split(':').next()).map(str::to_owned));
    if ways > 1 {
        topology.push(format!("{ways} ways"));
    }
    let mut described = kind.to_owned();
    version.iter().for_each(|version| described += &format!(" {version}"));
    if !topology.is_empty() {
        described += &format!(" ({})", topology.join(", "));
    }
    described
}

/// Returns the first version in a text: two or three numbers. An address has four, or a port.
fn version(text: &str) -> Option<&str> {
    text.split([' ', ',']).find_map(|word| {
        let word = word.trim_end_matches(':').trim_start_matches('v');
        let version = word.split(['-', '+']).next().filter(|_| !word.contains(':'))?;
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        (matches!(version.split('.').count(), 2 | 3) && version.split('.').all(is_number)).then_some(version)
    })
}

/// Names what no sweep removes.
pub(super) fn left(kind: &str, findings: &[Finding], namespace: &str) -> String {
    let by_statements = findings.iter().any(|finding| finding.check == "form");
    let until_swept =
        |time| format!("until `lockctl --namespace {namespace} sweep`, {time} later at the earliest, also");
    match kind {
        "postgres" | "mysql" if by_statements => {
            format!("rows of lockcore_cell and lockcore_form with ns = '{namespace}', which may be deleted")
        }
        "postgres" => format!(
            "a row of lockcore_namespace and one of lockcore_form; {} {IDS} rows of lockcore_lock, and of lockcore_tombstone one for \
             each call that was dropped",
            until_swept("a minute")
        ),
        "mysql" => format!(
            "a row of lockcore_namespaces and one of lockcore_form; {} {IDS} rows of lockcore_ids, and of lockcore_tombstones one for \
             each call that was dropped",
            until_swept("an hour")
        ),
        "sqlite" => format!(
            "a row of lockcore_namespaces; {} of lockcore_withdrawn one for each call that was dropped",
            until_swept("a minute")
        ),
        "redis" => format!("the key {{{namespace}}}/f, the counter of fences, for a day"),
        "dynamodb" => {
            format!("items of {IDS} ids of {namespace}, until the table's time to live removes them")
        }
        "etcd" => format!("the keys below the namespace {namespace}, which may be deleted"),
        "s3" => format!("the objects below the namespace {namespace}, which may be deleted"),
        "share" => format!("the folder {namespace}, which may be deleted"),
        _ => format!("what the backend keeps of the namespace {namespace}"),
    }
}

#[cfg(test)]
mod tests {
    use lockcore::Severity;

    use super::*;

    fn found(check: &'static str, detail: &str) -> Finding {
        Finding { severity: Severity::Ok, check, detail: detail.to_owned() }
    }

    #[test]
    fn a_store_is_described_without_host_path_user_and_secret() {
        let cluster = "redis+cluster://app:hunter2@10.1.2.3:7000,redis-7.4.example.com:7001";
        let differs = "10.1.2.3, 7.4-db.example.com:7001: 7.0.15, 6.2 or later is needed";
        for (url, kind, findings, described_as) in [
            (
                cluster,
                "redis",
                vec![found("version", "7.2.4, 6.2 or later is needed")],
                "redis 7.2.4 (cluster)",
            ),
            (cluster, "redis", vec![found("version", differs)], "redis 7.0.15 (cluster)"),
            (
                "postgres://app:hunter2@db.example.com/app?sslkey=/home/app/key",
                "postgres",
                vec![
                    found("server version", "15.14 (Debian 15.14-0+deb12u1)"),
                    found(
                        "pooler",
                        "a pooler hands out another connection for each transaction, and nothing is prepared",
                    ),
                ],
                "postgres 15.14 (pooler)",
            ),
            (
                "mysql://app:hunter2@db/app?routines=no",
                "mysql",
                vec![
                    found("server", "MariaDB 10.11.14-MariaDB-0+deb12u2"),
                    found("form", "by plain statements"),
                ],
                "mariadb 10.11.14 (statements)",
            ),
            (
                "etcds://app:hunter2@a.example.com,b.example.com:1/app",
                "etcd",
                vec![found("etcd", "3.4.23")],
                "etcd 3.4.23 (2 named members)",
            ),
            (
                "s3://bucket/locks?access_key_id=a&secret_access_key=hunter2&endpoint=http://10.0.0.1:9000",
                "s3",
                vec![],
                "s3 (another endpoint)",
            ),
            (
                "share:/mnt/team",
                "share",
                vec![found("file system", "FUSE: of those only sshfs was tried")],
                "share (FUSE)",
            ),
            (
                "sqlite:/home/app/locks.db",
                "sqlite",
                vec![found("file", "/home/app/1.2/locks.db, local")],
                "sqlite",
            ),
        ] {
            assert_eq!(described(url, 1, kind, &findings), described_as, "{url}");
        }
        assert_eq!(described("share:/mnt/a", 2, "share", &[]), "share (2 ways)");
    }
}
