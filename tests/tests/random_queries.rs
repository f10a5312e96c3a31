//! Do random queries have the same answer on the GPU path and on the CPU path?
//!
//! `WARPLINE_SEEDS=17` runs one seed and shows its plan, `WARPLINE_SEEDS=0..2000` many.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion::physical_plan::displayable;
use engine::explain::{outcomes, planned_fallbacks};
use engine::session::Session;
use tests::layout::{LAYOUTS, Layout};
use tests::random::{Dice, SEEDS_PER_TABLES, case};
use tests::routes::{Route, run, spread_joins};
use tests::rows::Rows;

/// Longer than this takes a query whose joins make more rows than are worth comparing.
const PATIENCE: Duration = Duration::from_secs(5);

/// What every run of the tests asks.
const SEEDS: std::ops::Range<u64> = 0..24;

fn seeds() -> std::ops::Range<u64> {
    let number = |text: &str| text.parse().expect("WARPLINE_SEEDS is a number, or N..M");
    match std::env::var("WARPLINE_SEEDS") {
        Err(_) => SEEDS,
        Ok(text) => match text.split_once("..") {
            Some((from, to)) => number(from)..number(to),
            None => number(&text)..number(&text) + 1,
        },
    }
}

fn cache() -> PathBuf {
    std::env::var_os("WARPLINE_CACHE").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("warpline"),
        PathBuf::from,
    )
}

/// How a seed's tables reach the GPU path.
fn ways() -> Vec<(Layout, bool)> {
    let gather = LAYOUTS.map(|layout| (layout, false));
    let spread = [(Layout::Sevenths, true), (Layout::Parquet, true)];
    gather.into_iter().chain(spread).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_have_one_answer() {
    let seeds = seeds();
    let is_one = seeds.end - seeds.start == 1;
    let mut wrong = Vec::new();
    let mut tally = Tally::default();
    let mut seed = seeds.start;
    while seed < seeds.end {
        let group_end = (seed / SEEDS_PER_TABLES + 1) * SEEDS_PER_TABLES;
        let files = tempfile::tempdir().unwrap();
        let sessions = Sessions::of(seed, files.path()).await;
        for seed in seed..group_end.min(seeds.end) {
            if let Err(problem) = sessions.check(seed, is_one, &mut tally).await {
                eprintln!("seed {seed}: {problem}\n");
                wrong.push(seed);
            }
        }
        seed = group_end;
    }
    eprintln!("{tally}");
    assert!(wrong.is_empty(), "WARPLINE_SEEDS of these: {wrong:?}");
}

/// What happened to all queries.
#[derive(Default)]
struct Tally {
    n_whole: usize,
    n_partly: usize,
    n_errors: usize,
    n_large: usize,
    n_sliced: usize,
    n_fell_back: usize,
    n_rows: usize,
    n_empty: usize,
    reasons: BTreeMap<String, usize>,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} ran whole on the GPU path, {} in part, {} are errors, {} too large; \
             {} ran in slices and {} fell back for want of memory; {} rows, {} without rows",
            self.n_whole,
            self.n_partly,
            self.n_errors,
            self.n_large,
            self.n_sliced,
            self.n_fell_back,
            self.n_rows,
            self.n_empty
        )?;
        let mut reasons: Vec<(&String, &usize)> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        for (reason, n) in reasons.iter().take(30) {
            writeln!(f, "{n:6} {reason}")?;
        }
        Ok(())
    }
}

/// Sessions over the tables of a group of seeds.
struct Sessions {
    cpu: Session,
    /// Each way twice: what stays on the CPU is none, and is an error.
    gpu: Vec<(String, Session)>,
    /// Where joins and groups are cut, and where much falls back while it runs.
    short: [(Route, Session); 2],
}

impl Sessions {
    async fn of(seed: u64, files: &Path) -> Sessions {
        let (tables, _) = case(seed);
        let fill = async |session: &Session, layout: Layout, folder: &str| {
            for table in &tables {
                let folder = files.join(folder);
                let registered = layout.register(session, &table.name, &table.rows, &folder);
                registered.await.unwrap();
            }
        };
        let cpu = Route::Cpu.session(&cache());
        fill(&cpu, Layout::Whole, "cpu").await;
        let mut gpu = Vec::new();
        for (number, (layout, spread)) in ways().into_iter().enumerate() {
            for route in [Route::Gpu, Route::GpuOnly] {
                let session = route.session(&cache());
                if spread {
                    spread_joins(&session);
                }
                fill(&session, layout, &number.to_string()).await;
                let joins = if spread { ", spread joins" } else { "" };
                gpu.push((format!("{route:?} {layout:?}{joins}"), session));
            }
        }
        let short = [Route::SlicedGpu, Route::TightGpu];
        let short = short.map(|route| (route, route.session(&cache())));
        for (route, session) in &short {
            fill(session, Layout::Parquet, &format!("{route:?}")).await;
        }
        Sessions { cpu, gpu, short }
    }

    /// Runs a seed's query on the CPU and on two ways of the GPU path.
    async fn check(&self, seed: u64, shown: bool, tally: &mut Tally) -> Result<(), String> {
        let (_, query) = case(seed);
        if shown {
            eprintln!("{}", query.sql);
        }
        let ran = tokio::time::timeout(PATIENCE, run(&self.cpu, &query.sql)).await;
        let Ok(ran) = ran else {
            tally.n_large += 1;
            return Ok(());
        };
        let expected = match ran {
            Ok(run) => Rows::of(&run.report.preview)?,
            Err(error) => {
                tally.n_errors += 1;
                let kind = error.to_string();
                let kind: String = kind.chars().skip(16).take(60).collect();
                *tally.reasons.entry(format!("error {kind}")).or_default() += 1;
                return Ok(());
            }
        };
        tally.n_rows += expected.n_rows();
        tally.n_empty += usize::from(expected.n_rows() == 0);
        let mut dice = Dice::new(seed ^ 0x5eed);
        for (route, session) in &self.short {
            if !shown && !dice.chance(25) {
                continue;
            }
            let told = |problem: String| format!("{route:?}: {}\n{problem}", query.sql);
            let ran = run(session, &query.sql).await;
            let ran = ran.map_err(|error| told(error.to_string()))?;
            let (pipelines, fallbacks) = outcomes(&ran.plan);
            tally.n_sliced += usize::from(pipelines.iter().any(|pipeline| pipeline.passes > 1));
            tally.n_fell_back += usize::from(!fallbacks.is_empty());
            let got = Rows::of(&ran.report.preview)?;
            if let Some(difference) = got.difference(&expected, query.ordered) {
                return Err(told(difference));
            }
        }
        let n_ways = self.gpu.len() / 2;
        let picked = match shown {
            true => (0..n_ways).collect(),
            false => vec![dice.below(n_ways)],
        };
        for way in picked {
            // What nothing keeps on the CPU runs whole; the rest runs as it may.
            let (free, whole) = (&self.gpu[2 * way], &self.gpu[2 * way + 1]);
            let mut ran = (whole, run(&whole.1, &query.sql).await);
            let refused = matches!(&ran.1, Err(error) if is_refusal(error));
            if refused {
                ran = (free, run(&free.1, &query.sql).await);
            }
            let ((name, _), ran) = ran;
            let told = |problem: String| format!("{name}: {}\n{problem}", query.sql);
            let ran = ran.map_err(|error| told(error.to_string()))?;
            let plan = displayable(ran.plan.as_ref()).indent(false).to_string();
            if shown {
                eprintln!("{name}\n{plan}");
            }
            match refused {
                true => tally.n_partly += 1,
                false => tally.n_whole += 1,
            }
            for kept in planned_fallbacks(&ran.plan) {
                if kept.reason.code != "scan-on-cpu" {
                    let why = kept.reason.message.chars().take(70).collect();
                    *tally.reasons.entry(why).or_default() += 1;
                }
            }
            let got = Rows::of(&ran.report.preview)?;
            if let Some(difference) = got.difference(&expected, query.ordered) {
                return Err(told(format!("{difference}{plan}")));
            }
        }
        Ok(())
    }
}

fn is_refusal(error: &engine::Error) -> bool {
    error.to_string().contains("accelerator.fallback")
}
