//! From a location to the storage that holds it.

use std::sync::Arc;

use datafusion::object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use datafusion::object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use datafusion::object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use datafusion::object_store::http::HttpBuilder;
use datafusion::object_store::limit::LimitStore;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{ClientOptions, ObjectStore, RetryConfig};
use url::{Position, Url};

use super::pattern::Pattern;
use crate::error::{Error, Result};
use crate::settings::StorageOptions;

/// A location, taken apart.
#[derive(Debug, Clone)]
pub struct Location {
    /// As the author wrote it.
    pub written: String,
    /// The storage: scheme, host and port, such as `s3://lake`.
    pub root: Url,
    /// The path below the root, up to the first segment with a pattern.
    pub prefix: Path,
    /// The pattern below the prefix, if any.
    pub pattern: Option<Pattern>,
    /// Whether the author wrote a slash at the end.
    pub is_directory: bool,
}

impl Location {
    /// Understands a path or a URL.
    pub fn parse(written: &str) -> Result<Location> {
        let problem = |problem: String| Error::Location {
            location: written.to_owned(),
            problem,
        };
        if written.is_empty() {
            return Err(problem("it is empty".into()));
        }
        let (root, path) = match written.split_once("://") {
            None => (
                file_root(),
                absolute(written).map_err(|error| problem(error.to_string()))?,
            ),
            Some(("file", path)) => (file_root(), path.to_owned()),
            Some((scheme, rest)) => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let scheme = match scheme {
                    "s3" | "s3a" | "s3n" => "s3",
                    "gs" | "gcs" => "gs",
                    "az" | "abfs" | "abfss" | "azure" => "az",
                    "http" => "http",
                    "https" => "https",
                    other => {
                        return Err(problem(format!(
                            "there is no storage `{other}://`; use a path, file, s3, gs, az, http or https"
                        )));
                    }
                };
                if host.is_empty() {
                    return Err(problem("it names no bucket or host".into()));
                }
                let root = Url::parse(&format!("{scheme}://{host}"))
                    .map_err(|error| problem(error.to_string()))?;
                (root, path.to_owned())
            }
        };
        let is_directory = path.ends_with('/') || path.is_empty();
        let segments: Vec<&str> = path
            .split('/')
            .filter(|segment| !segment.is_empty() && *segment != ".")
            .collect();
        let is_web = root.scheme().starts_with("http");
        let is_pattern = |segment: &&str| !is_web && segment.contains(['*', '?']);
        let n_plain = segments
            .iter()
            .position(is_pattern)
            .unwrap_or(segments.len());
        let prefix = Path::parse(segments[..n_plain].join("/"))
            .map_err(|error| problem(error.to_string()))?;
        let pattern =
            (n_plain < segments.len()).then(|| Pattern::new(segments[n_plain..].iter().copied()));
        Ok(Location {
            written: written.to_owned(),
            root,
            prefix,
            pattern,
            is_directory,
        })
    }

    /// Whether it is on this machine's file system.
    pub fn is_local(&self) -> bool {
        self.root.scheme() == "file"
    }

    /// The path on this machine; meaningful for local locations only.
    pub fn local_path(&self) -> std::path::PathBuf {
        std::path::PathBuf::from(format!("/{}", self.prefix))
    }

    /// The URL of an object, for people and for DataFusion.
    pub fn url_of(&self, path: &Path) -> String {
        if self.is_local() {
            format!("file:///{path}")
        } else {
            format!("{}/{path}", &self.root[..Position::BeforePath])
        }
    }

    /// A path or URL of an object, spelt as the author spells locations.
    pub fn display(&self, path: &Path) -> String {
        if self.is_local() {
            format!("/{path}")
        } else {
            self.url_of(path)
        }
    }
}

fn file_root() -> Url {
    Url::parse("file:///").expect("a constant that parses")
}

fn absolute(path: &str) -> std::io::Result<String> {
    let mut absolute = std::path::absolute(path)?.to_string_lossy().into_owned();
    if path.ends_with('/') && !absolute.ends_with('/') {
        absolute.push('/');
    }
    Ok(absolute)
}

/// Opens the storage of a location. What `options` leaves open comes from the
/// usual environment variables (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
pub fn open(
    location: &Location,
    options: Option<&StorageOptions>,
    requests_max: usize,
) -> Result<Arc<dyn ObjectStore>> {
    let failed =
        |error: &datafusion::object_store::Error| Error::from_store(&location.written, error);
    let root = location.root.as_str();
    let retry = RetryConfig {
        max_retries: 5,
        retry_timeout: std::time::Duration::from_secs(60),
        ..RetryConfig::default()
    };
    let pairs = || options.into_iter().flat_map(|options| &options.options);
    let unknown = |key: &str| Error::StorageSettings {
        location: location.written.clone(),
        problem: format!("there is no option `{key}`"),
    };
    Ok(match location.root.scheme() {
        "file" => Arc::new(LocalFileSystem::new()),
        "s3" => {
            let mut builder = AmazonS3Builder::from_env().with_url(root).with_retry(retry);
            for (key, value) in pairs() {
                let key: AmazonS3ConfigKey = key.parse().map_err(|_| unknown(key))?;
                builder = builder.with_config(key, value);
            }
            let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
            // A server in the local network speaks plain http: whoever names it so wants it so.
            if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
                builder = builder.with_allow_http(true);
            }
            Arc::new(LimitStore::new(
                builder.build().map_err(|error| failed(&error))?,
                requests_max,
            ))
        }
        "gs" => {
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_url(root)
                .with_retry(retry);
            for (key, value) in pairs() {
                let key: GoogleConfigKey = key.parse().map_err(|_| unknown(key))?;
                builder = builder.with_config(key, value);
            }
            Arc::new(LimitStore::new(
                builder.build().map_err(|error| failed(&error))?,
                requests_max,
            ))
        }
        "az" => {
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_url(root)
                .with_retry(retry);
            for (key, value) in pairs() {
                let key: AzureConfigKey = key.parse().map_err(|_| unknown(key))?;
                builder = builder.with_config(key, value);
            }
            let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
            if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
                builder = builder.with_allow_http(true);
            }
            Arc::new(LimitStore::new(
                builder.build().map_err(|error| failed(&error))?,
                requests_max,
            ))
        }
        _ => {
            let builder = HttpBuilder::new()
                .with_url(root)
                .with_retry(retry)
                .with_client_options(ClientOptions::new().with_allow_http(true));
            Arc::new(LimitStore::new(
                builder.build().map_err(|error| failed(&error))?,
                requests_max,
            ))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_ends_the_prefix() {
        let location = Location::parse("s3://lake/day=*/part-?.parquet").unwrap();
        assert_eq!(location.root.as_str(), "s3://lake");
        assert_eq!(location.prefix.as_ref(), "");
        assert!(location.pattern.is_some());
    }

    #[test]
    fn spark_spellings_of_schemes_are_understood() {
        assert_eq!(
            Location::parse("s3a://lake/x").unwrap().root.as_str(),
            "s3://lake"
        );
        assert!(
            Location::parse("hdfs://x/y")
                .unwrap_err()
                .to_string()
                .contains("hdfs")
        );
    }
}
