//! The judge of recorded histories: what processes record of their operations, and the rules that it must satisfy. It uses nothing
//! of lockcore, so that no error of lockcore's can hide in it.

pub mod check;
pub mod history;
