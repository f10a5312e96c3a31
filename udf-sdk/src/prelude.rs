//! What a file of user functions needs: `use udf_sdk::prelude::*`.

pub use crate::{Col, ColMut, Date, Decimal, State, StrWriter, Timestamp, udaf, udf};
