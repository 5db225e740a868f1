
#[cfg(test)]
mod shown {
    #[test]
    fn a_range_of_permits_is_bounded() {
        assert!(super::indexes("0-99999999").is_err());
    }
}
