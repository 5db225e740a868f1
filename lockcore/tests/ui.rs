//! What must not compile, and what the compiler then says: the advice that is in the messages reaches the user.

#[test]
fn mistakes_are_refused_with_advice() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
