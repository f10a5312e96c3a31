//! What a user may ask for. Each field's comment is its entry in the reference manual, and goes
//! into the JSON Schema as well.

mod compute;
mod data;
mod dataproc;
mod variable;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use compute::{
    Accelerator, Disk, Driver, DynamicAllocation, Executors, Fallback, Memory, Scan, Shuffle, Tier,
};
pub use data::{
    Column, Compression, Credentials, Format, Output, Stage, Storage, Table, TableOptions, Udf,
    UdfErrors, WriteMode,
};
pub use dataproc::{Dataproc, PySparkBatch, SparkBatch, SparkRBatch, SparkSqlBatch};
pub use variable::{Variable, VariableType};

use crate::Duration;

/// A batch: what to run, over which tables, on which hardware, and where the result goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Version of this format; 1 is the only one.
    pub version: u32,
    /// Name of the batch: lower-case letters, digits and hyphens, starting with a letter, at most
    /// 63 characters. Several runs may share it.
    pub name: String,
    /// Free marks to select and to account by; at most 32. Keys are lower-case, 1 to 63 characters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub labels: IndexMap<String, String>,
    /// Whose limits and defaults apply.
    #[serde(default, skip_serializing_if = "is_default")]
    pub profile: Profile,
    /// Version of the foreign runtime that the batch was written for, such as `2.2`. Only the
    /// `dataproc` profile looks at it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub runtime_version: Option<String>,
    /// Which GPU, and what happens when a part of the work cannot run on it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub accelerator: Accelerator,
    /// The processes that do the work.
    #[serde(default, skip_serializing_if = "is_default")]
    pub executors: Executors,
    /// The process that plans the work.
    #[serde(default, skip_serializing_if = "is_default")]
    pub driver: Driver,
    /// Host memory beside the executors' own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: Memory,
    /// How executors exchange rows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shuffle: Shuffle,
    /// How tables are read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scan: Scan,
    /// Which parts of the plan are explained before the run; `NOT_ON_GPU` unless given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub explain: Option<Explain>,
    /// Settings under the names that Spark users know, such as `spark.executor.cores`. They meet
    /// the fields above in one configuration; saying two different things is an error.
    #[serde(default, skip_serializing_if = "is_default")]
    pub properties: IndexMap<String, String>,
    /// Typed values that SQL refers to as `${name}`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub variables: IndexMap<String, Variable>,
    /// How to reach object stores, by prefix of a location.
    #[serde(default, skip_serializing_if = "is_default")]
    pub storage: Vec<Storage>,
    /// The tables that SQL can name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tables: Vec<Table>,
    /// WebAssembly modules with functions that SQL can call.
    #[serde(default, skip_serializing_if = "is_default")]
    pub udfs: Vec<Udf>,
    /// What to run, one after the other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stages: Vec<Stage>,
    /// How long, and how often.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
    /// Fields that exist only in Google's batches. They are checked as that service checks them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dataproc: Option<Dataproc>,
}

impl Spec {
    /// How to reach a location: the entry with the longest prefix of it.
    pub fn storage_of(&self, location: &str) -> Option<&Storage> {
        let fitting = self
            .storage
            .iter()
            .filter(|s| location.starts_with(s.prefix.as_str()));
        fitting.max_by_key(|s| s.prefix.len())
    }
}

/// Whose rules a batch is held to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Our catalogue, and the machine at hand.
    #[default]
    Native,
    /// Exactly the limits of Google's serverless Spark batches.
    Dataproc,
}

/// How much of the plan is explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Explain {
    /// Every part.
    All,
    /// The parts that stay on the CPU, and why.
    NotOnGpu,
    /// Nothing.
    None,
}

/// Bounds on time and on repetition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The run is stopped after this time, whatever it is doing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ttl: Option<Duration>,
    /// A batch that has not started after this time expires.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue_ttl: Option<Duration>,
    /// Attempts in all, from 1 to 10; errors of the author are never retried.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_attempts: Option<u32>,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
