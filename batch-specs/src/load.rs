//! The one way in: text to spec, effective configuration and problems.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::catalogue::Catalogue;
use crate::check::{self, Check};
use crate::derive::{Derivation, derive};
use crate::machine::Machine;
use crate::problem::{Place, Problem, Problems, Severity};
use crate::properties::{Meaning, Properties};
use crate::provenance::Effective;
use crate::set_header::{self, AddJar};
use crate::settings::{HeaderLine, Settings};
use crate::spec::{Spec, Variable, VariableType};
use crate::variables::{Binding, bind};
use crate::yaml::{self, Node};
use crate::{overrides, read, schema};

/// What goes in besides the text.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// `path=value`, as given to `--set`.
    pub sets: Vec<String>,
    /// `name=value`, as given to `--var`.
    pub variables: Vec<String>,
    /// Values of the event that started the batch, under names such as `event.key`. They are
    /// bound as text, and are not reported when unused.
    pub event: IndexMap<String, String>,
    /// The machine at hand, where it is known.
    pub machine: Option<Machine>,
    /// Texts of the files that stages name in `sql_file`; [`sql_files`] lists them.
    pub sql_files: IndexMap<String, String>,
    /// Refuses what the dataproc profile requires and we could fill in.
    pub strict: bool,
}

/// What comes out.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The spec, when nothing refuses it.
    pub spec: Option<Spec>,
    /// Every setting with its provenance; as far as it could be derived when there are errors.
    pub effective: Effective,
    /// All problems, in the order of the file.
    pub problems: Vec<Problem>,
    /// What each stage runs, with variables bound; in the order of `spec.stages`.
    pub scripts: Vec<StageScript>,
}

impl Loaded {
    /// Whether anything refuses the spec.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|p| p.severity == Severity::Error)
    }
}

/// The statements of one stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageScript {
    /// The stage's name.
    pub stage: String,
    /// Locations of `add jar` lines; the runtime has no use for them.
    pub add_jars: Vec<String>,
    /// The statements after the SET header.
    pub statements: Vec<BoundStatement>,
}

/// A statement that is ready to be planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoundStatement {
    /// Its text, with `$placeholder` where values go.
    pub sql: String,
    /// The values.
    pub bindings: Vec<Binding>,
    /// Line in the stage's SQL, from 1.
    pub line: usize,
    /// Column in the stage's SQL, from 1.
    pub column: usize,
}

/// The files that the stages of a spec name, so that a caller can read them before [`load`].
pub fn sql_files(text: &str) -> Vec<String> {
    let Some(root) = yaml::parse(text, &mut Problems::default()) else {
        return Vec::new();
    };
    let Some(yaml::Value::List(stages)) = root.get("stages").map(|n| &n.value) else {
        return Vec::new();
    };
    let files = stages.iter().filter_map(|s| s.get("sql_file")?.text());
    files
        .map(str::to_owned)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Like [`load`], for bytes that may not be text.
pub fn load_bytes(bytes: &[u8], options: &LoadOptions) -> Loaded {
    match std::str::from_utf8(bytes) {
        Ok(text) => load(text, options),
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let (line, column) = crate::sql_text::place_in(&before, before.len());
            let mut problems = Problems::default();
            let hint = "save the file as UTF-8";
            problems.error(
                "not-utf8",
                "",
                Place { line, column },
                "the file is not UTF-8 text here",
                hint,
            );
            refused(problems)
        }
    }
}

fn refused(problems: Problems) -> Loaded {
    Loaded {
        spec: None,
        effective: Effective::default(),
        problems: problems.into_sorted(),
        scripts: Vec::new(),
    }
}

/// Reads a spec, checks everything about it, and derives what it leaves open.
pub fn load(text: &str, options: &LoadOptions) -> Loaded {
    let mut problems = Problems::default();
    let Some(mut root) = yaml::parse(text, &mut problems) else {
        return refused(problems);
    };
    overrides::apply_sets(&mut root, &options.sets, &mut problems);
    overrides::apply_variables(&mut root, &options.variables, &mut problems);
    let Some(json) = read::read(&root, schema::resolved(), "", &mut problems) else {
        return refused(problems);
    };
    let spec: Spec = match serde_json::from_value(json) {
        Ok(spec) => spec,
        Err(error) => {
            // Whatever the walk let through and the types refuse is still the author's to hear.
            if !problems.has_errors() {
                problems.error("spec-shape", "", root.place, error.to_string(), "");
            }
            return refused(problems);
        }
    };
    let misread = problems.error_paths();
    check::spec(&mut Check {
        spec: &spec,
        root: &root,
        problems: &mut problems,
        misread,
    });
    let mut headers = Vec::new();
    let scripts = scripts(&spec, &root, options, &mut headers, &mut problems);
    let settings = Settings::gather(&root, &headers, &mut problems);
    let mut derivation = Derivation {
        spec: &spec,
        settings: &settings,
        machine: options.machine.as_ref(),
        catalogue: Catalogue::built_in(),
        strict: options.strict,
        problems: &mut problems,
        out: Effective::default(),
        chosen: None,
        accelerator_place: root.place_of("accelerator.type"),
        total_mib: 0,
    };
    derive(&mut derivation);
    check::settings(&mut derivation);
    let effective = derivation.out;
    let is_refused = problems.has_errors();
    Loaded {
        spec: (!is_refused).then_some(spec),
        effective,
        problems: problems.into_sorted(),
        scripts: if is_refused { Vec::new() } else { scripts },
    }
}

/// Where a stage's SQL stands: its path, and its node when it stands in the spec itself.
struct Source<'a> {
    path: String,
    node: Option<&'a Node>,
    place: Place,
}

impl Source<'_> {
    /// The place of a line and column of the SQL, as exactly as can be told, and words for it
    /// where the SQL is in a file of its own.
    fn place(&self, line: usize, column: usize) -> (Place, String) {
        match self.node {
            Some(node) => (node.inner_place(line, column), String::new()),
            None => (
                self.place,
                format!(" (line {line}, column {column} of the file)"),
            ),
        }
    }
}

fn scripts(
    spec: &Spec,
    root: &Node,
    options: &LoadOptions,
    headers: &mut Vec<HeaderLine>,
    problems: &mut Problems,
) -> Vec<StageScript> {
    let mut variables = spec.variables.clone();
    for (name, text) in &options.event {
        let variable = Variable {
            kind: VariableType::Text,
            value: Some(text.clone()),
        };
        variables.insert(name.clone(), variable);
    }
    let query = spec
        .dataproc
        .as_ref()
        .and_then(|d| d.spark_sql_batch.as_ref());
    for (name, text) in query.iter().flat_map(|q| &q.query_variables) {
        let variable = Variable {
            kind: VariableType::Text,
            value: Some(text.clone()),
        };
        variables.insert(name.clone(), variable);
    }
    let mut used = BTreeSet::new();
    let mut all_known = true;
    let mut out = Vec::new();
    let mut texts: Vec<(String, Option<&str>, Source<'_>)> = Vec::new();
    for (i, stage) in spec.stages.iter().enumerate() {
        let (path, text) = match (&stage.sql, &stage.sql_file) {
            (Some(sql), _) => (format!("stages[{i}].sql"), Some(sql.as_str())),
            (None, Some(file)) => (
                format!("stages[{i}].sql_file"),
                options.sql_files.get(file).map(String::as_str),
            ),
            (None, None) => {
                out.push(StageScript {
                    stage: stage.name.clone(),
                    ..StageScript::default()
                });
                continue;
            }
        };
        let place = root.place_of(&path);
        let node = root
            .find(&path)
            .map(|(n, _)| n)
            .filter(|_| stage.sql.is_some());
        if let (None, Some(file)) = (text, &stage.sql_file) {
            problems.error(
                "sql-file-missing",
                &path,
                place,
                format!("`{}` cannot be read", read::cut(file)),
                "the path is relative to the spec",
            );
        }
        texts.push((stage.name.clone(), text, Source { path, node, place }));
    }
    if let Some(query) = query {
        let path = "dataproc.spark_sql_batch.query_file_uri".to_owned();
        let text = options
            .sql_files
            .get(&query.query_file_uri)
            .map(String::as_str);
        let place = root.place_of(&path);
        texts.push((
            "query".to_owned(),
            text,
            Source {
                path,
                node: None,
                place,
            },
        ));
    }
    for (stage, text, source) in texts {
        let Some(text) = text else {
            all_known = false;
            out.push(StageScript {
                stage,
                ..StageScript::default()
            });
            continue;
        };
        out.push(script(
            stage, text, &source, &variables, &mut used, headers, problems,
        ));
    }
    // A script that was not read may use any of them.
    if all_known {
        unused(spec, root, &used, problems);
    }
    out
}

fn script(
    stage: String,
    text: &str,
    source: &Source<'_>,
    variables: &IndexMap<String, Variable>,
    used: &mut BTreeSet<String>,
    headers: &mut Vec<HeaderLine>,
    problems: &mut Problems,
) -> StageScript {
    let parts = set_header::split(text);
    for problem in &parts.problems {
        let (place, note) = source.place(problem.line, problem.column);
        let hint = "write `SET key=value;` in a header, and ask for settings elsewhere";
        problems.error(
            "set-header",
            &source.path,
            place,
            format!("{}{note}", problem.message),
            hint,
        );
    }
    for setting in parts.settings {
        let (place, _) = source.place(setting.line, setting.column);
        headers.push(HeaderLine {
            key: setting.key,
            value: setting.value,
            at: source.path.clone(),
            place,
        });
    }
    let add_jars = parts
        .add_jars
        .into_iter()
        .map(|jar: AddJar| jar.location)
        .collect();
    let mut statements = Vec::new();
    for statement in parts.statements {
        let (place, note) = source.place(statement.line, statement.column);
        if let Some((key, _)) = statement.as_set() {
            late_set(key, place, &note, &source.path, problems);
        }
        let bound = bind(&statement.sql, variables);
        used.extend(bound.used);
        for problem in bound.problems {
            // Places inside a statement are relative to it.
            let line = statement.line + problem.line - 1;
            let column = if problem.line == 1 {
                statement.column + problem.column - 1
            } else {
                problem.column
            };
            let (place, note) = source.place(line, column);
            problems.error(
                problem.code,
                &source.path,
                place,
                format!("{}{note}", problem.message),
                problem.hint,
            );
        }
        statements.push(BoundStatement {
            sql: bound.sql,
            bindings: bound.bindings,
            line: statement.line,
            column: statement.column,
        });
    }
    StageScript {
        stage,
        add_jars,
        statements,
    }
}

/// SET after the first statement: too late for what is read at the start.
fn late_set(key: &str, place: Place, note: &str, path: &str, problems: &mut Problems) {
    let properties = Properties::built_in();
    if properties.is_startup(key) {
        let message =
            format!("`{key}` is read at the start, so it cannot be set after a statement{note}");
        problems.error(
            "late-set",
            path,
            place,
            message,
            "move the SET line to the head of the script",
        );
    } else if let Meaning::Managed(reason) = properties.meaning(key) {
        let message = format!("`{key}` cannot be set: {reason}{note}");
        problems.error("managed-property", path, place, message, "remove it");
    }
}

fn unused(spec: &Spec, root: &Node, used: &BTreeSet<String>, problems: &mut Problems) {
    let query = spec
        .dataproc
        .as_ref()
        .and_then(|d| d.spark_sql_batch.as_ref());
    let declared = spec.variables.keys().map(|n| (n, "variables"));
    let queried = query.iter().flat_map(|q| q.query_variables.keys());
    let queried = queried.map(|n| (n, "dataproc.spark_sql_batch.query_variables"));
    for (name, map) in declared.chain(queried).filter(|(n, _)| !used.contains(*n)) {
        if problems.is_full() {
            return;
        }
        let path = yaml::join(map, name);
        let message = format!("variable `{}` is not used", read::cut(name));
        problems.push(
            Severity::Notice,
            "unused-variable",
            &path,
            root.place_of(&path),
            message,
            "",
        );
    }
}
