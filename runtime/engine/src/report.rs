//! What a stage did: the serialisable account that becomes the run report.
//!
//! The engine fills these in; nothing here decides anything. Every field name is
//! part of the report's JSON form.

use serde::Serialize;

/// Where one plan node runs, and why. One line of `explain`.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct NodePlacement {
    /// Distance from the root of the plan, in nodes.
    pub depth: usize,
    /// The node's name as the planner prints it, such as `FilterExec`.
    pub node: String,
    /// What the node does, as the planner prints it after the name.
    pub detail: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Every reason that keeps the node off the GPU; empty when it runs there.
    pub reasons: Vec<Reason>,
}

/// The verdict on one plan node. The glyphs are those that people already grep for.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Runs on the GPU (`*`).
    OnGpu,
    /// Cannot run on the GPU (`!`).
    CannotRun,
    /// Could run on the GPU, but the plan around it keeps it on the CPU (`@`).
    KeptOnCpu,
    /// Disappears in the GPU plan, such as an exchange inside one subtree (`#`).
    Removed,
    /// Not worth the transfer by cost (`$`).
    NotWorthIt,
    /// Feeds a pipeline on the GPU (`<`): with record batches, or with pages that the device
    /// decodes. [`StageReport::scans`] tells which.
    Source,
}

impl Verdict {
    /// The one-character indicator of the explain output.
    pub fn glyph(self) -> char {
        match self {
            Verdict::OnGpu => '*',
            Verdict::CannotRun => '!',
            Verdict::KeptOnCpu => '@',
            Verdict::Removed => '#',
            Verdict::NotWorthIt => '$',
            Verdict::Source => '<',
        }
    }
}

/// Why something is not on the GPU: a stable code, words, and what to change.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct Reason {
    /// Stable, kebab-case, for scripts: `unsupported-function`.
    pub code: String,
    /// A sentence for people, naming the expression or type.
    pub message: String,
    /// What the author can do about it; empty when there is nothing.
    pub fix: String,
}

/// What one GPU pipeline did in one run.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct PipelineReport {
    /// Kernel entry point, such as `aggregate_3f9c1a2b`.
    pub kernel: String,
    /// The operators fused in it, top first.
    pub operators: Vec<String>,
    /// The device it ran on, such as `cuda:0 NVIDIA H200` or `host`.
    pub device: String,
    /// Rows read from the source.
    pub rows_in: u64,
    /// Rows produced.
    pub rows_out: u64,
    /// Number of chunks launched.
    pub chunks: u64,
    /// Bytes read by the kernels from device columns.
    pub bytes_read: u64,
    /// Bytes copied host to device.
    pub bytes_to_device: u64,
    /// Bytes copied device to host.
    pub bytes_to_host: u64,
    /// Time in kernels, milliseconds, by device events.
    pub device_ms: f64,
    /// Time spent laying columns out in staging memory, milliseconds over all threads.
    pub staging_ms: f64,
    /// `bytes_read` over the device's bandwidth, milliseconds; 0 when unknown.
    pub ideal_ms: f64,
    /// Kernels compiled in this run.
    pub jit_compiled: u64,
    /// Kernels found in the cache.
    pub jit_cached: u64,
    /// Time spent compiling, milliseconds.
    pub jit_ms: f64,
    /// Chunks that were split because device memory was short.
    pub retries: u64,
    /// Passes over the source because the device had no room for all that it is joined or
    /// grouped with; 0 when everything was there at once.
    pub passes: u64,
    /// Bytes that left device memory because it was short, or could not get there.
    pub spilled_bytes: u64,
    /// Bytes of them that went on to disk because host memory was short too.
    pub disk_bytes: u64,
}

impl PipelineReport {
    /// Adds what another part of the same pipeline did.
    pub fn add(&mut self, other: &PipelineReport) {
        if self.kernel.is_empty() {
            self.kernel.clone_from(&other.kernel);
        }
        self.rows_in += other.rows_in;
        self.rows_out += other.rows_out;
        self.chunks += other.chunks;
        self.bytes_read += other.bytes_read;
        self.bytes_to_device += other.bytes_to_device;
        self.bytes_to_host += other.bytes_to_host;
        self.device_ms += other.device_ms;
        self.staging_ms += other.staging_ms;
        self.ideal_ms += other.ideal_ms;
        self.jit_compiled += other.jit_compiled;
        self.jit_cached += other.jit_cached;
        self.jit_ms += other.jit_ms;
        self.retries += other.retries;
        self.passes += other.passes;
        self.spilled_bytes += other.spilled_bytes;
        self.disk_bytes += other.disk_bytes;
    }
}

/// How a pipeline on the GPU got the rows of a scan of files.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct ScanReport {
    /// Where the files are.
    pub location: String,
    /// Whether their pages were decoded on the device. Otherwise the CPU's reader made
    /// record batches of them, and the numbers below are those of the source.
    pub on_device: bool,
    /// Why the CPU's reader read them; absent when it did not.
    pub reason: Option<Reason>,
    /// Files whose footers were read.
    pub files: u64,
    /// Row groups that were read.
    pub row_groups: u64,
    /// Row groups that statistics or Bloom filters ruled out.
    pub row_groups_pruned: u64,
    /// Rows that were read.
    pub rows: u64,
    /// Bytes that were fetched from storage, footers not counted.
    pub bytes_fetched: u64,
    /// Bytes of pages that the CPU decompressed; the rest was not compressed.
    pub bytes_decompressed_on_cpu: u64,
    /// Bytes of pages on the device, decompressed.
    pub bytes_of_pages: u64,
    /// Where which codec was decompressed.
    pub codecs: Vec<CodecReport>,
    /// Texts that the CPU gave numbers to one by one, for want of a dictionary in the file.
    pub texts_numbered_on_cpu: u64,
    /// Wall-clock time of the scan and, chunk by chunk, of what is computed from it,
    /// milliseconds.
    pub elapsed_ms: f64,
    /// Time of requests, milliseconds, added up over all that were under way.
    pub fetch_ms: f64,
    /// Time to decompress on the CPU and to copy to page-locked memory, milliseconds over all
    /// threads.
    pub decompress_ms: f64,
    /// Time of decompressing on the device, milliseconds, by device events.
    pub unpack_ms: f64,
    /// Time of decoding on the device, milliseconds, by device events.
    pub decode_ms: f64,
}

/// How pages of one codec were decompressed.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct CodecReport {
    /// The codec, such as `zstd`.
    pub codec: String,
    /// Whether kernels did it; otherwise the CPU.
    pub on_device: bool,
    /// Why the CPU did.
    pub reason: Option<String>,
    /// Compressed bytes, with the headers of pages.
    pub bytes_packed: u64,
    /// Decompressed bytes.
    pub bytes: u64,
}

impl CodecReport {
    /// Adds `other` to the line of `all` that is of the same codec, place and reason.
    pub fn add_to(self, all: &mut Vec<CodecReport>) {
        let is_alike = |one: &&mut CodecReport| {
            (&one.codec, one.on_device, &one.reason) == (&self.codec, self.on_device, &self.reason)
        };
        match all.iter_mut().find(is_alike) {
            Some(one) => {
                one.bytes_packed += self.bytes_packed;
                one.bytes += self.bytes;
            }
            None => all.push(self),
        }
    }
}

/// A part that ran on the CPU though a GPU was asked for.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct Fallback {
    /// The plan node, such as `SortExec`.
    pub node: String,
    /// Whether it was known at planning (`plan`) or happened while running (`run`).
    pub when: FallbackTime,
    /// Why.
    pub reason: Reason,
    /// Rows it handled on the CPU, when measured.
    pub rows: Option<u64>,
    /// CPU time it cost, milliseconds, when measured.
    pub cpu_ms: Option<f64>,
}

/// When a fallback was decided.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum FallbackTime {
    /// While planning.
    Plan,
    /// While running, before the first row left the node.
    Run,
}

/// What one stage did.
#[derive(Debug, Clone, Serialize)]
pub struct StageReport {
    /// The stage's name.
    pub stage: String,
    /// Its statements, in order.
    pub statements: Vec<StatementReport>,
    /// What was written; absent when the stage has no output.
    pub output: Option<OutputReport>,
    /// Rows of the result.
    pub rows: u64,
    /// Wall-clock time, milliseconds.
    pub elapsed_ms: u64,
    /// The part of it that reading the SQL and planning took, milliseconds.
    pub planning_ms: f64,
    /// Time on the device by kernel, the longest first.
    pub kernels: Vec<KernelReport>,
    /// How pipelines on the GPU got the rows of files.
    pub scans: Vec<ScanReport>,
    /// The most memory that its operators and writers held at once.
    pub peak_memory_bytes: u64,
    /// The most device memory that was in use at once, cached columns included.
    pub peak_device_bytes: u64,
    /// Bytes that operators spilled to disk.
    pub spilled_bytes: u64,
    /// The first rows of a result that has no output.
    #[serde(skip)]
    pub preview: Vec<arrow::array::RecordBatch>,
}

/// What one kernel took in a stage.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct KernelReport {
    /// Its entry point: the kind, and a hash of its text.
    pub kernel: String,
    /// How often it was launched.
    pub launches: u64,
    /// By device events, milliseconds.
    pub device_ms: f64,
}

/// What one statement of a stage did.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct StatementReport {
    /// Its text, as it was understood.
    pub sql: String,
    /// Rows that it made; 0 for a view.
    pub rows: u64,
    /// Wall-clock time, milliseconds.
    pub elapsed_ms: u64,
    /// What it read, as far as the CPU read it.
    pub sources: Vec<SourceReport>,
}

/// A module of user functions, and what its functions did in a run.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct UdfModuleReport {
    /// Where it is, as written.
    pub module: String,
    /// What it hashes to.
    pub sha256: String,
    /// The functions that SQL could call.
    pub functions: Vec<UdfFunctionReport>,
}

/// What a user function did in a run.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct UdfFunctionReport {
    /// Its name.
    pub name: String,
    /// Calls into the sandbox, one for a record batch or a part of one.
    pub calls: u64,
    /// Rows handed over.
    pub rows: u64,
    /// Time in the calls and the copies around them, milliseconds over all threads.
    pub ms: f64,
    /// Bytes of columns copied in.
    pub bytes_in: u64,
    /// Bytes of columns copied out.
    pub bytes_out: u64,
    /// Calls that trapped, panicked or ran into a limit.
    pub traps: u64,
    /// Rows that the error policy made NULL.
    pub nulled_rows: u64,
    /// Instances made.
    pub instances: u64,
    /// The most memory that one instance had of its own, bytes.
    pub memory_bytes_max: u64,
}

/// What was read of one table.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct SourceReport {
    /// The table, or the directory when it has no name.
    pub table: String,
    /// Rows that left the scan.
    pub rows: u64,
    /// Bytes fetched from storage.
    pub bytes: u64,
}

/// What a stage wrote.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct OutputReport {
    /// Where, as written.
    pub location: String,
    /// Rows of all files.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The files of this run.
    pub files: Vec<OutputFile>,
    /// An earlier attempt had published it, so nothing was written and no row was counted.
    pub recovered: bool,
}

/// One file of an output.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct OutputFile {
    /// Relative to the output's location.
    pub path: String,
    /// Its rows.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
}
