//! Other parameters for a query: texts of it that are replaced, all at once.

use std::path::Path;

/// Every line of a file of parameters.
///
/// Fails with the line that is not `SET QUERY | FROM -> TO | ...`.
pub fn read(path: &Path) -> Result<Vec<Parameters>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let all = lines.map(|(at, line)| {
        Parameters::of(line).ok_or_else(|| format!("{}:{}: {line}", path.display(), at + 1))
    });
    all.collect()
}

/// The parameters of one query in one set.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// The set's number.
    pub set: usize,
    /// The query, such as `q03`.
    pub query: String,
    /// What stands in the query, and what is put there.
    pub replaced: Vec<(String, String)>,
}

impl Parameters {
    fn of(line: &str) -> Option<Parameters> {
        let mut parts = line.split(" | ");
        let (set, query) = parts.next()?.trim().split_once(' ')?;
        let replaced = parts.map(|part| {
            let (from, to) = part.split_once(" -> ")?;
            Some((from.trim().to_owned(), to.trim().to_owned()))
        });
        Some(Parameters {
            set: set.parse().ok()?,
            query: query.to_owned(),
            replaced: replaced.collect::<Option<_>>()?,
        })
    }

    /// The query with these parameters. What was put in is not looked at again.
    ///
    /// Fails when a text does not stand in the query.
    pub fn apply(&self, sql: &str) -> Result<String, String> {
        if let Some((from, _)) = self.replaced.iter().find(|(from, _)| !sql.contains(from)) {
            return Err(format!("{} has no {from}", self.query));
        }
        let (mut out, mut rest) = (String::new(), sql);
        while let Some(next) = rest.chars().next() {
            match self
                .replaced
                .iter()
                .find(|(from, _)| rest.starts_with(from))
            {
                Some((from, to)) => {
                    out.push_str(to);
                    rest = &rest[from.len()..];
                }
                None => {
                    out.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_replaced_at_once_and_must_be_there() {
        let parameters = Parameters::of("2 q06 | 1994 -> 1995 | 1995 -> 1996").unwrap();
        assert_eq!((parameters.set, parameters.query.as_str()), (2, "q06"));
        let sql = parameters.apply("d >= 1994 and d < 1995").unwrap();
        assert_eq!(sql, "d >= 1995 and d < 1996");
        assert!(parameters.apply("d >= 1994").is_err());
        assert_eq!(Parameters::of("q06 1994"), None);
    }
}
