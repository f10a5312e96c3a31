//! Fields of Google's batches that have no counterpart here.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;
use crate::Duration;

/// What a Google batch says besides its settings. It is checked, and otherwise left alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dataproc {
    /// Id of the batch: 4 to 63 lower-case letters, digits and inner hyphens.
    #[serde(default, skip_serializing_if = "is_default")]
    pub batch_id: Option<String>,
    /// Makes a repeated submit harmless: up to 40 letters, digits, `_` and `-`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_id: Option<String>,
    /// Account that the batch acts as.
    #[serde(default, skip_serializing_if = "is_default")]
    pub service_account: Option<String>,
    /// Name of a bucket, without `gs://`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub staging_bucket: Option<String>,
    /// A network; excludes `subnetwork`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub network: Option<String>,
    /// A subnetwork; excludes `network`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub subnetwork: Option<String>,
    /// Marks for firewall rules.
    #[serde(default, skip_serializing_if = "is_default")]
    pub network_tags: Vec<String>,
    /// A key to encrypt with.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kms_key: Option<String>,
    /// For sessions only, so refused; it is a field so that the refusal can explain.
    #[serde(default, skip_serializing_if = "is_default")]
    pub idle_ttl: Option<Duration>,
    /// An image to run in.
    #[serde(default, skip_serializing_if = "is_default")]
    pub container_image: Option<String>,
    /// Groups repeated runs of one job.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cohort: Option<String>,
    /// A SQL script.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spark_sql_batch: Option<SparkSqlBatch>,
    /// A Python program.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pyspark_batch: Option<PySparkBatch>,
    /// A JVM program.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spark_batch: Option<SparkBatch>,
    /// An R program.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spark_r_batch: Option<SparkRBatch>,
}

/// A SQL script in object storage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparkSqlBatch {
    /// The script.
    pub query_file_uri: String,
    /// Texts for `${name}` in the script.
    #[serde(default, skip_serializing_if = "is_default")]
    pub query_variables: IndexMap<String, String>,
    /// Jars for the class path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jar_file_uris: Vec<String>,
}

/// A Python program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PySparkBatch {
    /// The program, a `.py` file.
    pub main_python_file_uri: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "is_default")]
    pub args: Vec<String>,
    /// Python files for it (`.py`, `.egg`, `.zip`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub python_file_uris: Vec<String>,
    /// Jars for the class path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jar_file_uris: Vec<String>,
    /// Files beside it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file_uris: Vec<String>,
    /// Archives unpacked beside it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub archive_uris: Vec<String>,
}

/// A JVM program: one of its two entry points.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparkBatch {
    /// A jar with a main class.
    #[serde(default, skip_serializing_if = "is_default")]
    pub main_jar_file_uri: Option<String>,
    /// A main class on the class path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub main_class: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "is_default")]
    pub args: Vec<String>,
    /// Jars for the class path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jar_file_uris: Vec<String>,
    /// Files beside it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file_uris: Vec<String>,
    /// Archives unpacked beside it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub archive_uris: Vec<String>,
}

/// An R program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparkRBatch {
    /// The program, a `.R` file.
    pub main_r_file_uri: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "is_default")]
    pub args: Vec<String>,
    /// Files beside it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file_uris: Vec<String>,
    /// Archives unpacked beside it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub archive_uris: Vec<String>,
}
