//! The job on an S3 server: the one that the harness of the test servers gets, or another that the environment names.

use std::process::Command;

use lockcore_conformance::servers::{Bucket, ServerError, TestResult, Trial, outcome};

use crate::tree::{Run, Tree};

/// A URL under which anything may be written, such as `s3://bucket/tests`; with AWS_ENDPOINT_URL and so on as the
/// program takes them.
const URL: &str = "LOCKCORE_TEST_S3_URL";

/// The bucket that is made in a server of the harness's.
const BUCKET: &str = "archive-ingest";

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    let tests = [
        trial("every_object_once_on_s3", every_object_once),
        trial("every_object_once_with_locks_in_the_bucket", locks_in_the_bucket),
        trial("without_locks_damage_is_detected_on_s3", without_locks),
    ];
    // A server of its own each.
    tests.into_iter().map(|test| test.at_once("s3", 2)).collect()
}

fn every_object_once(place: &Place) {
    let tree = Tree::of(30);
    tree.write("three parts", &vec![7; 20 << 20]);
    let more = ["--locks", &tree.sqlite()];
    let first = place.run(&tree, &more);
    first.assert_complete(31);
    assert_eq!(first.number("written"), 31);
    // A slash at the end of the URL changes no name.
    let again = place.run_at(&format!("{}/", place.url), &tree, &more);
    again.assert_complete(31);
    assert_eq!(again.number("written"), 0);
}

/// With nothing but the bucket: the locks are objects beside those that they guard.
fn locks_in_the_bucket(place: &Place) {
    let tree = Tree::of(30);
    // The workers wait for one another, at the pace of an emulator.
    let more = ["--locks", &format!("{}-locks", place.url), "--wait", "10m"];
    let first = place.run(&tree, &more);
    first.assert_complete(30);
    assert_eq!(first.number("written"), 30);
    let again = place.run(&tree, &more);
    again.assert_complete(30);
    assert_eq!(again.number("written"), 0);
}

/// As its namesake on a folder.
fn without_locks(place: &Place) {
    let tree = Tree::of(0);
    tree.write("index", b"the one object");
    let meet = tree.room().join("meeting").display().to_string();
    let run = place.run(&tree, &["--no-locks", "--meet", &meet]);
    assert_eq!(run.code, Some(3), "{}", run.report);
    assert_eq!(run.number("written"), 16, "all had found it missing");
    assert_eq!(run.names("twice"), ["index"]);
}

/// A part of a bucket that no client has used.
struct Place {
    url: String,
    /// The server, where the environment does not name it.
    own: Option<Bucket>,
}

impl Place {
    async fn new(name: &str) -> Result<Self, ServerError> {
        let part = format!("{name}-{}", fastrand::u64(..));
        if let Ok(url) = std::env::var(URL) {
            return Ok(Place { url: format!("{}/{part}", url.trim_end_matches('/')), own: None });
        }
        let bucket = Bucket::own(BUCKET).await?;
        Ok(Place { url: format!("s3://{BUCKET}/{part}"), own: Some(bucket) })
    }

    fn run(&self, tree: &Tree, more: &[&str]) -> Run {
        self.run_at(&self.url, tree, more)
    }

    fn run_at(&self, url: &str, tree: &Tree, more: &[&str]) -> Run {
        let mut command: Command = tree.command(url, more);
        if let Some(bucket) = &self.own {
            command
                .env("AWS_ENDPOINT_URL", bucket.endpoint())
                .env("AWS_ALLOW_HTTP", "true")
                .env("AWS_REGION", "us-east-1")
                .env("AWS_ACCESS_KEY_ID", "tests")
                .env("AWS_SECRET_ACCESS_KEY", "tests");
        }
        Run::of(command.output().expect("the program was built"))
    }
}

/// A test that shows as ignored, with the reason, where there is no server to be had.
fn trial(name: &'static str, test: fn(&Place)) -> Trial {
    Trial::ignorable_test(format!("s3::{name}"), move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let place = runtime.block_on(Place::new(name));
        let tested: TestResult = place.map(|place| test(&place)).map_err(Into::into);
        outcome(tested)
    })
}
