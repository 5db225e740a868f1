    #[test]
    fn a_lease_that_ended_between_two_looks_is_no_release() {
        // The second response was so much faster than the first.
        let holder = HeldBy { remaining: Some(Duration::from_millis(20)), ..holder(1, 0, false) };
        let changes = look(Vec::new(), false).changes_since(Some(&look(vec![holder], false)));
        assert!(matches!(changes[..], [Change::Ended { by: EndedBy::Lease, .. }]), "{changes:?}");
    }

