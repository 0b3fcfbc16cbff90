//! skiff
fn main() {}
