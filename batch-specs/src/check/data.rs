//! Storage, tables, functions and stages.

use super::Check;
use crate::problem::{Severity, nearest};
use crate::read::{cut, list};
use crate::spec::{Compression, Credentials, Format, Output, WriteMode};

const SCHEMES: [&str; 13] = [
    "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https", "file", "memory", "tpch",
    "oss",
];
const TPCH_TABLES: [&str; 8] = [
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
];

pub(super) fn check(check: &mut Check<'_>) {
    storage(check);
    tables(check);
    udfs(check);
    stages(check);
}

fn storage(check: &mut Check<'_>) {
    for (i, storage) in check.spec.storage.iter().enumerate() {
        let path = format!("storage[{i}]");
        if !storage.prefix.is_empty() && !storage.prefix.contains("://") {
            let message = format!("`{}` is not the start of a location", cut(&storage.prefix));
            check.refuse(
                "storage-prefix",
                &format!("{path}.prefix"),
                message,
                "write a scheme and a bucket, such as `s3://lake/`",
            );
        }
        let before = check.spec.storage[..i]
            .iter()
            .position(|s| s.prefix == storage.prefix);
        if before.is_some() && !storage.prefix.is_empty() {
            let message = format!("`{}` is configured twice", cut(&storage.prefix));
            check.refuse("duplicate-name", &format!("{path}.prefix"), message, "");
        }
        if let Some(endpoint) = &storage.endpoint
            && !endpoint.starts_with("http://")
            && !endpoint.starts_with("https://")
        {
            let message = format!("`{}` is not an address", cut(endpoint));
            check.refuse(
                "storage-endpoint",
                &format!("{path}.endpoint"),
                message,
                "write `https://host` or `http://host:port`",
            );
        }
        for (field, text) in [
            ("prefix", Some(&storage.prefix)),
            ("endpoint", storage.endpoint.as_ref()),
        ] {
            if text.is_some_and(|t| holds_password(t)) {
                inline_secret(check, &format!("{path}.{field}"));
            }
        }
        if let Some(Credentials::Env(prefix)) = &storage.credentials {
            let is_name = !prefix.is_empty()
                && !prefix.starts_with(|c: char| c.is_ascii_digit())
                && prefix
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
            if !is_name {
                let hint = "write the prefix of environment variables, such as `LAKE`; the secret itself never stands in a spec";
                check.refuse(
                    "credentials",
                    &format!("{path}.credentials"),
                    "`env` is not the prefix of environment variables",
                    hint,
                );
            }
        }
    }
}

/// `scheme://user:password@host`.
fn holds_password(location: &str) -> bool {
    let Some((_, rest)) = location.split_once("://") else {
        return false;
    };
    let authority = rest.split('/').next().unwrap_or("");
    authority
        .split_once('@')
        .is_some_and(|(user, _)| user.contains(':'))
}

fn inline_secret(check: &mut Check<'_>, path: &str) {
    let hint = "name environment variables under `storage`, with `credentials: {env: PREFIX}`";
    check.refuse("inline-secret", path, "the location holds a password", hint);
}

fn location(check: &mut Check<'_>, path: &str, location: &str) {
    if location.is_empty() {
        if check
            .root
            .find(path)
            .is_some_and(|(n, _)| n.text() == Some(""))
        {
            check.refuse("location", path, "the location is empty", "");
        }
        return;
    }
    if holds_password(location) {
        inline_secret(check, path);
    }
    let Some((scheme, rest)) = location.split_once("://") else {
        // `s3//lake` and `s3:/lake` would pass as folders.
        let first = location.split('/').next().unwrap_or("");
        let scheme = first.trim_end_matches(':');
        let is_slip = first.len() > scheme.len() || location[first.len()..].starts_with("//");
        if is_slip && SCHEMES.contains(&scheme) {
            let message = format!("`{}` is not a location", cut(location));
            check.refuse("location", path, message, format!("write `{scheme}://...`"));
        }
        return;
    };
    if scheme == "tpch" {
        return;
    }
    if !SCHEMES.contains(&scheme) {
        let hint = match nearest(scheme, SCHEMES) {
            Some(near) => format!("did you mean `{near}://`?"),
            None => format!("the schemes are {}", list(SCHEMES)),
        };
        check.refuse(
            "location",
            path,
            format!("`{}` is not a known scheme", cut(scheme)),
            hint,
        );
    } else if rest.is_empty() {
        check.refuse(
            "location",
            path,
            format!("`{}` names nothing", cut(location)),
            "",
        );
    }
}

fn tables(check: &mut Check<'_>) {
    for (i, table) in check.spec.tables.iter().enumerate() {
        let path = format!("tables[{i}]");
        let at = format!("{path}.location");
        location(check, &at, &table.location);
        if let Some(rest) = table.location.strip_prefix("tpch://") {
            tpch(check, &at, rest);
        }
        let options = &table.options;
        let text_only = [
            ("delimiter", &options.delimiter),
            ("quote", &options.quote),
            ("escape", &options.escape),
            ("comment", &options.comment),
        ];
        for (field, value) in text_only {
            if value.as_ref().is_some_and(|v| v.len() != 1) {
                let message = format!("`{field}` must be one ASCII character");
                check.refuse(
                    "table-options",
                    &format!("{path}.options.{field}"),
                    message,
                    "write a tab as \"\\t\", in double quotes",
                );
            }
        }
        let is_csv = table.file_format() == Format::Csv;
        if *options != Default::default() && !is_csv {
            check.report(
                Severity::Warning,
                "table-options",
                &format!("{path}.options"),
                "these options concern CSV only",
                "",
            );
        }
        let columns = table.schema.iter().flatten().map(|c| c.name.as_str());
        let partitions = table.partition_columns.iter().map(|c| c.name.as_str());
        let mut seen: Vec<&str> = Vec::new();
        for name in columns.chain(partitions) {
            if !name.is_empty() && seen.contains(&name) {
                check.refuse(
                    "duplicate-name",
                    &path,
                    format!("column `{}` is given twice", cut(name)),
                    "a partition column stands only in `partition_columns`",
                );
            }
            seen.push(name);
        }
    }
}

/// `SCALE/TABLE`.
fn tpch(check: &mut Check<'_>, path: &str, rest: &str) {
    let (scale, table) = rest.split_once('/').unwrap_or((rest, ""));
    let is_scale = scale
        .parse::<f64>()
        .is_ok_and(|s| s.is_finite() && (0.001..=100_000.0).contains(&s));
    if !is_scale {
        let message = format!("`{}` is not a TPC-H scale factor", cut(scale));
        check.refuse(
            "tpch-location",
            path,
            message,
            "write `tpch://1/lineitem`, with a scale from 0.001 on",
        );
    }
    if !TPCH_TABLES.contains(&table) {
        let hint = match nearest(table, TPCH_TABLES) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the tables are {}", list(TPCH_TABLES)),
        };
        check.refuse(
            "tpch-location",
            path,
            format!("`{}` is not a TPC-H table", cut(table)),
            hint,
        );
    }
}

fn udfs(check: &mut Check<'_>) {
    let mut seen: Vec<&str> = Vec::new();
    for (i, udf) in check.spec.udfs.iter().enumerate() {
        location(check, &format!("udfs[{i}].module"), &udf.module);
        if let Some(pin) = &udf.sha256
            && (pin.len() != 64 || !pin.bytes().all(|c| c.is_ascii_hexdigit()))
        {
            check.refuse(
                "udf-sha256",
                &format!("udfs[{i}].sha256"),
                format!("`{}` is no SHA-256", cut(pin)),
                "write 64 hexadecimal digits, as `warpline udf inspect` or `sha256sum` print them",
            );
        }
        if udf.functions.is_empty() {
            check.refuse(
                "udf-functions",
                &format!("udfs[{i}].functions"),
                "no function is named",
                "list the functions that SQL may call",
            );
        }
        for (j, name) in udf.functions.iter().enumerate() {
            let path = format!("udfs[{i}].functions[{j}]");
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_name {
                check.refuse(
                    "udf-functions",
                    &path,
                    format!("`{}` is not a function name", cut(name)),
                    "",
                );
            } else if seen.contains(&name.as_str()) {
                check.refuse(
                    "duplicate-name",
                    &path,
                    format!("function `{name}` is named twice"),
                    "",
                );
            }
            seen.push(name);
        }
    }
}

fn stages(check: &mut Check<'_>) {
    let mut outputs: Vec<(&str, usize)> = Vec::new();
    for (i, stage) in check.spec.stages.iter().enumerate() {
        let path = format!("stages[{i}]");
        match (&stage.sql, &stage.sql_file) {
            (Some(_), Some(_)) => {
                check.refuse(
                    "sql-or-file",
                    &format!("{path}.sql_file"),
                    "a stage has `sql` or `sql_file`, not both",
                    "",
                );
            }
            (None, None) => {
                check.refuse(
                    "sql-or-file",
                    &path,
                    "the stage has no SQL",
                    "give `sql` or `sql_file`",
                );
            }
            (Some(sql), None) if sql.trim().is_empty() => {
                check.refuse(
                    "sql-or-file",
                    &format!("{path}.sql"),
                    "the SQL is empty",
                    "",
                );
            }
            _ => {}
        }
        let Some(out) = &stage.output else { continue };
        let here = format!("{path}.output");
        output(check, &here, out);
        let trimmed = out.location.trim_end_matches('/');
        let before = outputs.iter().find(|(l, _)| *l == trimmed).map(|(_, j)| *j);
        if let Some(j) = before.filter(|_| out.mode != WriteMode::Append && !trimmed.is_empty()) {
            let name = &check.spec.stages[j].name;
            let message = format!("stage `{name}` writes to the same location");
            check.refuse(
                "same-output",
                &format!("{here}.location"),
                message,
                "give each stage a folder of its own, or use `mode: append`",
            );
        }
        outputs.push((trimmed, i));
        let reads = check
            .spec
            .tables
            .iter()
            .find(|t| t.location.trim_end_matches('/') == trimmed && !trimmed.is_empty());
        if let Some(table) = reads.filter(|_| out.mode == WriteMode::Overwrite) {
            let message = format!(
                "table `{}` is read from the location that is overwritten",
                table.name
            );
            check.report(
                Severity::Warning,
                "overwrites-input",
                &format!("{here}.location"),
                message,
                "",
            );
        }
    }
}

fn output(check: &mut Check<'_>, path: &str, output: &Output) {
    location(check, &format!("{path}.location"), &output.location);
    if output.location.starts_with("tpch://") || output.location.starts_with("http") {
        check.refuse(
            "location",
            &format!("{path}.location"),
            "nothing can be written there",
            "",
        );
    }
    let only_parquet = matches!(
        output.compression,
        Some(Compression::Snappy | Compression::Lz4)
    );
    if only_parquet && output.format != Format::Parquet {
        check.refuse(
            "compression",
            &format!("{path}.compression"),
            "this codec exists inside Parquet only",
            "use `gzip`, `zstd` or `none`",
        );
    }
    if output.target_file_size.is_some_and(|s| s.bytes() < 1 << 20) {
        check.refuse(
            "target-file-size",
            &format!("{path}.target_file_size"),
            "files of less than 1 MiB help nobody",
            "write `128m` or so",
        );
    }
}
