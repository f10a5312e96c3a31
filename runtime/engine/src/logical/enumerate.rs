//! The cheapest order of joins: dynamic programming over sets of relations up to
//! [`EXACT_MAX`] of them, the cheapest pair first above.
//!
//! A tree costs what comes out of its joins, and twice the smaller input of each: rows that
//! a table is built of cost more than rows that pass by. Only pairs that a condition connects
//! are joined.

use super::facts::together;

/// So many relations are ordered exactly; the work grows with three to their number.
pub const EXACT_MAX: usize = 10;

/// More relations than these are left as they are written.
pub const RELATIONS_MAX: usize = 40;

/// A tree of joins over relations, by their numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// A relation.
    Relation(usize),
    /// A join; the smaller side first.
    Join(Box<Tree>, Box<Tree>),
}

/// Relations and what connects them.
#[derive(Debug)]
pub struct Graph {
    /// Rows of each relation.
    pub n_rows: Vec<f64>,
    /// Pairs of relations, and the part of their pairs of rows that meet.
    pub edges: Vec<(usize, usize, f64)>,
}

#[derive(Debug, Clone)]
struct Best {
    relations: u64,
    n_rows: f64,
    cost: f64,
    tree: Tree,
}

impl Graph {
    /// The cheapest tree and its cost; `None` where conditions do not connect all relations.
    pub fn cheapest(&self) -> Option<(Tree, f64)> {
        let best = match self.n_rows.len() {
            0 => return None,
            n if n <= EXACT_MAX => self.exact()?,
            _ => self.greedy()?,
        };
        Some((best.tree, best.cost))
    }

    /// What a tree costs.
    pub fn cost(&self, tree: &Tree) -> f64 {
        self.of_tree(tree).cost
    }

    fn of_tree(&self, tree: &Tree) -> Best {
        match tree {
            Tree::Relation(number) => self.relation(*number),
            Tree::Join(left, right) => self.join(&self.of_tree(left), &self.of_tree(right)),
        }
    }

    fn relation(&self, number: usize) -> Best {
        Best {
            relations: 1 << number,
            n_rows: self.n_rows[number],
            cost: 0.0,
            tree: Tree::Relation(number),
        }
    }

    fn join(&self, left: &Best, right: &Best) -> Best {
        let n_rows = left.n_rows * right.n_rows * self.between(left.relations, right.relations);
        let (small, large) = match left.n_rows <= right.n_rows {
            true => (left, right),
            false => (right, left),
        };
        Best {
            relations: left.relations | right.relations,
            n_rows,
            cost: left.cost + right.cost + n_rows + 2.0 * small.n_rows,
            tree: Tree::Join(Box::new(small.tree.clone()), Box::new(large.tree.clone())),
        }
    }

    /// The part of the pairs of rows of two sets that meet.
    fn between(&self, left: u64, right: u64) -> f64 {
        let mut product = 1.0;
        let has = |set: u64, number: usize| set >> number & 1 == 1;
        let crosses = |one: usize, other: usize| {
            has(left, one) && has(right, other) || has(left, other) && has(right, one)
        };
        for (at, (one, other, part)) in self.edges.iter().enumerate() {
            if !crosses(*one, *other) {
                continue;
            }
            let same = |edge: &&(usize, usize, f64)| {
                (edge.0, edge.1) == (*one, *other) || (edge.1, edge.0) == (*one, *other)
            };
            // All conditions of a pair at its first.
            if self.edges[..at].iter().any(|edge| same(&edge)) {
                continue;
            }
            let parts = self.edges[at + 1..].iter().filter(same).map(|edge| edge.2);
            product *= together(std::iter::once(*part).chain(parts).collect());
        }
        product
    }

    /// Whether a condition connects the sides of every join of a tree.
    #[cfg(test)]
    fn connects(&self, tree: &Tree) -> bool {
        match tree {
            Tree::Relation(_) => true,
            Tree::Join(left, right) => {
                let (l, r) = (self.of_tree(left).relations, self.of_tree(right).relations);
                self.neighbours(l) & r != 0 && self.connects(left) && self.connects(right)
            }
        }
    }

    fn neighbours(&self, set: u64) -> u64 {
        let mut found = 0;
        for (one, other, _) in &self.edges {
            if set >> one & 1 == 1 {
                found |= 1 << other;
            }
            if set >> other & 1 == 1 {
                found |= 1 << one;
            }
        }
        found & !set
    }

    fn exact(&self) -> Option<Best> {
        let n = self.n_rows.len();
        let all = (1u64 << n) - 1;
        let mut best: Vec<Option<Best>> = vec![None; 1 << n];
        for number in 0..n {
            best[1 << number] = Some(self.relation(number));
        }
        // Every subset of a set is a smaller number.
        for set in 1..=all {
            if set.is_power_of_two() {
                continue;
            }
            let lowest = set & set.wrapping_neg();
            let mut left = (set - 1) & set;
            let mut cheapest: Option<Best> = None;
            while left > 0 {
                let right = set & !left;
                // Each split once: the lowest relation is on the left.
                if left & lowest != 0
                    && let (Some(a), Some(b)) = (&best[left as usize], &best[right as usize])
                    && self.neighbours(left) & right != 0
                    && cheapest
                        .as_ref()
                        .is_none_or(|known| a.cost + b.cost < known.cost)
                {
                    let joined = self.join(a, b);
                    if cheapest
                        .as_ref()
                        .is_none_or(|known| joined.cost < known.cost)
                    {
                        cheapest = Some(joined);
                    }
                }
                left = (left - 1) & set;
            }
            best[set as usize] = cheapest;
        }
        best[all as usize].take()
    }

    fn greedy(&self) -> Option<Best> {
        let mut parts: Vec<Best> = (0..self.n_rows.len())
            .map(|number| self.relation(number))
            .collect();
        while parts.len() > 1 {
            let mut cheapest: Option<(usize, usize, Best, f64)> = None;
            for (i, left) in parts.iter().enumerate() {
                for (j, right) in parts.iter().enumerate().skip(i + 1) {
                    if self.neighbours(left.relations) & right.relations == 0 {
                        continue;
                    }
                    let joined = self.join(left, right);
                    let added = joined.cost - left.cost - right.cost;
                    if cheapest.as_ref().is_none_or(|known| added < known.3) {
                        cheapest = Some((i, j, joined, added));
                    }
                }
            }
            let (i, j, joined, _) = cheapest?;
            parts.remove(j);
            parts[i] = joined;
        }
        parts.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(left: Tree, right: Tree) -> Tree {
        Tree::Join(Box::new(left), Box::new(right))
    }

    /// A fact table, and three others around it, of which the last is small.
    fn star() -> Graph {
        Graph {
            n_rows: vec![1e6, 1e4, 1e3, 2.0],
            edges: vec![(0, 1, 1e-4), (0, 2, 1e-3), (0, 3, 1e-2)],
        }
    }

    #[test]
    fn the_relation_that_keeps_the_fewest_rows_comes_first() {
        let (tree, cost) = star().cheapest().expect("a connected graph");
        let relation = |number| Tree::Relation(number);
        let expected = join(
            relation(1),
            join(relation(2), join(relation(3), relation(0))),
        );
        assert_eq!(tree, expected);
        assert!(
            cost < star().cost(&join(
                join(join(relation(0), relation(1)), relation(2)),
                relation(3)
            ))
        );
    }

    #[test]
    fn no_tree_is_cheaper_than_the_cheapest() {
        fn trees(set: &[usize]) -> Vec<Tree> {
            if let [one] = set {
                return vec![Tree::Relation(*one)];
            }
            let mut all = Vec::new();
            for mask in 1..(1 << set.len()) - 1 {
                let (left, right): (Vec<_>, Vec<_>) =
                    (0..set.len()).partition(|i| mask >> i & 1 == 1);
                let pick = |of: Vec<usize>| of.into_iter().map(|i| set[i]).collect::<Vec<_>>();
                let (left, right) = (pick(left), pick(right));
                for l in trees(&left) {
                    for r in trees(&right) {
                        all.push(join(l.clone(), r));
                    }
                }
            }
            all
        }
        let chain = Graph {
            n_rows: vec![500.0, 3e4, 10.0, 8e5, 77.0],
            edges: vec![
                (0, 1, 1e-3),
                (1, 2, 1e-1),
                (2, 3, 1e-4),
                (3, 4, 1e-2),
                (3, 4, 1e-1),
            ],
        };
        let (_, cost) = chain.cheapest().expect("a connected graph");
        let all = trees(&[0, 1, 2, 3, 4]);
        let connected: Vec<&Tree> = all.iter().filter(|tree| chain.connects(tree)).collect();
        assert!(connected.len() > 20);
        for tree in connected {
            assert!(cost <= chain.cost(tree) * (1.0 + 1e-9), "{tree:?}");
        }
    }

    #[test]
    fn what_nothing_connects_is_left_alone() {
        let apart = Graph {
            n_rows: vec![1.0, 2.0, 3.0],
            edges: vec![(0, 1, 0.5)],
        };
        assert_eq!(apart.cheapest(), None);
    }

    #[test]
    fn many_relations_are_ordered_pair_by_pair() {
        let n = 25;
        let graph = Graph {
            n_rows: (0..n).map(|i| 10.0 + i as f64).collect(),
            edges: (1..n).map(|i| (i - 1, i, 0.01)).collect(),
        };
        let (tree, _) = graph.cheapest().expect("a connected graph");
        assert_eq!(graph.of_tree(&tree).relations, (1 << n) - 1);
    }
}
