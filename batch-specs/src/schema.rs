//! The JSON Schema of the spec: for editors, and as the rule book of [`crate::read`].

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::spec::Spec;

/// The schema as it is checked in, for editors.
pub fn json_schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Spec>();
    schema.insert("title".into(), "Warpline batch spec".into());
    schema.to_value()
}

/// The same rules with every reference resolved.
pub(crate) fn resolved() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
        settings
            .into_generator()
            .into_root_schema_for::<Spec>()
            .to_value()
    });
    &SCHEMA
}
