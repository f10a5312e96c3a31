//! Distances on a globe.

use udf_sdk::prelude::*;

/// The mean radius of the Earth, kilometres.
const RADIUS: f64 = 6_371.0;

/// The great-circle distance between two places in kilometres; coordinates are in degrees.
///
/// haversine(0.0, 0.0, 0.0, 0.0) = 0.0
#[udf]
fn haversine(lat1: f64, lon1: f64, lat2: f64, lon2: f64) -> f64 {
    let half = |from: f64, to: f64| ((to - from).to_radians() / 2.0).sin().powi(2);
    let a = half(lat1, lat2) + lat1.to_radians().cos() * lat2.to_radians().cos() * half(lon1, lon2);
    2.0 * RADIUS * a.sqrt().asin()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn berlin_and_paris_are_as_far_apart_as_they_are() {
        let found = haversine(52.52, 13.405, 48.8566, 2.3522);
        assert!((found - 877.46).abs() < 0.1, "{found}");
    }
}
