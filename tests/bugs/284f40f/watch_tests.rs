
#[cfg(test)]
mod shown {
    use super::*;
    use crate::{List, Mode, Owner, Target};

    #[test]
    fn a_lease_that_ended_between_two_looks_is_no_release() {
        let look = |holders| {
            let target = Ok(Target::Id("a".to_owned()));
            Look::<String, Uuid>::new(Inspection { target, holders, waiters: Vec::new(), frozen: false, breaks: Vec::new() })
        };
        let holder = HeldBy {
            context: StoredContext::Known(Uuid::nil()),
            owner: Owner::default(),
            mode: Mode::Exclusive,
            permits: List::new(),
            fence: 1,
            since: std::time::SystemTime::UNIX_EPOCH,
            lease: Some(Duration::from_secs(30)),
            // The second response was so much faster than the first.
            remaining: Some(Duration::from_millis(20)),
            broken: false,
        };
        let first = look(vec![holder]);
        let changes = look(Vec::new()).changes_since(Some(&first));
        assert!(matches!(changes[..], [Change::Ended { by: EndedBy::Lease, .. }]), "{changes:?}");
    }
}
