//! Who may do what: bearer tokens, of which only hashes are kept.

use std::path::Path;

use engine::words::io_problem;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a token allows.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// To see the owner's batches.
    Read,
    /// To submit, cancel, retry and delete the owner's batches.
    Write,
    /// To do so with everybody's, and to manage triggers.
    Admin,
}

/// One token in the token file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// Whose it is. Batches belong to their submitter's owner.
    pub owner: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// SHA-256 of the token, in hexadecimal digits. A token has 256 random bits, so nothing
    /// slower is needed.
    pub sha256: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    tokens: Vec<TokenEntry>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose batches are theirs.
    pub owner: String,
    /// What they may do.
    pub scopes: Vec<Scope>,
}

impl Caller {
    /// Whoever reaches a server without tokens.
    pub fn local() -> Caller {
        Caller {
            owner: "local".into(),
            scopes: vec![Scope::Read, Scope::Write, Scope::Admin],
        }
    }

    /// Whether they may.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    /// Whether an owner's batches are open to them.
    pub fn sees(&self, owner: &str) -> bool {
        self.owner == owner || self.may(Scope::Admin)
    }
}

/// The tokens that a server knows; none means that it asks for none.
#[derive(Debug, Default)]
pub struct Tokens {
    known: Option<Vec<([u8; 32], Caller)>>,
}

impl Tokens {
    /// Reads the token file.
    pub fn load(path: &Path) -> Result<Tokens, String> {
        let told = |problem: &str| format!("the token file `{}`: {problem}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| told(&io_problem(&error)))?;
        Self::parse(&text).map_err(|problem| told(&problem))
    }

    fn parse(text: &str) -> Result<Tokens, String> {
        let file: TokenFile =
            serde_saphyr::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
        let mut known = Vec::new();
        for entry in file.tokens {
            let hash = unhex(&entry.sha256).ok_or_else(|| {
                format!(
                    "the `sha256` of {}'s token is not 64 hexadecimal digits",
                    entry.owner
                )
            })?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
            if entry.owner.is_empty() || entry.owner.len() > 63 || !entry.owner.chars().all(is_name)
            {
                return Err(format!(
                    "`{}` is not an owner: use letters, digits, `-`, `_`, `.` and `@`, 63 at most",
                    entry.owner.escape_default()
                ));
            }
            let caller = Caller {
                owner: entry.owner,
                scopes: entry.scopes,
            };
            known.push((hash, caller));
        }
        if known.is_empty() {
            return Err("there is no token in it, so nobody could do anything".into());
        }
        Ok(Tokens { known: Some(known) })
    }

    /// Whether a token is asked for.
    pub fn are_required(&self) -> bool {
        self.known.is_some()
    }

    /// Whose token it is. Takes the same time for every token.
    pub fn caller(&self, token: Option<&str>) -> Option<Caller> {
        let Some(known) = &self.known else {
            return Some(Caller::local());
        };
        let hash: [u8; 32] = Sha256::digest(token?.as_bytes()).into();
        let mut found = None;
        for (of, caller) in known {
            if bool::from(of.ct_eq(&hash)) {
                found = Some(caller);
            }
        }
        found.cloned()
    }
}

/// A new token, and its entry for the token file.
pub fn create(owner: &str, scopes: &[Scope]) -> Result<(String, TokenEntry), String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    let token = format!("wl_{}", hex(&bytes));
    let entry = TokenEntry {
        owner: owner.to_owned(),
        scopes: scopes.to_vec(),
        sha256: hex(&Sha256::digest(token.as_bytes())),
    };
    Ok((token, entry))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_hash_alone() {
        let (token, entry) = create("ada", &[Scope::Read]).unwrap();
        let text = format!(
            "tokens:\n  - {{owner: ada, scopes: [read], sha256: {}}}\n",
            entry.sha256
        );
        let tokens = Tokens::parse(&text).unwrap();
        let caller = tokens.caller(Some(&token)).expect("it is known");
        assert_eq!(caller.owner, "ada");
        assert!(caller.may(Scope::Read) && !caller.may(Scope::Write));
        assert!(caller.sees("ada") && !caller.sees("bob"));
        for wrong in [None, Some(""), Some("wl_"), Some(entry.sha256.as_str())] {
            assert_eq!(tokens.caller(wrong), None, "{wrong:?}");
        }
        assert!(!text.contains(&token));
    }

    #[test]
    fn a_wrong_token_file_is_told() {
        for (text, told) in [
            ("tokens: []", "no token in it"),
            (
                "tokens:\n  - {owner: a, scopes: [read], sha256: xyz}",
                "64 hexadecimal",
            ),
            (
                "tokens:\n  - {owner: 'a b', scopes: [read], sha256: 0000000000000000000000000000000000000000000000000000000000000000}",
                "not an owner",
            ),
            ("tokens:\n  - {owner: a, scopes: [fly], sha256: x}", "fly"),
        ] {
            let error = Tokens::parse(text).expect_err(text);
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_server_without_tokens_asks_for_none() {
        let caller = Tokens::default().caller(None).expect("nobody is asked");
        assert!(caller.may(Scope::Admin));
    }
}
