//! Tests about the repository itself: the rules of the house and the invariants that can be read off the text.
//! The crate has no code of its own.

#[cfg(test)]
mod graph;
#[cfg(test)]
mod map;
#[cfg(test)]
mod repository;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words;
