//! Region, credentials and endpoint of the two stores of AWS: as its other programs find them, or at once what to set.

use std::process::Command;

use crate::{
    store::{Ended, Store},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(an_endpoint_of_the_environment_is_used, S3),
    test!(what_only_a_profile_has_is_named_at_once, S3),
    test!(credentials_that_are_missing_are_named_at_once, S3),
    test!(a_bucket_without_a_region_is_refused, S3),
    test!(the_policy_has_the_names_of_the_objects, S3),
    test!(a_table_without_a_region_is_refused, DynamoDb),
];

const BUCKET: &str = "s3://lockctl-e2e/locks";

/// `lockctl ls` on the default namespace with these variables, and no others of AWS.
fn ls(store: &Store, url: &str, variables: &[(&str, &str)]) -> Ended {
    let mut command: Command = store.lockctl(&["ls", "--url", url]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", store.path("")).env_remove("LOCKCORE_NAMESPACE").envs(variables.iter().copied());
    Ended::of(command)
}

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];

fn endpoint(store: &Store) -> String {
    let (_, rest) = store.url().split_once("endpoint=").expect("the URL has one");
    rest.split('&').next().unwrap_or_default().to_owned()
}

fn an_endpoint_of_the_environment_is_used(store: &Store) {
    let endpoint = endpoint(store);
    assert!(endpoint.starts_with("http://"), "{endpoint}");
    let region = ("AWS_REGION", "us-east-1");
    for name in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"] {
        let ended = ls(store, BUCKET, &[&KEYS[..], &[region, (name, &endpoint)]].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{name}");
    }
    // What the URL says counts more.
    let elsewhere = ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1");
    let ended =
        ls(store, &format!("{BUCKET}?endpoint={endpoint}"), &[&KEYS[..], &[region, elsewhere]].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    // To another service the region is a name in the signature.
    let ended = ls(store, &format!("{BUCKET}?endpoint={endpoint}"), &KEYS);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
}

fn what_only_a_profile_has_is_named_at_once(store: &Store) {
    std::fs::write(store.path("config"), "[profile dev]\nregion = us-east-1\n").expect("written");
    let profile = [("AWS_PROFILE", "dev"), ("AWS_CONFIG_FILE", "config")];
    let url = format!("{BUCKET}?endpoint={}", endpoint(store));
    let ended = ls(store, &url, &profile);
    assert_eq!(ended.code, 125, "{}", ended.stderr);
    let advice =
        "AWS_ACCESS_KEY_ID: is not given, S3 reads no profiles; `eval \"$(aws configure export-credentials";
    assert!(ended.stderr.contains(advice), "{}", ended.stderr);
    let ended = ls(store, &url, &[&KEYS[..], &profile].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "keys count more than a profile");
}

fn credentials_that_are_missing_are_named_at_once(store: &Store) {
    let url = format!("{BUCKET}?endpoint={}", endpoint(store));
    let ended = ls(store, &url, &[("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")]);
    assert_eq!(ended.code, 123, "{}", ended.stderr);
    let advice = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
    assert!(ended.stderr.contains(advice), "{}", ended.stderr);
}

fn a_bucket_without_a_region_is_refused(store: &Store) {
    let ended = ls(store, BUCKET, &KEYS);
    let advice =
        "region: is not given, name the bucket's, as `?region=eu-central-1` in the URL or by AWS_REGION";
    let message = format!("lockctl: object store: {BUCKET}/default: {advice}\n");
    assert_eq!((ended.code, ended.stderr), (125, message));
}

fn the_policy_has_the_names_of_the_objects(store: &Store) {
    let policy = |url: &str| {
        let mut command = store.lockctl(&["migrate", "--print", "iam", "--url", url]);
        command.env_remove("LOCKCORE_NAMESPACE");
        let ended = Ended::of(command);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        serde_json::from_str::<serde_json::Value>(&ended.stdout).expect("JSON")
    };
    let folder = |url: &str| {
        let policy = policy(url);
        let objects = policy["Statement"][0]["Resource"].as_str().expect("text").to_owned();
        let listed = policy["Statement"][1]["Condition"]["StringLikeIfExists"]["s3:prefix"].as_str();
        let folder = objects.strip_prefix("arn:aws:s3:::b/").expect("a bucket").to_owned();
        assert_eq!(listed, Some(&*folder), "a read has no prefix, and is right without one");
        folder
    };
    for (url, expected) in [
        ("s3://b/locks?namespace=prod", "locks/prod/*"),
        ("s3://b//locks?namespace=prod", "locks/prod/*"),
        ("s3://b/a$b?namespace=x%3Fy%2A", "a${$}b/x%3Fy%2A/*"),
    ] {
        assert_eq!(folder(url), expected, "{url}");
    }
}

fn a_table_without_a_region_is_refused(store: &Store) {
    // A metadata service that accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let metadata = format!("http://{}", silent.local_addr().expect("bound"));
    let ended = ls(
        store,
        &format!("dynamodb:///locks?endpoint={}", endpoint(store)),
        &[&KEYS[..], &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata)]].concat(),
    );
    let advice = "region: is not given, name the table's, as dynamodb://REGION/TABLE or by AWS_REGION";
    assert_eq!((ended.code, ended.stderr), (125, format!("lockctl: dynamodb: {advice}\n")));
}
