//! File patterns: `*` and `?` within a name, `**` over any number of directories.

/// A pattern such as `day=*/part-??.parquet`.
#[derive(Debug, Clone)]
pub struct Pattern {
    segments: Vec<String>,
}

impl Pattern {
    /// Takes the pattern's segments.
    pub fn new<'a>(segments: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            segments: segments.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Whether a path, segment by segment, is meant.
    pub fn matches(&self, path: &[String]) -> bool {
        matches_path(&self.segments, path)
    }
}

fn matches_path(pattern: &[String], path: &[String]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((first, rest)) if first == "**" => {
            (0..=path.len()).any(|skip| matches_path(rest, &path[skip..]))
        }
        Some((first, rest)) => path.split_first().is_some_and(|(name, below)| {
            let (first, name): (Vec<char>, Vec<char>) =
                (first.chars().collect(), name.chars().collect());
            matches_name(&first, &name) && matches_path(rest, below)
        }),
    }
}

fn matches_name(pattern: &[char], name: &[char]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|skip| matches_name(rest, &name[skip..])),
        Some(('?', rest)) => !name.is_empty() && matches_name(rest, &name[1..]),
        Some((c, rest)) => name.first() == Some(c) && matches_name(rest, &name[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, path: &str, expected: bool) {
        let path: Vec<String> = path.split('/').map(str::to_owned).collect();
        assert_eq!(
            Pattern::new(pattern.split('/')).matches(&path),
            expected,
            "{pattern} {path:?}"
        );
    }

    #[test]
    fn a_star_stays_within_a_name_and_two_stars_do_not() {
        check("*.csv", "a.csv", true);
        check("*.csv", "x/a.csv", false);
        check("**/*.csv", "x/y/a.csv", true);
        check("**/*.csv", "a.csv", true);
        check("day=*/part-?.parquet", "day=1/part-7.parquet", true);
        check("day=*/part-?.parquet", "day=1/part-77.parquet", false);
    }
}
