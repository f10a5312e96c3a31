//! What specs may touch on a server: locations, addresses of object stores and credentials
//! that the operator has named. Everything else is refused, local paths too.

use std::path::{Component, Path, PathBuf};

use batch_specs::Spec;
use batch_specs::spec::Credentials;
use serde::{Deserialize, Serialize};

/// The operator's lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocationPolicy {
    /// Prefixes of URLs, each ending in `/`.
    urls: Vec<String>,
    /// Local folders, without symbolic links.
    folders: Vec<PathBuf>,
    endpoints: Vec<String>,
    credentials: Vec<String>,
}

/// A part of a spec that names what it may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forbidden {
    /// Where in the spec.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl LocationPolicy {
    /// Reads the lists; an error says which entry is wrong.
    pub fn new(
        locations: &[String],
        endpoints: Vec<String>,
        credentials: Vec<String>,
    ) -> Result<LocationPolicy, String> {
        let mut policy = LocationPolicy {
            urls: Vec::new(),
            folders: Vec::new(),
            endpoints,
            credentials,
        };
        for location in locations {
            match local_path(location) {
                Some(path) if path.is_absolute() => {
                    let folder = std::fs::canonicalize(&path).map_err(|error| {
                        let problem = engine::words::io_problem(&error);
                        format!("the allowed location `{location}`: {problem}")
                    })?;
                    policy.folders.push(folder);
                }
                Some(_) => {
                    return Err(format!(
                        "the allowed location `{location}` is a relative path; write it from `/` on"
                    ));
                }
                None => {
                    let slash = if location.ends_with('/') { "" } else { "/" };
                    policy.urls.push(format!("{location}{slash}"));
                }
            }
        }
        Ok(policy)
    }

    /// Everything in a spec that the lists do not allow.
    pub fn check(&self, spec: &Spec) -> Vec<Forbidden> {
        let mut found = Vec::new();
        for (i, table) in spec.tables.iter().enumerate() {
            self.check_location(
                &format!("tables[{i}].location"),
                &table.location,
                &mut found,
            );
        }
        for (i, udf) in spec.udfs.iter().enumerate() {
            self.check_location(&format!("udfs[{i}].module"), &udf.module, &mut found);
        }
        for (i, stage) in spec.stages.iter().enumerate() {
            if let Some(output) = &stage.output {
                let path = format!("stages[{i}].output.location");
                self.check_location(&path, &output.location, &mut found);
            }
        }
        for (i, storage) in spec.storage.iter().enumerate() {
            if let Some(endpoint) = &storage.endpoint
                && !self.allows_endpoint(endpoint)
            {
                found.push(Forbidden {
                    path: format!("storage[{i}].endpoint"),
                    message: format!("this server reaches no object store at `{}`", cut(endpoint)),
                    hint: "the operator lists addresses in `endpoints`".into(),
                });
            }
            if let Some(Credentials::Env(prefix)) = &storage.credentials
                && !self.lends(prefix)
            {
                found.push(Forbidden {
                    path: format!("storage[{i}].credentials"),
                    message: format!("this server lends no credentials called `{}`", cut(prefix)),
                    hint: "the operator lists their names in `credentials`".into(),
                });
            }
        }
        found
    }

    /// Whether a service at this address may be reached.
    pub fn allows_endpoint(&self, endpoint: &str) -> bool {
        let bare = endpoint.trim_end_matches('/');
        self.endpoints
            .iter()
            .any(|known| known.trim_end_matches('/') == bare)
    }

    /// Whether credentials may be used by their name.
    pub fn lends(&self, credentials: &str) -> bool {
        self.credentials.iter().any(|known| known == credentials)
    }

    /// Why a location is not reached, if it is not.
    pub fn refusal(&self, location: &str) -> Option<String> {
        let mut found = Vec::new();
        self.check_location("location", location, &mut found);
        let forbidden = found.pop()?;
        Some(format!("{}; {}", forbidden.message, forbidden.hint))
    }

    fn check_location(&self, path: &str, location: &str, found: &mut Vec<Forbidden>) {
        let allowed = match local_path(location) {
            Some(local) => self.allows_path(&local),
            None => self.allows_url(location),
        };
        if !allowed {
            found.push(Forbidden {
                path: path.to_owned(),
                message: format!("this server does not reach `{}`", cut(location)),
                hint: self.hint(),
            });
        }
    }

    fn hint(&self) -> String {
        let urls = self.urls.iter().cloned();
        let folders = self
            .folders
            .iter()
            .map(|folder| format!("{}/", folder.display()));
        let allowed: Vec<String> = urls.chain(folders).collect();
        match allowed.len() {
            0 => "the operator lists what specs may reach in `locations`; nothing is listed".into(),
            _ => format!("it reaches what starts with {}", allowed.join(", ")),
        }
    }

    fn allows_url(&self, location: &str) -> bool {
        // Nothing in a URL may lead back out of a prefix that it starts with.
        let is_plain = !location.chars().any(char::is_control)
            && !location.contains('\\')
            && !location.split(['/', '?', '#']).any(is_dots);
        let spelt = format!("{}/", location.trim_end_matches('/'));
        let below = |prefix: &String| location.starts_with(prefix.as_str()) || spelt == *prefix;
        is_plain && self.urls.iter().any(below)
    }

    fn allows_path(&self, path: &Path) -> bool {
        let is_plain = path.is_absolute()
            && !path.to_string_lossy().split('/').any(is_dots)
            && path
                .components()
                .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        if !is_plain {
            return false;
        }
        // What is there decides, symbolic links followed; the rest of the path is new.
        let mut there = path;
        let mut rest = Vec::new();
        let real = loop {
            match std::fs::canonicalize(there) {
                Ok(real) => break real,
                // A link that leads nowhere may lead anywhere tomorrow.
                Err(_) if std::fs::symlink_metadata(there).is_ok() => return false,
                Err(_) => match (there.parent(), there.file_name()) {
                    (Some(parent), Some(name)) => {
                        rest.push(name.to_owned());
                        there = parent;
                    }
                    _ => return false,
                },
            }
        };
        let real = rest.iter().rev().fold(real, |path, name| path.join(name));
        self.folders.iter().any(|folder| real.starts_with(folder))
    }
}

/// Whether a part of a path is `.` or `..`, however it is spelt.
fn is_dots(part: &str) -> bool {
    let plain = part
        .to_ascii_lowercase()
        .replace("%2e", ".")
        .replace("%2f", "/");
    plain.split('/').any(|part| part == "." || part == "..")
}

/// The path of a local location; none of any other.
fn local_path(location: &str) -> Option<PathBuf> {
    match location.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") => {
            // What follows is a path as it stands: nothing is decoded.
            Some(PathBuf::from(rest))
        }
        Some(_) => None,
        None => Some(PathBuf::from(location)),
    }
}

fn cut(text: &str) -> String {
    let clean: String = text
        .chars()
        .take(200)
        .flat_map(char::escape_default)
        .collect();
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: &LocationPolicy, location: &str, expected: bool) {
        let mut found = Vec::new();
        policy.check_location("x", location, &mut found);
        assert_eq!(found.is_empty(), expected, "{location}");
    }

    #[test]
    fn only_what_is_listed_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let lake = folder.path().join("lake");
        std::fs::create_dir(&lake).unwrap();
        std::os::unix::fs::symlink("/etc", lake.join("way-out")).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", lake.join("dangling")).unwrap();
        let lake = lake.display().to_string();
        let lists = [
            "s3://lake/in".to_owned(),
            "tpch://".to_owned(),
            lake.clone(),
        ];
        let policy = LocationPolicy::new(&lists, Vec::new(), Vec::new()).unwrap();
        for location in [
            "s3://lake/in/",
            "s3://lake/in",
            "s3://lake/in/day=*/x.parquet",
            "tpch://0.1/lineitem",
            &lake,
            &format!("{lake}/new/folder"),
            &format!("file://{lake}/x"),
        ] {
            check(&policy, location, true);
        }
        for location in [
            "",
            "/etc/passwd",
            "relative",
            "../up",
            "s3://lake/inner",
            "s3://lake/",
            "s3://lake/in/../out",
            "s3://lake/in/%2e%2E/out",
            "s3://lake/in/..%2fout",
            "S3://lake/in/x",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "FILE:///etc/passwd",
            &format!("file://{lake}/%2e%2e/x"),
            &format!("{lake}/../x"),
            &format!("{lake}/way-out/passwd"),
            &format!("{lake}/dangling/x"),
            &format!("{lake}-other/x"),
        ] {
            check(&policy, location, false);
        }
        let nothing = LocationPolicy::default();
        for location in ["s3://lake/in/", "/tmp/x", "tpch://1/region"] {
            check(&nothing, location, false);
        }
    }

    #[test]
    fn a_wrong_entry_is_told() {
        for location in ["relative/path", "/no/such/folder/at/all"] {
            let told = LocationPolicy::new(&[location.to_owned()], Vec::new(), Vec::new());
            assert!(told.is_err_and(|told| told.contains(location)));
        }
    }
}
