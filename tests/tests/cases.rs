//! Is each answer in `cases/*.slt` given, on every path and however rows are split?
//!
//! A case runs on the CPU path, and on the GPU path over every layout of its tables,
//! with joins that gather one side, with joins that spread both, and in slices.
//! [`tests::cases`] says how a file is written.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::physical_plan::displayable;
use engine::session::Session;
use engine::settings::Stage;
use tests::cases::{Answer, Block, Case, parse};
use tests::layout::{LAYOUTS, Layout};
use tests::routes::{Route, run, spread_joins};
use tests::rows::Rows;

macro_rules! files {
    ($($name:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            check_file(stringify!($name)).await;
        })*

        #[test]
        fn every_file_is_run() {
            let mut names = vec![$(concat!(stringify!($name), ".slt")),*];
            names.sort_unstable();
            assert_eq!(names, files());
        }
    };
}

files! {
    aggregates
    dates
    decimals
    expressions
    floats
    integers
    joins
    keys
    limits
    outer_joins
    partitions
    reductions
    semi_joins
    sorts
    subqueries
    text
    text_parts
    window_frames
    windows
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases")
}

fn files() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".slt")).collect();
    names.sort();
    names
}

fn cache() -> PathBuf {
    std::env::var_os("WARPLINE_CACHE").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("warpline"),
        PathBuf::from,
    )
}

/// Runs a file and reports all its wrong answers at once. `WARPLINE_CASE=LINE` picks the
/// case of that line and shows its plans.
async fn check_file(name: &str) {
    let path = folder().join(format!("{name}.slt"));
    let text = std::fs::read_to_string(&path).unwrap();
    let blocks = parse(&text).unwrap_or_else(|problem| panic!("{name}.slt: {problem}"));
    let only: Option<usize> = std::env::var("WARPLINE_CASE")
        .ok()
        .map(|line| line.parse().expect("the number of a line"));
    let cases = blocks.iter().filter_map(|block| match block {
        Block::Query(case) => Some(case),
        Block::Table { .. } => None,
    });
    let cases: Vec<&Case> = cases
        .filter(|case| only.is_none_or(|line| line == case.line))
        .collect();
    let tables = tables(name, &blocks).await;
    let mut wrong: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
    let mut refused: HashSet<usize> = HashSet::new();
    for way in Way::all() {
        let files = tempfile::tempdir().unwrap();
        let sessions = way.sessions(&tables, files.path()).await;
        for case in &cases {
            match check(case, way, &sessions).await {
                Ok(Ran::Whole) => {}
                Ok(Ran::Refused) => drop(refused.insert(case.line)),
                Err(mut problem) => {
                    if only.is_some() {
                        problem.push_str(&plan(&sessions.free, &case.sql).await);
                    }
                    let what = format!("{}\n{problem}", case.sql);
                    let ways = wrong.entry((case.line, what)).or_default();
                    ways.push(way.to_string());
                }
            }
        }
    }
    for case in cases {
        if case.on_cpu.is_some() && !refused.contains(&case.line) {
            let what = format!("{}\nruns whole on the GPU by now: write `query`", case.sql);
            wrong.insert((case.line, what), vec!["every way".to_string()]);
        }
    }
    let wrong = wrong.iter().map(|((line, what), ways)| {
        let ways = ways.join(", ");
        format!("{name}.slt:{line} ({ways}): {what}\n")
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The rows of each table of a file.
async fn tables(file: &str, blocks: &[Block]) -> Vec<(String, RecordBatch)> {
    let session = Route::Cpu.session(&cache());
    let mut tables = Vec::new();
    for block in blocks {
        let Block::Table { name, sql } = block else {
            continue;
        };
        let made = run(&session, sql).await;
        let made = made.unwrap_or_else(|error| panic!("{file}.slt, table {name}: {error}"));
        let rows = concat_batches(&made.plan.schema(), &made.report.preview).unwrap();
        tables.push((name.clone(), rows));
    }
    tables
}

/// One way to run a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Cpu(Layout),
    Gpu(Layout, Joins),
    /// Joins and groups cut into slices, as if device memory were short.
    Sliced(Layout),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joins {
    Gather,
    Spread,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Cpu(layout) => write!(f, "CPU {layout:?}"),
            Way::Gpu(layout, Joins::Gather) => write!(f, "{layout:?}"),
            Way::Gpu(layout, Joins::Spread) => write!(f, "{layout:?}, spread joins"),
            Way::Sliced(layout) => write!(f, "{layout:?}, in slices"),
        }
    }
}

impl Way {
    fn all() -> Vec<Way> {
        let gather = LAYOUTS.map(|layout| Way::Gpu(layout, Joins::Gather));
        let spread = Way::Gpu(Layout::Sevenths, Joins::Spread);
        let cpu = [Way::Cpu(Layout::Whole), Way::Cpu(Layout::Parquet)];
        let sliced = Way::Sliced(Layout::Parquet);
        let rest = [spread, sliced];
        cpu.into_iter().chain(gather).chain(rest).collect()
    }

    async fn sessions(self, tables: &[(String, RecordBatch)], files: &Path) -> Sessions {
        let (layout, whole, free) = match self {
            Way::Cpu(layout) => (layout, Route::Cpu, Route::Cpu),
            Way::Gpu(layout, _) => (layout, Route::GpuOnly, Route::Gpu),
            Way::Sliced(layout) => (layout, Route::SlicedGpu, Route::SlicedGpu),
        };
        let [whole, free] = [whole, free].map(|route| route.session(&cache()));
        for session in [&whole, &free] {
            if self == Way::Gpu(layout, Joins::Spread) {
                spread_joins(session);
            }
            for (name, rows) in tables {
                let registered = layout.register(session, name, rows, files).await;
                registered.unwrap_or_else(|problem| panic!("table {name}: {problem}"));
            }
        }
        Sessions { whole, free }
    }
}

struct Sessions {
    /// What stays on the CPU is an error.
    whole: Session,
    /// What stays on the CPU is none.
    free: Session,
}

async fn plan(session: &Session, sql: &str) -> String {
    match session.plan_stage(&Stage::new("plan", sql)).await {
        Ok(plan) => format!("\n{}", displayable(plan.physical.as_ref()).indent(false)),
        Err(error) => format!("\n{error}"),
    }
}

/// Whether all of a case ran where its way says.
enum Ran {
    Whole,
    Refused,
}

async fn check(case: &Case, way: Way, sessions: &Sessions) -> Result<Ran, String> {
    let mut ran = run(&sessions.whole, &case.sql).await;
    let mut how = Ran::Whole;
    if let (Some(reason), Err(error)) = (&case.on_cpu, &ran)
        && matches!(way, Way::Gpu(..))
    {
        if !error.to_string().contains(reason) {
            return Err(format!(
                "refused for another reason than `{reason}`: {error}"
            ));
        }
        ran = run(&sessions.free, &case.sql).await;
        how = Ran::Refused;
    }
    match (&case.answer, ran) {
        (Answer::Error(texts), Err(error)) => {
            let told = error.to_string();
            match texts.iter().any(|text| told.contains(text)) {
                true => Ok(how),
                false => Err(format!("another error: {told}")),
            }
        }
        (Answer::Error(_), Ok(_)) => Err("an answer instead of an error".to_string()),
        (Answer::Rows { .. }, Err(error)) => Err(error.to_string()),
        (Answer::Rows { lines, ordered }, Ok(ran)) => {
            let got = Rows::of(&ran.report.preview)?;
            let n_columns = ran.plan.schema().fields().len();
            let expected = Rows::of_lines(lines, n_columns);
            got.difference(&expected, *ordered).map_or(Ok(how), Err)
        }
    }
}
