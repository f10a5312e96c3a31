//! Our words for what the system and the libraries say.
//!
//! Only for show: nothing decides on a text. A saying that is not known here is passed
//! on without the library's own prefixes.

use std::io;

/// What is wrong with a file or directory, and what to do about it. The caller puts in
/// front what was to be done, and with which path.
pub fn io_problem(error: &io::Error) -> String {
    use io::ErrorKind::*;
    if let Some(inner) = error.get_ref() {
        if let Some(inner) = inner.downcast_ref::<io::Error>() {
            return io_problem(inner);
        }
        // Somebody's own words, unless they quote the system.
        let text = inner.to_string();
        if !text.contains("(os error ") {
            return text;
        }
    }
    if error.raw_os_error() == Some(libc::EMFILE) {
        return "too many files are open; raise the limit (`ulimit -n`)".to_owned();
    }
    match error.kind() {
        NotFound => "there is no such file or directory".to_owned(),
        PermissionDenied => {
            "permission denied; check the owner and mode of it and of its directory".to_owned()
        }
        ReadOnlyFilesystem => "the file system is read-only; name another place".to_owned(),
        StorageFull => "the disk is full; free some space or name another place".to_owned(),
        QuotaExceeded => "the disk quota is used up; free some space or raise it".to_owned(),
        FileTooLarge => {
            "the file would be larger than this user or file system may write; raise the limit (`ulimit -f`)"
                .to_owned()
        }
        NotADirectory => "a part of the path is a file, not a directory".to_owned(),
        IsADirectory => "it is a directory, not a file".to_owned(),
        AlreadyExists => "it exists already".to_owned(),
        DirectoryNotEmpty => "the directory is not empty".to_owned(),
        InvalidFilename => "its name is too long".to_owned(),
        InvalidData => "it is not UTF-8 text".to_owned(),
        ConnectionRefused => {
            "nothing answers at that address; check the endpoint and that it runs".to_owned()
        }
        TimedOut => "there was no answer in time".to_owned(),
        _ => {
            let text = error.to_string();
            let end = text.find(" (os error ").unwrap_or(text.len());
            text[..end].to_owned()
        }
    }
}

/// What an author reads of a scalar subquery with two rows.
pub(crate) const MANY_ROWS: &str =
    "a subquery that stands for one value returned more than one row; add LIMIT 1 or an aggregate";

/// A library's sentence and ours. `{}` takes any text, `{t}` the name of an Arrow type.
const SAYINGS: [(&str, &str); 14] = [
    (
        "Cannot cast string '{}' to value of {t} type",
        "the text '{0}' is not of type {1}; TRY_CAST gives NULL in its place",
    ),
    (
        "Error parsing timestamp from '{}': {}",
        "the text '{0}' is not a TIMESTAMP; TRY_CAST gives NULL in its place",
    ),
    (
        "Cannot parse string '{}' as {}",
        "the text '{0}' is not a number of that type; TRY_CAST gives NULL in its place",
    ),
    (
        "Can't cast value {} to type {t}",
        "the value {0} does not fit in {1}; TRY_CAST gives NULL in its place",
    ),
    ("Scalar subquery returned more than one row", MANY_ROWS),
    (
        "Column in SELECT must be in GROUP BY or an aggregate function: {}column \"{}\" must appear {}",
        "the column `{1}` is neither in GROUP BY nor inside an aggregate; group by it, or write an aggregate such as max({1})",
    ),
    (
        "Projections require unique expression names but the expression \"{}\" at position {}",
        "two columns of the result are `{0}`; give one of them another name with AS",
    ),
    (
        "Function '{}' failed to match any signature, errors: {} but received {} (DataType: {t}){}",
        "the function `{0}` does not take a {3}; CAST its argument, or give the column its type in the table's `schema`",
    ),
    (
        "Failed to coerce arguments to satisfy a call to '{}' function: coercion from {t} to the signature {} failed{}",
        "the function `{0}` does not take ({1}); check the number of its arguments, and CAST them to what it takes",
    ),
    (
        "Cannot coerce arithmetic expression {t} {} {t} to valid types",
        "the operator `{1}` is not defined between {0} and {2}; CAST one of the two",
    ),
    (
        "Cannot infer common argument type for comparison operation {t} {} {t}",
        "the operator `{1}` cannot compare {0} with {2}; CAST one of the two",
    ),
    (
        "Cannot create filter with non-boolean predicate '{}' returning {t}",
        "the condition `{0}` is a {1}, not true or false; write a comparison",
    ),
    (
        "Expected: {}, found: EOF",
        "expected {0}, found the end of the text",
    ),
    ("Expected: {}, found: {}", "expected {0}, found `{1}`"),
];

/// A library's message in our words, without its prefixes and advice.
pub(crate) fn clean(message: &str) -> String {
    let plain = stripped(message);
    SAYINGS
        .iter()
        .find_map(|(theirs, ours)| Some(filled(ours, &taken(theirs, plain)?)))
        .unwrap_or_else(|| plain.to_owned())
}

/// A value that a text file cannot have: its line, counted from 1, and what it is not.
pub(crate) fn csv_value(message: &str) -> Option<String> {
    let theirs =
        "Error while parsing value '{}' as type '{t}' for column {} at line {}. Row data: {}";
    let parts = taken(theirs, stripped(message))?;
    // Both are counted from 0.
    let field: usize = parts[2].parse().ok()?;
    let line: usize = parts[3].parse().ok()?;
    Some(format!(
        "has '{}' in line {}, field {}, which is not of type {}; correct it, or declare the column as VARCHAR in the table's `schema`",
        parts[0],
        line + 1,
        field + 1,
        parts[1],
    ))
}

/// The parser's place, `at Line: 1, Column: 8`, taken off its message.
pub(crate) fn parser_place(message: &str) -> (&str, Option<(u64, u64)>) {
    let place = message.rsplit_once(" at Line: ").and_then(|(text, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        let column = column.trim_end_matches(['"', ')']);
        Some((text, (line.parse().ok()?, column.parse().ok()?)))
    });
    match place {
        Some((text, place)) => (text, Some(place)),
        None => (message, None),
    }
}

/// The code in the XML with which an S3 server refuses something.
pub(crate) fn store_code(answer: &str) -> Option<&str> {
    between(answer, "<Code>", "</Code>")
}

/// Why an object store does not answer, without the names of the client's layers.
pub(crate) fn store_problem(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    if let Some(message) = between(&text, "<Message>", "</Message>") {
        return format!("it says: {message}");
    }
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        if let Some(io) = source.downcast_ref::<io::Error>()
            && io.raw_os_error().is_some()
        {
            return io_problem(io);
        }
        innermost = source;
    }
    clean(&innermost.to_string())
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    let (found, _) = rest.split_once(end)?;
    Some(found)
}

/// A text with Arrow's names of types as SQL has them.
pub(crate) fn sql_types(text: &str) -> String {
    const NAMES: [(&str, &str); 21] = [
        ("Int8", "TINYINT"),
        ("Int16", "SMALLINT"),
        ("Int32", "INTEGER"),
        ("Int64", "BIGINT"),
        ("UInt8", "TINYINT UNSIGNED"),
        ("UInt16", "SMALLINT UNSIGNED"),
        ("UInt32", "INTEGER UNSIGNED"),
        ("UInt64", "BIGINT UNSIGNED"),
        ("Float32", "REAL"),
        ("Float64", "DOUBLE"),
        ("Boolean", "BOOLEAN"),
        ("Utf8", "VARCHAR"),
        ("LargeUtf8", "VARCHAR"),
        ("Utf8View", "VARCHAR"),
        ("Binary", "BINARY"),
        ("Date32", "DATE"),
        ("Date64", "DATE"),
        ("Decimal128", "DECIMAL"),
        ("Decimal256", "DECIMAL"),
        ("Timestamp", "TIMESTAMP"),
        ("Interval", "INTERVAL"),
    ];
    let mut words = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_alphanumeric())
            .map_or(rest.len(), |end| {
                end.max(rest.chars().next().map_or(1, char::len_utf8))
            });
        let (word, after) = rest.split_at(end);
        let known = NAMES.iter().find(|(arrow, _)| *arrow == word);
        words.push_str(known.map_or(word, |(_, sql)| sql));
        rest = after;
    }
    words
}

/// What a pattern's holes take of a text, if it is of that form.
fn taken(pattern: &str, text: &str) -> Option<Vec<String>> {
    let mut taken = Vec::new();
    let mut hole: Option<&str> = None;
    let (mut pattern, mut text) = (pattern, text);
    loop {
        let start = pattern.find('{').unwrap_or(pattern.len());
        let plain = &pattern[..start];
        let at = match hole {
            None => text.starts_with(plain).then_some(0)?,
            Some(_) if plain.is_empty() => text.len(),
            Some(_) => text.find(plain)?,
        };
        if let Some(kind) = hole {
            let found = &text[..at];
            taken.push(if kind == "t" {
                sql_types(found)
            } else {
                found.to_owned()
            });
        }
        text = &text[at + plain.len()..];
        let Some(rest) = pattern.get(start + 1..) else {
            return Some(taken);
        };
        let (kind, rest) = rest.split_once('}')?;
        (hole, pattern) = (Some(kind), rest);
    }
}

fn filled(form: &str, parts: &[String]) -> String {
    let mut text = form.to_owned();
    for (number, part) in parts.iter().enumerate() {
        text = text.replace(&format!("{{{number}}}"), part);
    }
    text
}

/// A library's message without its own prefixes and advice.
fn stripped(message: &str) -> &str {
    const PREFIXES: [&str; 19] = [
        "Parquet argument error: ",
        "External: ",
        "Arrow error: ",
        "Parquet error: ",
        "Parser error: ",
        "sql parser error: ",
        "SQL error: ",
        "ParserError(\"",
        "TokenizerError(\"",
        "Error during planning: ",
        "Schema error: ",
        "Execution error: ",
        "External error: ",
        "Internal error: ",
        "Optimizer rule ",
        "Cast error: ",
        "Compute error: ",
        "Invalid argument error: ",
        "This feature is not implemented: ",
    ];
    let cut = [
        "This was likely caused by a bug in DataFusion",
        "This issue was likely caused by a bug in DataFusion",
        "\n\nbacktrace:",
    ]
    .iter()
    .filter_map(|marker| message.find(marker))
    .min()
    .unwrap_or(message.len());
    let mut text = message[..cut].trim();
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        text = rest.trim_start();
    }
    text.trim_end_matches(['.', ' ', '\n'])
        .trim_end_matches("\")")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_wording_is_replaced_or_stripped() {
        for (theirs, ours) in [
            (
                "Arrow error: Cast error: Cannot cast string 'x' to value of Int32 type",
                "the text 'x' is not of type INTEGER; TRY_CAST gives NULL in its place",
            ),
            (
                "Internal error: odd.\nThis issue was likely caused by a bug in DataFusion's code.",
                "odd",
            ),
            (
                "SQL error: ParserError(\"Expected: ), found: EOF\")",
                "expected ), found the end of the text",
            ),
        ] {
            assert_eq!(clean(theirs), ours);
        }
    }

    #[test]
    fn a_place_of_the_parser_is_a_number() {
        assert_eq!(
            parser_place("Expected: x, found: y at Line: 3, Column: 14"),
            ("Expected: x, found: y", Some((3, 14)))
        );
        assert_eq!(parser_place("found: EOF"), ("found: EOF", None));
    }

    #[test]
    fn types_are_called_as_in_sql() {
        assert_eq!(
            sql_types("List(Int64), Decimal128(10, 2), µs"),
            "List(BIGINT), DECIMAL(10, 2), µs"
        );
    }

    #[test]
    fn the_system_is_not_quoted() {
        for code in [
            libc::ENOENT,
            libc::ENOSPC,
            libc::EFBIG,
            libc::EIO,
            libc::EMFILE,
        ] {
            let error = io::Error::from_raw_os_error(code);
            for error in [io::Error::from_raw_os_error(code), io::Error::other(error)] {
                let text = io_problem(&error);
                assert!(!text.contains("os error"), "{text}");
            }
        }
    }
}
