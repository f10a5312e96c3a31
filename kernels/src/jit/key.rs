//! Cache keys: a printable list of everything that decides what compiled code is.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{Header, Source};

/// Names one compiled image. It prints as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a text compiled for `arch` by `compiler`, which also stands for
    /// the fixed options.
    pub fn of(source: &Source, headers: &[Header], arch: &str, compiler: &str) -> Key {
        Key::with_headers(source, &header_lines(headers), arch, compiler)
    }

    /// As [`Key::of`], with what [`header_lines`] gave: headers are many times longer than
    /// a kernel's text, and the same for all of them.
    pub(super) fn with_headers(
        source: &Source,
        header_lines: &str,
        arch: &str,
        compiler: &str,
    ) -> Key {
        Key(Sha256::digest(parts(source, header_lines, arch, compiler)).into())
    }
}

/// What is hashed, readable. Texts are given by their own hash and length, so that no
/// text can pass for another list.
fn parts(source: &Source, header_lines: &str, arch: &str, compiler: &str) -> String {
    let mut out = String::from("warpline kernel 1\n");
    line(&mut out, "arch", "", arch);
    line(&mut out, "compiler", "", compiler);
    line(&mut out, "text", &source.name, &hash_of(&source.text));
    for (name, value) in &source.defines {
        line(&mut out, "define", name, value);
    }
    out + header_lines
}

/// The headers' part of what is hashed.
pub(super) fn header_lines(headers: &[Header]) -> String {
    let mut out = String::new();
    for header in headers {
        line(&mut out, "header", header.name, &hash_of(header.text));
    }
    out
}

fn line(out: &mut String, what: &str, name: &str, value: &str) {
    use fmt::Write;
    writeln!(out, "{what} {name:?} {value:?}").expect("a String takes all");
}

fn hash_of(text: &str) -> String {
    format!("{} bytes {}", text.len(), hex(&Sha256::digest(text)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_key() {
        let source = Source::new("k", "text").define("A", 1);
        let header = Header {
            name: "h.h",
            text: "1",
        };
        let key = Key::of(&source, &[header], "sm_90", "c 1");
        assert_eq!(key, Key::of(&source.clone(), &[header], "sm_90", "c 1"));
        let others = [
            Key::of(
                &Source {
                    name: "j".into(),
                    ..source.clone()
                },
                &[header],
                "sm_90",
                "c 1",
            ),
            Key::of(
                &Source {
                    text: "texu".into(),
                    ..source.clone()
                },
                &[header],
                "sm_90",
                "c 1",
            ),
            Key::of(
                &Source {
                    defines: vec![],
                    ..source.clone()
                },
                &[header],
                "sm_90",
                "c 1",
            ),
            Key::of(&source, &[], "sm_90", "c 1"),
            Key::of(
                &source,
                &[Header {
                    name: "h.h",
                    text: "2",
                }],
                "sm_90",
                "c 1",
            ),
            Key::of(&source, &[header], "sm_80", "c 1"),
            Key::of(&source, &[header], "sm_90", "c 2"),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(key, *other, "case {i}");
        }
        assert_eq!(key.to_string().len(), 64);
    }
}
