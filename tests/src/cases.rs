//! Files of cases: tables, queries and their right answers, one block each.
//!
//! ```text
//! # Blocks are separated by blank lines; a line that starts with # is a comment.
//!
//! table t (id int, price decimal(15,2))
//! (1, 10.00)
//! (2, null)
//!
//! table numbers
//! select value as n from generate_series(1, 1000)
//!
//! query
//! select count(*), count(price) from t
//! ----
//! 2 1
//! ```
//!
//! | Head | Asks |
//! |---|---|
//! | `table NAME (COLUMN TYPE, ...)` | rows of values, cast to these types; there may be none |
//! | `table NAME` | the rows of a query |
//! | `query` | these rows in any order, whole on the GPU path |
//! | `query ordered` | these rows in this order |
//! | `query cpu REASON` | these rows; over some layout of the tables the GPU path leaves some of it to the CPU, for a reason with REASON in it. Every one of these is work to be done |
//! | `error TEXT` | the query fails with TEXT in its message, on every path; `TEXT | TEXT` where the paths have other words |

/// One block of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// A table.
    Table {
        /// Its name.
        name: String,
        /// The query that makes its rows.
        sql: String,
    },
    /// A query and its answer.
    Query(Case),
}

/// A query and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The line of the file, from 1.
    pub line: usize,
    /// The query.
    pub sql: String,
    /// What it gives.
    pub answer: Answer,
    /// The reason for which some of it stays on the CPU.
    pub on_cpu: Option<String>,
}

/// What a query gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These rows.
    Rows {
        /// As [`crate::rows`] writes them.
        lines: Vec<String>,
        /// Whether they stand in this order.
        ordered: bool,
    },
    /// An error with one of these texts in its message.
    Error(Vec<String>),
}

/// Reads a file of cases.
pub fn parse(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut lines: Vec<(usize, &str)> = Vec::new();
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    for (number, line) in numbered.chain([(0, "")]) {
        if line.starts_with('#') {
            continue;
        }
        if !line.is_empty() {
            lines.push((number, line));
            continue;
        }
        if let Some(((number, head), body)) = lines.split_first() {
            let body: Vec<&str> = body.iter().map(|(_, line)| *line).collect();
            let block = block(*number, head, &body);
            blocks.push(block.map_err(|problem| format!("line {number}: {problem}"))?);
        }
        lines.clear();
    }
    Ok(blocks)
}

fn block(line: usize, head: &str, body: &[&str]) -> Result<Block, String> {
    let (kind, rest) = head.split_once(' ').unwrap_or((head, ""));
    let case = |sql: &[&str], answer, on_cpu: Option<&str>| {
        Block::Query(Case {
            line,
            sql: sql.join("\n"),
            answer,
            on_cpu: on_cpu.map(str::to_owned),
        })
    };
    match kind {
        "table" => table(rest, body),
        "error" if !rest.is_empty() => {
            let texts = rest.split(" | ").map(str::to_owned).collect();
            Ok(case(body, Answer::Error(texts), None))
        }
        "query" => {
            let end = body.iter().position(|line| *line == "----");
            let end = end.ok_or("a query has its answer below ----")?;
            let (ordered, rest) = match rest.strip_prefix("ordered") {
                Some(rest) => (true, rest.trim()),
                None => (false, rest),
            };
            let on_cpu = match rest.split_once(' ') {
                Some(("cpu", reason)) => Some(reason),
                None if rest.is_empty() => None,
                _ => return Err(format!("`{rest}` after query")),
            };
            let lines = body[end + 1..].iter().map(|line| (*line).to_owned());
            let lines = lines.collect();
            Ok(case(&body[..end], Answer::Rows { lines, ordered }, on_cpu))
        }
        _ => Err(format!("`{head}` is no head of a block")),
    }
}

fn table(head: &str, body: &[&str]) -> Result<Block, String> {
    let Some((name, columns)) = head.split_once(" (") else {
        return Ok(Block::Table {
            name: head.to_owned(),
            sql: body.join("\n"),
        });
    };
    let columns = columns.strip_suffix(')').ok_or("columns end with )")?;
    let columns = separated(columns).into_iter().map(|column| {
        let column = column.trim();
        column
            .split_once(' ')
            .ok_or("a column is a name and a type")
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let cast = |(number, (name, ty)): (usize, &(&str, &str))| {
        format!("cast(column{} as {ty}) as {name}", number + 1)
    };
    let list: Vec<String> = columns.iter().enumerate().map(cast).collect();
    let (values, condition) = match body.is_empty() {
        true => (
            format!("({})", vec!["null"; columns.len()].join(", ")),
            " where false",
        ),
        false => (body.join(", "), ""),
    };
    Ok(Block::Table {
        name: name.to_owned(),
        sql: format!(
            "select {} from (values {values}){condition}",
            list.join(", ")
        ),
    })
}

/// The parts between commas that stand in no parentheses.
fn separated(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_block_by_block() {
        let text = "# what\ntable t (a int, b decimal(3,1))\n(1, 2)\n(3, 4)\n\n\
                    query ordered cpu full join\nselect a\nfrom t\n----\n1\n3\n\n\
                    error overflow\nselect 1\n";
        let blocks = parse(text).unwrap();
        let sql = "select cast(column1 as int) as a, cast(column2 as decimal(3,1)) as b \
                   from (values (1, 2), (3, 4))";
        assert_eq!(
            blocks[0],
            Block::Table {
                name: "t".into(),
                sql: sql.into()
            }
        );
        let case = Case {
            line: 6,
            sql: "select a\nfrom t".into(),
            answer: Answer::Rows {
                lines: vec!["1".into(), "3".into()],
                ordered: true,
            },
            on_cpu: Some("full join".into()),
        };
        assert_eq!(blocks[1], Block::Query(case));
        assert_eq!(blocks.len(), 3);
        assert!(parse("query\nselect 1\n").is_err());
        assert!(parse("qery\nselect 1\n").is_err());
    }
}
