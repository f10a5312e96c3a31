//! What stands in an attribute's parentheses, and the JSON that metadata is made of.

use proc_macro::{TokenStream, TokenTree};

use crate::parse::{Problem, Result, split, unquoted};

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<String>,
    pub(crate) volatility: Option<String>,
    pub(crate) is_null_on_error: bool,
    pub(crate) is_vectorized: bool,
}

/// Reads options, of which this attribute knows these.
pub(crate) fn options(tokens: TokenStream, known: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    for part in split(tokens) {
        let Some(first) = part.first() else { continue };
        let span = first.span();
        let word = first.to_string();
        let value = match part.get(2) {
            Some(TokenTree::Literal(literal)) if part.len() == 3 => {
                Some(unquoted(&literal.to_string()))
            }
            None if part.len() == 1 => None,
            _ => {
                let message = format!("write `{word} = \"...\"`");
                return Err(Problem::new(span, message));
            }
        };
        if !known.contains(&word.as_str()) {
            let message = format!("`{word}` is no option here; there are {}", known.join(", "));
            return Err(Problem::new(span, message));
        }
        let among = |allowed: &[&str]| match &value {
            Some(value) if allowed.contains(&value.as_str()) => Ok(value.clone()),
            _ => Err(Problem::new(
                span,
                format!("`{word}` is one of \"{}\"", allowed.join("\", \"")),
            )),
        };
        match word.as_str() {
            "name" => {
                let name = value.unwrap_or_default();
                if !is_name(&name) {
                    return Err(Problem::new(span, bad_name(&name)));
                }
                options.name = Some(name);
            }
            "volatility" => {
                options.volatility = Some(among(&["immutable", "stable", "volatile"])?);
            }
            "on_error" => options.is_null_on_error = among(&["fail", "null"])? == "null",
            _ => options.is_vectorized = true,
        }
    }
    Ok(options)
}

fn bad_name(name: &str) -> String {
    format!(
        "SQL cannot call a function `{name}`: use up to 63 of a to z, 0 to 9 and _, starting with \
         a letter or _; `name = \"...\"` gives it another name"
    )
}

fn is_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
}

/// The name in SQL of what the author calls `own`.
pub(crate) fn sql_name(options: &Options, own: &str, span: proc_macro::Span) -> Result<String> {
    match &options.name {
        Some(name) => Ok(name.clone()),
        None if is_name(own) => Ok(own.to_string()),
        None => Err(Problem::new(span, bad_name(own))),
    }
}

/// A JSON string.
pub(crate) fn json(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// The metadata record of a function as Rust code: parts of text, with the names of types
/// in between, which only the compiler knows.
pub(crate) struct Record {
    parts: Vec<String>,
}

impl Record {
    pub(crate) fn new(name: &str, kind: &str) -> Self {
        let start = format!(
            "{{\"abi\":1,\"name\":{},\"kind\":{}",
            json(name),
            json(kind)
        );
        Record {
            parts: vec![format!("::udf_sdk::rt::Name::new({start:?})")],
        }
    }

    /// Adds text.
    pub(crate) fn text(&mut self, text: &str) {
        self.parts
            .push(format!("::udf_sdk::rt::Name::new({text:?})"));
    }

    /// Adds the value of an expression of type `Name`.
    pub(crate) fn name(&mut self, expression: &str) {
        self.parts.push(expression.to_string());
    }

    /// Adds the arguments: their names, and expressions for their types.
    pub(crate) fn args<'a>(&mut self, args: impl Iterator<Item = (&'a str, String)>) {
        self.text(",\"args\":[");
        for (i, (name, expression)) in args.enumerate() {
            let comma = if i == 0 { "" } else { "," };
            self.text(&format!("{comma}{{\"name\":{},\"type\":\"", json(name)));
            self.name(&expression);
            self.text("\"}");
        }
        self.text("]");
    }

    /// Adds the doc comment and the examples in it.
    pub(crate) fn doc(&mut self, name: &str, doc: &[String]) {
        let is_example = |line: &str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('(') && rest.contains(") = "))
        };
        let (examples, words): (Vec<_>, Vec<_>) = doc.iter().partition(|line| is_example(line));
        let words: Vec<&str> = words.iter().map(|line| line.as_str()).collect();
        self.text(&format!(",\"doc\":{}", json(words.join("\n").trim())));
        let examples: Vec<String> = examples
            .iter()
            .filter_map(|line| line.split_once(") = "))
            .map(|(call, result)| {
                format!(
                    "{{\"call\":{},\"result\":{}}}",
                    json(&format!("{call})")),
                    json(result)
                )
            })
            .collect();
        self.text(&format!(",\"examples\":[{}]", examples.join(",")));
    }

    /// The items that put the record into the module. They compile natively too, so that a
    /// wrong type shows in the author's own tests.
    pub(crate) fn items(mut self) -> String {
        self.text("}");
        let parts = self.parts.join(", ");
        format!(
            "const UDF_PARTS: &[::udf_sdk::rt::Name] = &[{parts}];
             const UDF_LENGTH: usize = ::udf_sdk::rt::record_length(UDF_PARTS);
             #[used]
             #[cfg_attr(target_arch = \"wasm32\", unsafe(link_section = \"udf1.meta\"))]
             static UDF_RECORD: [u8; UDF_LENGTH] = ::udf_sdk::rt::record::<UDF_LENGTH>(UDF_PARTS);"
        )
    }
}

/// The block that an attribute's items live in: they see what the author sees, and the
/// author does not see them.
pub(crate) fn block(items: &str) -> String {
    format!("const _: () = {{ {items} }};")
}
