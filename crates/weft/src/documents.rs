//! Comparison of the documents with the program.

mod tests;
