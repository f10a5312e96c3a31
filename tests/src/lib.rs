//! What the whole-system tests share. It asks questions; it knows no answers.

pub mod answers;
pub mod cases;
pub mod layout;
pub mod parameters;
pub mod random;
pub mod routes;
pub mod rows;
