//! A user function: what band a price belongs to.

use udf_sdk::prelude::*;

/// The band of a price.
///
/// price_band(12.50) = 'low'
/// price_band(5000) = 'middle'
/// price_band(75000.00) = 'high'
/// price_band(NULL) = NULL
#[udf]
fn price_band(price: Decimal<15, 2>) -> &'static str {
    match price.whole() {
        ..1_000 => "low",
        1_000..50_000 => "middle",
        _ => "high",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_meet_without_a_gap() {
        let band = |cents| price_band(Decimal::from_unscaled(cents));
        assert_eq!((band(99_999), band(100_000)), ("low", "middle"));
        assert_eq!((band(4_999_999), band(5_000_000)), ("middle", "high"));
    }
}
