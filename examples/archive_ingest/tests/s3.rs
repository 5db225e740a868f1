//! The job on a real S3 server, where the environment names one.

mod tree;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tree::{Run, Tree};

/// A URL under which anything may be written, such as `s3://bucket/tests`; with AWS_ENDPOINT_URL and so on as the
/// program takes them.
const URL: &str = "LOCKCORE_TEST_S3_URL";

fn main() {
    let trials = vec![
        trial("every_object_once_on_s3", every_object_once),
        trial("without_locks_damage_is_detected_on_s3", without_locks),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn every_object_once(url: &str) {
    let tree = Tree::of(30);
    tree.write("three parts", &vec![7; 20 << 20]);
    let more = ["--locks", &tree.sqlite()];
    let first = run(&tree, url, &more);
    first.assert_complete(31);
    assert_eq!(first.number("written"), 31);
    let again = run(&tree, url, &more);
    again.assert_complete(31);
    assert_eq!(again.number("written"), 0);
}

/// As its namesake on a folder, with more time for slow servers.
fn without_locks(url: &str) {
    let tree = Tree::of(0);
    tree.write("index", b"the one object");
    let run = run(&tree, url, &["--no-locks", "--pause", "2s"]);
    assert_eq!(run.code, Some(3), "{}", run.report);
    assert_eq!(run.names("twice"), ["index"]);
}

fn run(tree: &Tree, url: &str, more: &[&str]) -> Run {
    Run::of(tree.command(url, more).output().expect("the program was built"))
}

/// A test that gets a part of the bucket that nobody has used.
fn trial(name: &'static str, test: fn(&str)) -> Trial {
    Trial::ignorable_test(name, move || -> Result<Completion, Failed> {
        let Ok(url) = std::env::var(URL) else {
            return Ok(Completion::ignored_with(format!("{URL} names no server")));
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        test(&format!("{}/{name}-{}-{}", url.trim_end_matches('/'), now.as_nanos(), std::process::id()));
        Ok(Completion::Completed)
    })
}
