//! Processes that try a store at once, in virtual time.

use std::time::Duration;

use lockcore::{Finding, LockDao, Severity};

use crate::cases_tests::cells::World;

const TIMEOUT: Duration = Duration::from_secs(10);
const TIME: Duration = Duration::from_secs(30);

/// Returns the checks that found something.
fn found(findings: &[Finding], severity: Severity) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.severity == severity).map(|finding| finding.check).collect()
}

#[tokio::test(start_paused = true)]
async fn processes_see_each_other_and_lose_nothing() {
    let world = World::new();
    let (first, second) =
        (world.dao_with(world.process(), TIMEOUT).await, world.dao_with(world.process(), TIMEOUT).await);
    let (one, other) = tokio::join!(first.verify(TIME), second.verify(TIME));
    for findings in [one.expect("it can be tried"), other.expect("it can be tried")] {
        assert_eq!(found(&findings, Severity::Ok), ["conditional writes"], "{findings:?}");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].detail.contains("of 1 others"), "{findings:?}");
    }
    // Long after: what the others wrote counts no more.
    tokio::time::sleep(Duration::from_secs(900)).await;
    let alone = first.verify(TIME).await.expect("it can be tried");
    assert_eq!(found(&alone, Severity::Warning), ["other processes"], "{alone:?}");
    assert_eq!(found(&alone, Severity::Error), [""; 0], "{alone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_ignores_conditions_is_found() {
    let world = World::new();
    let (first, second) =
        (world.dao_with(world.process(), TIMEOUT).await, world.dao_with(world.process(), TIMEOUT).await);
    world.ignore_conditions();
    let (one, other) = tokio::join!(first.verify(TIME), second.verify(TIME));
    let (one, other) = (one.expect("it can be tried"), other.expect("it can be tried"));
    let errors = [found(&one, Severity::Error), found(&other, Severity::Error)].concat();
    assert!(errors.contains(&"conditional writes"), "{one:?} {other:?}");
}

/// One of two processes believes in another time.
#[tokio::test(start_paused = true)]
async fn a_host_with_another_time_is_found() {
    let world = World::new();
    let (first, second) =
        (world.dao_with(world.process(), TIMEOUT).await, world.dao_with(world.process(), TIMEOUT).await);
    let back = async {
        tokio::time::sleep(TIME / 2).await;
        world.set_back(Duration::from_secs(5));
    };
    let (one, other, ()) = tokio::join!(first.verify(TIME), second.verify(TIME), back);
    let (one, other) = (one.expect("it can be tried"), other.expect("it can be tried"));
    let errors = [found(&one, Severity::Error), found(&other, Severity::Error)].concat();
    assert!(errors.contains(&"time"), "{one:?} {other:?}");
}

/// An answer that is lost is no write that is lost.
#[tokio::test(start_paused = true)]
async fn lost_answers_are_told_and_no_error() {
    let world = World::new();
    let process = world.process();
    let loses = process.loses_answers.clone();
    let dao = world.dao_with(process, TIMEOUT).await;
    let losing = async {
        for _ in 0..3 {
            tokio::time::sleep(TIME / 10).await;
            loses.store(true, std::sync::atomic::Ordering::Relaxed);
            tokio::time::sleep(TIME / 20).await;
            loses.store(false, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let (findings, ()) = tokio::join!(dao.verify(TIME), losing);
    let findings = findings.expect("it can be tried");
    assert_eq!(found(&findings, Severity::Error), [""; 0], "{findings:?}");
    assert!(found(&findings, Severity::Warning).contains(&"requests"), "{findings:?}");
}
