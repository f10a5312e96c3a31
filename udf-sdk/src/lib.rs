//! Write functions for Warpline's SQL in Rust: plain functions with an attribute.
//!
//! ```
//! use udf_sdk::prelude::*;
//!
//! /// The price band of an item.
//! ///
//! /// price_band(12.50) = 'low'
//! #[udf]
//! fn price_band(price: Decimal<15, 2>) -> &'static str {
//!     match price.whole() {
//!         ..100 => "low",
//!         100..1_000 => "middle",
//!         _ => "high",
//!     }
//! }
//!
//! // The function is what it was: it is tested like any other.
//! assert_eq!(price_band(Decimal::from_unscaled(1_250)), "low");
//! ```
//!
//! Build it as a `cdylib` for `wasm32-unknown-unknown`, best with `warpline udf build`.
//!
//! **Arguments** are `bool`, `i8` to `i64`, `u8` to `u64`, `f32`, `f64`, `&str`, `&[u8]`,
//! [`Decimal`], [`Date`], [`Timestamp`]. The result is NULL where an argument is, and the
//! function is not asked, unless the argument is an `Option` of these.
//!
//! **Results** are the same, `String` and `Vec<u8>` too, an `Option` for NULL, a `Result`
//! whose error is told with its row. A last parameter `out: &mut StrWriter` takes text
//! without an allocation a row.
//!
//! **Panics** fail the call with their message. There is no clock, no randomness, no file
//! and no network; printing goes nowhere.
//!
//! This crate knows nothing of Arrow libraries and has no dependencies, which keeps modules
//! at a few KiB.

#[cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]
mod heap;
pub mod prelude;
#[doc(hidden)]
pub mod rt;
mod state;
mod text;
mod values;
mod whole;

pub use state::State;
pub use text::StrWriter;
pub use udf_sdk_macros::{State, udaf, udf};
pub use values::{Date, Decimal, Timestamp};
pub use whole::{Col, ColMut};
