//! The attributes of `udf-sdk`. They leave the function as it is and put beside it what
//! WebAssembly hosts look for: an entry point and a record of metadata.
//!
//! No dependencies: an author's first build takes seconds. Types are not looked at here
//! but resolved as traits, so that aliases work and a wrong type is the compiler's error,
//! at its place.

mod aggregate;
mod options;
mod parse;
mod scalar;

use proc_macro::TokenStream;

/// Makes a plain function callable from SQL: a value for each row.
///
/// ```ignore
/// /// Price with tax.
/// ///
/// /// with_tax(100.0) = 119.0
/// #[udf]
/// fn with_tax(price: f64) -> f64 { price * 1.19 }
/// ```
///
/// Options: `name = "..."`, `volatility = "immutable" | "stable" | "volatile"`,
/// `on_error = "fail" | "null"`, `vectorized`. The doc comment goes to the metadata; its
/// lines of the form `name(...) = ...` are examples, in SQL.
#[proc_macro_attribute]
pub fn udf(options: TokenStream, item: TokenStream) -> TokenStream {
    parse::finish(item.clone(), scalar::expand(options, item))
}

/// Makes a block of functions an aggregate: `update`, `merge` and `finish`.
///
/// Options: `name = "..."`.
#[proc_macro_attribute]
pub fn udaf(options: TokenStream, item: TokenStream) -> TokenStream {
    parse::finish(item.clone(), aggregate::expand(options, item))
}

/// Lets a struct be the state of an aggregate.
#[proc_macro_derive(State)]
pub fn state(item: TokenStream) -> TokenStream {
    let expanded = aggregate::derive_state(item);
    expanded.unwrap_or_else(|error| error.tokens())
}
