//! Which service a command talks to, and as whom: options, then the environment, then a
//! context of the user's file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::words::io_problem;
use serde::Deserialize;
use url::{Host, Url};

use crate::arguments::Service;

/// A service and who asks.
#[derive(Clone)]
pub struct Target {
    /// Its address, without a slash at the end.
    pub server: String,
    /// The token.
    pub token: Option<String>,
    /// A certificate beside the system's own.
    pub ca_certificate: Option<PathBuf>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// The file of contexts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Contexts {
    /// The one that is used unless another is named.
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    server: String,
    /// A file that holds the token and nothing else.
    token_file: Option<PathBuf>,
    ca_certificate: Option<PathBuf>,
}

/// Where a service is that nobody named.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8470";

impl Target {
    /// Finds the service; an error says what to change.
    pub fn find(arguments: &Service) -> Result<Target, String> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = contexts_path();
        let contexts = match &path {
            Some(path) => read(path)?,
            None => Contexts::default(),
        };
        let said = arguments.server.clone().or_else(|| env("WARPLINE_SERVER"));
        // A context's token is for its own server.
        let wanted = match (&arguments.context, &said) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(_)) => None,
            (None, None) => contexts.current.clone(),
        };
        let context = wanted
            .map(|name| {
                contexts.contexts.get(&name).ok_or_else(|| {
                    let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
                    format!(
                        "there is no context `{name}`; there are: {}",
                        known.join(", ")
                    )
                })
            })
            .transpose()?;
        if arguments.context.is_some() && arguments.server.is_some() {
            return Err("give --server or --context, not both".into());
        }
        let server = match context {
            Some(context) => context.server.clone(),
            None => said.unwrap_or_else(|| DEFAULT_SERVER.into()),
        };
        let mut token = env("WARPLINE_TOKEN");
        if let (None, Some(file)) = (&token, context.and_then(|c| c.token_file.as_ref())) {
            let text = std::fs::read_to_string(file).map_err(|error| {
                format!("the token in `{}`: {}", file.display(), io_problem(&error))
            })?;
            token = Some(text.trim().to_owned());
        }
        let ca_certificate = arguments.ca_certificate.clone();
        let target = Target {
            server: server.trim_end_matches('/').to_owned(),
            token,
            ca_certificate: ca_certificate
                .or_else(|| context.and_then(|c| c.ca_certificate.clone())),
        };
        target.check()?;
        Ok(target)
    }

    fn check(&self) -> Result<(), String> {
        let wrong = || {
            format!(
                "`{}` is not the address of a service; write http(s)://host:port",
                self.server
            )
        };
        let url = Url::parse(&self.server).map_err(|_| wrong())?;
        let is_http = matches!(url.scheme(), "http" | "https");
        if !is_http || url.host().is_none() || url.query().is_some() {
            return Err(wrong());
        }
        let is_here = match url.host() {
            Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        if self.token.is_some() && url.scheme() == "http" && !is_here {
            return Err(format!(
                "`{}` is not encrypted, and the token would cross the network readable; use https",
                self.server
            ));
        }
        Ok(())
    }
}

fn contexts_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".config")))?;
    Some(folder.join("warpline/contexts.yaml"))
}

fn read(path: &Path) -> Result<Contexts, String> {
    let told = |problem: &str| format!("the contexts in `{}`: {problem}", path.display());
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(Contexts::default()),
        Ok(text) => serde_saphyr::from_str(&text).map_err(|error| told(error.to_string().trim())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
        Err(error) => Err(told(&io_problem(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(server: &str, token: Option<&str>, expected: bool) {
        let target = Target {
            server: server.into(),
            token: token.map(str::to_owned),
            ca_certificate: None,
        };
        assert_eq!(target.check().is_ok(), expected, "{server}");
    }

    #[test]
    fn a_token_never_crosses_the_network_readable() {
        check("http://127.0.0.1:1", Some("t"), true);
        check("http://localhost:1", Some("t"), true);
        check("https://warpline.example", Some("t"), true);
        check("http://warpline.example", None, true);
        check("http://warpline.example", Some("t"), false);
        check("http://localhost.evil.example", Some("t"), false);
        check("ftp://127.0.0.1", None, false);
        check("warpline.example:8470", None, false);
    }
}
