//! The command line: every command, option and its help text.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// SQL batches on GPUs, from one YAML file.
#[derive(Debug, Parser)]
#[command(name = "warpline", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 ok; 1 the job failed; 2 wrong usage or an invalid spec; \
3 cancelled; 4 timed out; 5 the wait was over and the job goes on; 6 no or wrong token; \
7 no slot came free in time; 8 the service does not answer; 9 the name is taken.\nData goes to standard output, everything for people to standard error."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a batch in this process.
    Run(Run),
    /// Check a spec without running it or reaching any service.
    Validate(Validate),
    /// Show the effective configuration and the plan of every stage; execute nothing.
    Plan(Plan),
    /// Show the GPUs, the driver and the compiler, and how to mend what is missing.
    Devices(Devices),
    /// Make TPC-H data.
    Tpch(Tpch),
    /// Write, build and try out user functions.
    Udf(Udf),
    /// Run the batch service.
    Serve(Serve),
    /// Make tokens for the batch service.
    Tokens(Tokens),
    /// Submit batches to a service, and watch, cancel, retry and delete them.
    Batches(Batches),
    /// Make triggers, by which objects start batches, and look after them.
    Triggers(Triggers),
    /// Run one attempt; what a server starts.
    #[command(hide = true)]
    Attempt(Attempt),
    /// Compile a module of user functions; what this program starts itself with.
    #[command(hide = true)]
    CompileGuest,
}

/// The spec and the values that the command line changes in it.
#[derive(Debug, Args)]
pub struct SpecArguments {
    /// The batch spec, a YAML file; `-` reads standard input.
    #[arg(value_name = "SPEC")]
    pub spec: PathBuf,
    /// Override one field, for example `--set executors.cores=8`.
    #[arg(long, value_name = "PATH=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Give a variable of the spec a value, for example `--var since=1995-01-01`.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub var: Vec<(String, String)>,
}

/// Arguments of `warpline run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The spec to run.
    #[command(flatten)]
    pub spec: SpecArguments,
    /// Write the run report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// How results are printed. With `json`, standard output is one JSON object: the
    /// rows of each stage and the run report.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `warpline validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// The spec to check.
    #[command(flatten)]
    pub spec: SpecArguments,
    /// How problems are printed: as lines on standard error, or as JSON on standard output.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `warpline plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// The spec to plan.
    #[command(flatten)]
    pub spec: SpecArguments,
    /// How the plan is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `warpline devices`.
#[derive(Debug, Args)]
pub struct Devices {
    /// How they are printed.
    #[arg(long, value_enum, default_value_t = DevicesOutput::Table)]
    pub output: DevicesOutput,
}

/// The forms of `warpline devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DevicesOutput {
    /// Text for people.
    Table,
    /// JSON for programs.
    Json,
    /// The one line that Spark's GPU discovery script prints.
    Spark,
}

/// Arguments of `warpline serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Settings, a YAML file. The environment (`WARPLINE_LISTEN`, `WARPLINE_DATA_DIR`,
    /// `WARPLINE_STORE`, `WARPLINE_TOKEN_FILE`) and the options below win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port; 127.0.0.1:8470 unless given. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Folder for everything that the server keeps.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// `sqlite`, or the URL of a PostgreSQL database that several servers may share.
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Tokens of those who may use the service; `warpline tokens new` makes entries.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A location that specs may reach, such as `s3://lake/`, `tpch://` or a folder; may be
    /// given often. Without any, specs reach nothing.
    #[arg(long, value_name = "PREFIX")]
    pub location: Vec<String>,
    /// Cores for batches on the CPU; the machine's unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpu_slots: Option<u32>,
}

/// Arguments of `warpline tokens`.
#[derive(Debug, Args)]
pub struct Tokens {
    /// What to do with tokens.
    #[command(subcommand)]
    pub command: TokensCommand,
}

/// The commands under `warpline tokens`.
#[derive(Debug, Subcommand)]
pub enum TokensCommand {
    /// Make a token: it goes to standard output, its entry for the token file to standard
    /// error.
    New(NewToken),
}

/// Arguments of `warpline tokens new`.
#[derive(Debug, Args)]
pub struct NewToken {
    /// Whose batches the token is for.
    #[arg(long, value_name = "NAME")]
    pub owner: String,
    /// What it allows; `read` and `write` unless given.
    #[arg(long, value_enum)]
    pub scope: Vec<crate::serve::tokens::Scope>,
}

/// Arguments of `warpline attempt`.
#[derive(Debug, Args)]
pub struct Attempt {
    /// The attempt's folder.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Arguments of `warpline batches`.
#[derive(Debug, Args)]
pub struct Batches {
    /// Where the service is and who asks.
    #[command(flatten)]
    pub service: Service,
    /// What to do.
    #[command(subcommand)]
    pub command: BatchesCommand,
}

/// Arguments of `warpline triggers`.
#[derive(Debug, Args)]
pub struct Triggers {
    /// Where the service is and who asks.
    #[command(flatten)]
    pub service: Service,
    /// What to do.
    #[command(subcommand)]
    pub command: TriggersCommand,
}

/// The commands under `warpline triggers`.
#[derive(Debug, Subcommand)]
pub enum TriggersCommand {
    /// Make a trigger from a YAML file; the token of a webhook goes to standard output.
    Create {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// List triggers.
    List,
    /// Show a trigger, its events and why some lead to nothing.
    Describe(OneTrigger),
    /// Take events in and submit nothing.
    Pause(OneTrigger),
    /// Go on.
    Resume(OneTrigger),
    /// Try events again that led to nothing.
    Replay(OneTrigger),
    /// Take in what lies in a folder already.
    Backfill {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        /// The folder, such as `s3://lake/in/`.
        #[arg(value_name = "LOCATION")]
        location: String,
    },
    /// Forget a trigger and its events.
    Delete(OneTrigger),
}

/// A trigger.
#[derive(Debug, Args)]
pub struct OneTrigger {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Where a service is.
#[derive(Debug, Args)]
pub struct Service {
    /// Its address; `WARPLINE_SERVER`, the context's or http://127.0.0.1:8470 unless given.
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// A context of the file `warpline/contexts.yaml` in the user's configuration folder.
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// A certificate (PEM) that the service's is signed by, beside the system's own.
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_certificate: Option<PathBuf>,
    /// How answers are printed.
    #[arg(long, value_enum, global = true, default_value_t = Output::Table)]
    pub output: Output,
}

/// The commands under `warpline batches`.
#[derive(Debug, Subcommand)]
pub enum BatchesCommand {
    /// Submit a batch and follow its log to the end.
    Submit(SubmitBatch),
    /// List batches, the newest first.
    List(ListBatches),
    /// Show everything about a batch.
    Describe(OneBatch),
    /// Wait for the end of a batch.
    Wait(WaitForBatch),
    /// Print the log of a batch.
    Logs(BatchLogs),
    /// Print the run report of a batch, JSON.
    Report(BatchReport),
    /// Stop batches. One that has ended stays as it is.
    Cancel(CancelBatches),
    /// Try a batch again that has failed. What it has published stays.
    Retry(OneBatch),
    /// Forget a batch that has ended.
    Delete(OneBatch),
}

/// A batch.
#[derive(Debug, Args)]
pub struct OneBatch {
    /// Its id.
    #[arg(value_name = "ID")]
    pub id: String,
}

/// Arguments of `warpline batches submit`.
#[derive(Debug, Args)]
pub struct SubmitBatch {
    /// The spec to submit.
    #[command(flatten)]
    pub spec: SpecArguments,
    /// Its id; one is made of the spec's name unless given.
    #[arg(long, value_name = "ID")]
    pub batch_id: Option<String>,
    /// Makes a repeated submit harmless.
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Check everything on the server and submit nothing.
    #[arg(long)]
    pub validate_only: bool,
    /// Return as soon as it is accepted.
    #[arg(long = "async", conflicts_with_all = ["wait", "follow"])]
    pub is_async: bool,
    /// Wait for the end without its log.
    #[arg(long, conflicts_with = "follow")]
    pub wait: bool,
    /// Follow its log to the end; this is what happens unless told otherwise.
    #[arg(long)]
    pub follow: bool,
}

/// Arguments of `warpline batches list`.
#[derive(Debug, Args)]
pub struct ListBatches {
    /// Such as `state = RUNNING AND labels.env = prod`; OR binds tighter than AND.
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Only those with this label; may be given often.
    #[arg(short = 'l', long = "label", value_name = "KEY=VALUE", value_parser = assignment)]
    pub labels: Vec<(String, String)>,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
}

/// Arguments of `warpline batches wait`.
#[derive(Debug, Args)]
pub struct WaitForBatch {
    /// Its id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// Give up waiting after this time, such as `10m`; the batch goes on.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<std::time::Duration>,
}

/// Arguments of `warpline batches logs`.
#[derive(Debug, Args)]
pub struct BatchLogs {
    /// Its id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// Go on until the batch ends.
    #[arg(short, long)]
    pub follow: bool,
    /// This attempt only.
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
}

/// Arguments of `warpline batches report`.
#[derive(Debug, Args)]
pub struct BatchReport {
    /// Its id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// The attempt; the last one unless given.
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
}

/// Arguments of `warpline batches cancel`.
#[derive(Debug, Args)]
pub struct CancelBatches {
    /// Its id.
    #[arg(
        value_name = "ID",
        required_unless_present = "labels",
        conflicts_with = "labels"
    )]
    pub id: Option<String>,
    /// All with this label that have not ended; may be given often.
    #[arg(short = 'l', long = "label", value_name = "KEY=VALUE", value_parser = assignment)]
    pub labels: Vec<(String, String)>,
    /// Wait until it has stopped.
    #[arg(long)]
    pub wait: bool,
}

/// Arguments of `warpline tpch`.
#[derive(Debug, Args)]
pub struct Tpch {
    /// What to do with TPC-H data.
    #[command(subcommand)]
    pub command: TpchCommand,
}

/// The commands under `warpline tpch`.
#[derive(Debug, Subcommand)]
pub enum TpchCommand {
    /// Write the eight tables as Parquet files (zstd), a folder for each.
    Generate(Generate),
}

/// Arguments of `warpline tpch generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The scale factor; 1 is about 1 GB of raw text.
    #[arg(long, value_name = "N", value_parser = scale_factor)]
    pub scale: f64,
    /// The folder to write into; made when absent.
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Files for each large table, and threads that write them. One for each core by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub parallel: Option<u16>,
}

/// Arguments of `warpline udf`.
#[derive(Debug, Args)]
pub struct Udf {
    /// What to do with user functions.
    #[command(subcommand)]
    pub command: UdfCommand,
}

/// The commands under `warpline udf`.
#[derive(Debug, Subcommand)]
pub enum UdfCommand {
    /// Make a folder with a function that works and the kit that it is written with.
    New(UdfFolder),
    /// Build the Rust crate of a folder to a module beside its Cargo.toml.
    Build(UdfBuild),
    /// Run a module's examples, and try what must hold for every function.
    Test(UdfModule),
    /// Print a module's functions, hash and needs; run nothing.
    Inspect(UdfInspect),
    /// Measure how long a row takes.
    Bench(UdfModule),
    /// Add metadata to a module that was built without it, such as of C or Zig.
    Pack(UdfPack),
}

/// Arguments of `warpline udf new`.
#[derive(Debug, Args)]
pub struct UdfFolder {
    /// The folder to make; its name is the crate's.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Arguments of `warpline udf build`.
#[derive(Debug, Args)]
pub struct UdfBuild {
    /// The folder of the crate.
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
}

/// A module of user functions.
#[derive(Debug, Args)]
pub struct UdfModule {
    /// The module, a `.wasm` file.
    #[arg(value_name = "MODULE")]
    pub module: PathBuf,
}

/// Arguments of `warpline udf inspect`.
#[derive(Debug, Args)]
pub struct UdfInspect {
    /// The module, a `.wasm` file.
    #[arg(value_name = "MODULE")]
    pub module: PathBuf,
    /// How it is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `warpline udf pack`.
#[derive(Debug, Args)]
pub struct UdfPack {
    /// The module, a `.wasm` file.
    #[arg(value_name = "MODULE")]
    pub module: PathBuf,
    /// A JSON list with a record for each function.
    #[arg(long, value_name = "FILE")]
    pub meta: PathBuf,
    /// Where the module with metadata goes.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
}

/// The two voices of every command that answers with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people.
    Table,
    /// JSON for programs.
    Json,
}

/// Splits `name=value` at the first `=`; the value may hold more of them.
fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_string(), value.to_string()))
        }
        _ => Err("write it as name=value".to_string()),
    }
}

/// A time such as `30s` or `2h`.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    let duration: batch_specs::Duration = text
        .parse()
        .map_err(|_| "write a time such as 30s, 10m or 2h".to_string())?;
    Ok(std::time::Duration::from_secs(duration.seconds()))
}

/// A scale factor that the generator can make.
fn scale_factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 100_000.0 => Ok(scale),
        _ => Err("write a number above 0 and at most 100000".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_assignment_splits_at_its_first_equals_sign() {
        assert_eq!(assignment("a.b=c=d"), Ok(("a.b".into(), "c=d".into())));
        assert_eq!(assignment("a="), Ok(("a".into(), "".into())));
        assert!(assignment("=a").is_err());
        assert!(assignment("a").is_err());
    }

    #[test]
    fn a_scale_factor_is_a_positive_number() {
        assert_eq!(scale_factor("0.1"), Ok(0.1));
        for wrong in ["0", "-1", "NaN", "inf", "many"] {
            assert!(scale_factor(wrong).is_err(), "{wrong}");
        }
    }
}
