//! What the whole-system tests share. It asks questions; it knows no answers.

pub mod answers;
