//! The cheapest order in which the rows of the largest relation meet the others: dynamic
//! programming over sets of relations up to [`EXACT_MAX`] of them, the fewest rows first above.
//!
//! Rows of the largest relation flow by, and each other relation is a table that they probe:
//! one pass over the data, whatever the order, and no result of a join is ever laid out.
//! What an order decides is how early rows are dropped. So a tree costs the rows that come out
//! of its joins, and a tree in which two joins meet is not looked for. Where fewer rows are
//! left than the next relation has, the sides change places: what is left becomes the table,
//! and all rows of the relation flow by it. Only what a condition connects is joined.

use super::facts::together;

/// So many relations are ordered exactly; the work doubles with each of them.
pub const EXACT_MAX: usize = 12;

/// More relations than these are left as they are written.
pub const RELATIONS_MAX: usize = 40;

/// A tree of joins over relations, by their numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// A relation.
    Relation(usize),
    /// A join.
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

    /// The rows that come out of the joins of a tree, whatever is laid out for them.
    pub fn rows_between(&self, tree: &Tree) -> f64 {
        match tree {
            Tree::Relation(_) => 0.0,
            Tree::Join(left, right) => {
                let own = self.of_tree(tree).n_rows;
                self.rows_between(left) + self.rows_between(right) + own
            }
        }
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
        let is_result = |side: &Best| !side.relations.is_power_of_two();
        let (small, large) = match left.n_rows <= right.n_rows {
            true => (left, right),
            false => (right, left),
        };
        // A result that becomes a table is laid out first.
        let turned = match is_result(small) {
            true => small.n_rows + large.n_rows,
            false => 0.0,
        };
        Best {
            relations: left.relations | right.relations,
            n_rows,
            cost: left.cost + right.cost + n_rows + turned,
            tree: Tree::Join(Box::new(left.tree.clone()), Box::new(right.tree.clone())),
        }
    }

    /// The relation whose rows flow by.
    fn largest(&self) -> Option<usize> {
        let all = 0..self.n_rows.len();
        all.max_by(|a, b| self.n_rows[*a].total_cmp(&self.n_rows[*b]))
    }

    /// The tables that a set of relations can meet next, each with what then comes out.
    fn next<'a>(&'a self, known: &'a Best) -> impl Iterator<Item = Best> + 'a {
        let near = self.neighbours(known.relations);
        let all = (0..self.n_rows.len()).filter(move |number| near >> number & 1 == 1);
        all.map(move |number| self.join(&self.relation(number), known))
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
            let parts: Vec<f64> = std::iter::once(*part).chain(parts).collect();
            // Several columns are the key of one side more often than not: each row of the
            // larger side then has its row in the other.
            let key_part = match parts.len() {
                1 => 0.0,
                _ => 1.0 / self.n_rows[*one].min(self.n_rows[*other]).max(1.0),
            };
            product *= together(parts).max(key_part);
        }
        product
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
        let all = (1usize << n) - 1;
        let largest = self.largest()?;
        let mut best: Vec<Option<Best>> = vec![None; 1 << n];
        best[1 << largest] = Some(self.relation(largest));
        // A set grows into larger numbers.
        for set in 1..=all {
            let Some(known) = best[set].take() else {
                continue;
            };
            if set == all {
                return Some(known);
            }
            for grown in self.next(&known) {
                let slot = &mut best[grown.relations as usize];
                if slot.as_ref().is_none_or(|other| grown.cost < other.cost) {
                    *slot = Some(grown);
                }
            }
        }
        None
    }

    fn greedy(&self) -> Option<Best> {
        let mut known = self.relation(self.largest()?);
        while known.relations.count_ones() as usize != self.n_rows.len() {
            let next = self.next(&known);
            known = next.min_by(|a, b| a.n_rows.total_cmp(&b.n_rows))?;
        }
        Some(known)
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
        let relation = Tree::Relation;
        let first = join(relation(3), relation(0));
        let either = [(1, 2), (2, 1)]
            .map(|(then, last)| join(relation(last), join(relation(then), first.clone())));
        assert!(either.contains(&tree), "{tree:?}");
        let written = join(
            relation(3),
            join(relation(2), join(relation(1), relation(0))),
        );
        assert!(cost < star().cost(&written));
    }

    #[test]
    fn no_order_of_tables_is_cheaper_than_the_cheapest() {
        fn orders(left: &[usize]) -> Vec<Vec<usize>> {
            if left.is_empty() {
                return vec![Vec::new()];
            }
            let mut all = Vec::new();
            for first in left {
                let rest: Vec<usize> = left.iter().copied().filter(|n| n != first).collect();
                for mut order in orders(&rest) {
                    order.insert(0, *first);
                    all.push(order);
                }
            }
            all
        }
        let chain = Graph {
            n_rows: vec![500.0, 3e4, 10.0, 8e5, 77.0],
            edges: vec![
                (0, 1, 1e-3),
                (1, 2, 1e-1),
                (1, 3, 1e-5),
                (3, 4, 1e-2),
                (3, 4, 1e-1),
            ],
        };
        let (_, cost) = chain.cheapest().expect("a connected graph");
        let mut n_connected = 0;
        for order in orders(&[0, 1, 2, 4]) {
            let mut known = chain.relation(3);
            let mut is_connected = true;
            for number in order {
                is_connected &= chain.neighbours(known.relations) >> number & 1 == 1;
                known = chain.join(&chain.relation(number), &known);
            }
            if is_connected {
                n_connected += 1;
                assert!(cost <= known.cost * (1.0 + 1e-9), "{:?}", known.tree);
            }
        }
        assert!(n_connected > 3, "{n_connected}");
    }

    #[test]
    fn a_key_of_several_columns_drops_no_rows_by_itself() {
        let graph = Graph {
            n_rows: vec![1.8e8, 2.4e7],
            edges: vec![(0, 1, 1.0 / 6e6), (0, 1, 1.0 / 3e5)],
        };
        assert_eq!(graph.between(1, 2), 1.0 / 2.4e7);
    }

    #[test]
    fn few_rows_before_a_large_relation_cost_that_relation() {
        let graph = Graph {
            n_rows: vec![1e6, 100.0, 9e5],
            edges: vec![(0, 1, 1e-3), (0, 2, 1.0 / 9e5)],
        };
        let [facts, filter, other] = [0, 1, 2].map(|number| graph.relation(number));
        let early = graph.join(&other, &graph.join(&filter, &facts));
        let late = graph.join(&filter, &graph.join(&other, &facts));
        // A tenth is left either way; early it is laid out, and the other flows by it.
        let is = |cost: f64, expected: f64| (cost / expected - 1.0).abs() < 1e-9;
        assert!(is(early.cost, 1e5 + 1e5 + (1e5 + 9e5)), "{early:?}");
        assert!(is(late.cost, 1e6 + 1e5), "{late:?}");
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
    fn many_relations_are_ordered_one_by_one() {
        let n = 25;
        let graph = Graph {
            n_rows: (0..n).map(|i| 10.0 + i as f64).collect(),
            edges: (1..n).map(|i| (i - 1, i, 0.01)).collect(),
        };
        let (tree, _) = graph.cheapest().expect("a connected graph");
        assert_eq!(graph.of_tree(&tree).relations, (1 << n) - 1);
    }
}
