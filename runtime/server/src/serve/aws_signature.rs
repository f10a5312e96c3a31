//! Signatures of requests to Amazon's services, version 4.

use chrono::{DateTime, Utc};
use ring::hmac;
use sha2::{Digest, Sha256};
use url::Url;

/// Who signs.
#[derive(Clone)]
pub struct AwsCredentials {
    /// The key's id.
    pub key_id: String,
    /// The key.
    pub secret: String,
    /// The token of a session, for keys that are lent for a time.
    pub session_token: Option<String>,
}

impl std::fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AwsCredentials")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl AwsCredentials {
    /// Reads `PREFIX_ACCESS_KEY_ID` and its companions.
    pub fn from_environment(prefix: &str) -> Result<AwsCredentials, String> {
        let variable = |suffix: &str| {
            let name = format!("{prefix}_{suffix}");
            let value = std::env::var(&name).ok().filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("the environment variable {name} is not set"))
        };
        Ok(AwsCredentials {
            key_id: variable("ACCESS_KEY_ID")?,
            secret: variable("SECRET_ACCESS_KEY")?,
            session_token: variable("SESSION_TOKEN").ok(),
        })
    }
}

/// What is signed.
#[derive(Debug)]
pub struct ToSign<'a> {
    /// Where the request goes; it has no query.
    pub url: &'a Url,
    /// The service, such as `sqs`.
    pub service: &'a str,
    /// Its region.
    pub region: &'a str,
    /// Headers besides `host` and `x-amz-date`, names in lower case.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
    /// When.
    pub time: DateTime<Utc>,
}

impl ToSign<'_> {
    /// The headers that the request needs besides its own: date, session and signature.
    pub fn sign(&self, credentials: &AwsCredentials) -> Vec<(&'static str, String)> {
        let time = self.time.format("%Y%m%dT%H%M%SZ").to_string();
        let day = &time[..8];
        let mut added = vec![("x-amz-date", time.clone())];
        if let Some(token) = &credentials.session_token {
            added.push(("x-amz-security-token", token.clone()));
        }
        let mut headers: Vec<(&str, &str)> = self.headers.to_vec();
        headers.extend(added.iter().map(|(name, value)| (*name, value.as_str())));
        let host = host(self.url);
        headers.push(("host", &host));
        headers.sort_unstable();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}:{}\n", value.trim()))
            .collect();
        let canonical = format!(
            "POST\n{}\n\n{lines}\n{names}\n{}",
            self.url.path(),
            hex(&Sha256::digest(self.body))
        );
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let text = format!(
            "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
            hex(&Sha256::digest(canonical.as_bytes()))
        );
        let key = signing_key(&credentials.secret, day, self.region, self.service);
        let signature = hex(&mac(&key, text.as_bytes()));
        let header = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            credentials.key_id
        );
        added.push(("authorization", header));
        added
    }
}

/// The host as the `Host` header has it.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn signing_key(secret: &str, day: &str, region: &str, service: &str) -> Vec<u8> {
    let start = format!("AWS4{secret}");
    [day, region, service, "aws4_request"]
        .iter()
        .fold(start.into_bytes(), |key, part| mac(&key, part.as_bytes()))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    /// The example in Amazon's description.
    #[test]
    fn the_signing_key_is_that_of_the_description() {
        let key = signing_key(SECRET, "20120215", "us-east-1", "iam");
        assert_eq!(
            hex(&key),
            "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"
        );
    }

    /// `post-vanilla` of Amazon's published test cases.
    #[test]
    fn a_request_is_signed_as_in_the_published_case() {
        let url = Url::parse("https://example.amazonaws.com/").unwrap();
        let signed = ToSign {
            url: &url,
            service: "service",
            region: "us-east-1",
            headers: &[],
            body: b"",
            time: DateTime::parse_from_rfc3339("2015-08-30T12:36:00Z")
                .unwrap()
                .to_utc(),
        }
        .sign(&AwsCredentials {
            key_id: "AKIDEXAMPLE".into(),
            secret: SECRET.into(),
            session_token: None,
        });
        let (_, authorization) = signed.last().expect("it is signed");
        assert_eq!(
            authorization,
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
             SignedHeaders=host;x-amz-date, \
             Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        );
    }
}
