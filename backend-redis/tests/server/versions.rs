//! Programs of several versions in one namespace.

use lockcore::{BackendErrorKind, LockDao, Target, backend::StoreVersion};
use lockcore_conformance::{servers::TestResult, versions};

use super::place::Place;

/// 10.4: programs of two versions at the same time, forward and back.
pub(crate) async fn two_versions_share_a_namespace() -> TestResult {
    let place = Place::shared().await?;
    let open = async |program: StoreVersion| place.builder().program_version(program).open().await;
    let old = versions::forward_and_back(open).await;
    // A program that was open notices it with the next connection that it makes, as of another runtime.
    for old in old {
        let asked = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok::<_, std::io::Error>(runtime.block_on(old.inspect(&Target::Id("a".to_owned()))))
        });
        let asked = tokio::task::spawn_blocking(|| asked.join()).await?.map_err(|_| "it panicked")??;
        let refused = asked.expect_err("the namespace is for newer programs");
        assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
        assert!(refused.to_string().contains("newer program"), "{refused}");
    }
    Ok(())
}
