//! Does the service do what it says, with the real binary, real processes and real stores?
//!
//! One test binary: each links the whole engine.

#[path = "../support/mod.rs"]
mod support;

#[path = "../../../lifecycle/src/store/postgres_server.rs"]
mod postgres_server;

mod api;
mod client;
mod ending;
mod infra;
mod page;
mod recovery;
mod security;
mod server;
mod shared_store;
mod soak;
mod triggers;
