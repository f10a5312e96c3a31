//! From a path on the command line to a spec that `batch_specs` has looked at.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use batch_specs::{LoadOptions, Loaded, Problem, Severity};
use engine::words::io_problem;
use lifecycle::{GpuSource, Machine, Request};

use crate::arguments::SpecArguments;
use crate::commands::compile_guest::GUEST_COMPILER;
use crate::gpus::Gpus;

/// No spec that people write is near this size; a data file given by mistake is.
const SPEC_BYTES_MAX: u64 = 16 << 20;

/// A spec file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {}", path.display(), io_problem(source))]
pub struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

/// A spec and the name to call its file in messages.
pub struct SpecFile {
    /// The path as it was given, or `<stdin>`.
    pub name: String,
    /// What `batch_specs` made of it.
    pub loaded: Loaded,
}

impl SpecFile {
    /// Reads and loads the spec. `machine` is what derived values are bounded by; without
    /// it they depend on the spec alone.
    pub fn load(
        arguments: &SpecArguments,
        machine: Option<(&Machine, &Gpus)>,
    ) -> Result<Self, Unreadable> {
        let (name, text) = read(&arguments.spec)?;
        let folder = arguments.spec.parent().unwrap_or(Path::new(""));
        let options = LoadOptions {
            sets: pairs(&arguments.set),
            variables: pairs(&arguments.var),
            machine: machine.map(|(machine, gpus)| known_machine(machine, gpus)),
            sql_files: sql_files(folder, &text),
            ..LoadOptions::default()
        };
        let loaded = batch_specs::load(&text, &options);
        Ok(SpecFile { name, loaded })
    }

    /// What `lifecycle` runs or plans.
    pub fn request<'a>(
        &'a self,
        machine: Machine,
        gpu: Option<&'a dyn GpuSource>,
        preview_rows: usize,
    ) -> Request<'a> {
        Request {
            loaded: &self.loaded,
            machine,
            gpu,
            guest_compiler: &GUEST_COMPILER,
            preview_rows,
            attempt: None,
        }
    }

    /// Stages in the spec; 0 when it was refused.
    pub fn n_stages(&self) -> usize {
        self.loaded
            .spec
            .as_ref()
            .map_or(0, |spec| spec.stages.len())
    }

    /// Whether the spec is refused.
    pub fn is_refused(&self) -> bool {
        self.loaded
            .problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    /// Prints every problem to standard error, in the order of the file.
    pub fn print_problems(&self) {
        for problem in &self.loaded.problems {
            eprintln!("{}", problem.render(&self.name));
        }
    }

    /// One line after the problems: how many there are of each severity.
    pub fn summary(&self) -> String {
        let count = |severity| {
            let is = |problem: &&Problem| problem.severity == severity;
            self.loaded.problems.iter().filter(is).count()
        };
        let parts: Vec<String> = [Severity::Error, Severity::Warning, Severity::Notice]
            .into_iter()
            .map(|severity| (count(severity), severity.word()))
            .filter(|(n, _)| *n > 0)
            .map(|(n, word)| format!("{n} {word}{}", if n == 1 { "" } else { "s" }))
            .collect();
        let verdict = if self.is_refused() {
            "refused"
        } else {
            "valid"
        };
        if parts.is_empty() {
            format!("{}: {verdict}", self.name)
        } else {
            format!("{}: {verdict}, {}", self.name, parts.join(", "))
        }
    }
}

pub fn read(path: &Path) -> Result<(String, String), Unreadable> {
    let unreadable = |source| Unreadable {
        path: path.to_path_buf(),
        source,
    };
    let (name, reader): (String, Box<dyn Read>) = if path == Path::new("-") {
        ("<stdin>".to_string(), Box::new(io::stdin()))
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        (path.display().to_string(), Box::new(file))
    };
    let mut text = String::new();
    reader
        .take(SPEC_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > SPEC_BYTES_MAX {
        let message = format!(
            "it has more than {} MiB, so it is no spec",
            SPEC_BYTES_MAX >> 20
        );
        return Err(unreadable(io::Error::new(
            io::ErrorKind::FileTooLarge,
            message,
        )));
    }
    Ok((name, text))
}

pub fn pairs(pairs: &[(String, String)]) -> Vec<String> {
    pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// The machine in the words of `batch_specs`. Memory that cannot be read counts as none, so
/// that nothing is derived from a guess.
pub fn known_machine(machine: &Machine, gpus: &Gpus) -> batch_specs::Machine {
    batch_specs::Machine {
        cores: machine.cores as u64,
        memory_mib: machine.memory_bytes.unwrap_or(0) >> 20,
        gpus: gpus.known(),
    }
}

/// The files that stages name in `sql_file`, relative to the spec's folder. One that cannot
/// be read is left out; `batch_specs` then says where it was named.
pub fn sql_files<M: FromIterator<(String, String)>>(folder: &Path, text: &str) -> M {
    batch_specs::sql_files(text)
        .into_iter()
        .filter_map(|file| {
            let sql = std::fs::read_to_string(folder.join(&file)).ok()?;
            Some((file, sql))
        })
        .collect()
}
