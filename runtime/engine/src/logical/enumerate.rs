//! The cheapest order in which the rows of the largest relation meet the others: dynamic
//! programming over sets of relations up to [`EXACT_MAX`] of them, the fewest rows first above.
//!
//! Rows of the largest relation flow by, and each other relation is a table that they probe:
//! one pass over the data, whatever the order, and no result of a join is ever laid out.
//! What an order decides is how early rows are dropped. So a tree costs the rows that come out
//! of its joins, and a tree in which two joins meet is not looked for. Where fewer rows are
//! left than the next relation has, the sides change places: what is left becomes the table,
//! and all rows of the relation flow by it. Only what a condition connects is joined.

use super::facts::met_part;

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

/// What a tree costs, in rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Rows that come out of its joins.
    between: f64,
    /// Rows of results that become tables, and rows that then flow by them.
    laid_out: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.between + self.laid_out
    }

    /// Whether this costs less than such a part of another. Which side becomes the table is
    /// decided later, and not always as it is taken here: it has to be less also if no result
    /// is laid out.
    pub fn is_below(self, part: f64, other: Cost) -> bool {
        self.total() < part * other.total() && self.between < part * other.between
    }
}

/// Relations and what connects them.
#[derive(Debug)]
pub struct Graph {
    /// Rows of each relation.
    n_rows: Vec<f64>,
    /// Pairs of relations that conditions connect, and the part of their pairs of rows that
    /// meet.
    pairs: Vec<(usize, usize, f64)>,
}

#[derive(Debug, Clone)]
struct Best {
    relations: u64,
    n_rows: f64,
    cost: Cost,
    tree: Tree,
}

impl Graph {
    /// Relations of so many rows, and conditions: two relations each, and the part of their
    /// pairs of rows for which it holds.
    pub fn new(n_rows: Vec<f64>, conditions: &[(usize, usize, f64)]) -> Graph {
        let mut pairs: Vec<(usize, usize, Vec<f64>)> = Vec::new();
        for (one, other, part) in conditions {
            let (first, second) = (*one.min(other), *one.max(other));
            let is_it = |pair: &&mut (usize, usize, Vec<f64>)| (pair.0, pair.1) == (first, second);
            match pairs.iter_mut().find(is_it) {
                Some(pair) => pair.2.push(*part),
                None => pairs.push((first, second, vec![*part])),
            }
        }
        let pairs = pairs
            .into_iter()
            .map(|(one, other, parts)| (one, other, met_part(parts, n_rows[one], n_rows[other])));
        Graph {
            pairs: pairs.collect(),
            n_rows,
        }
    }

    /// The cheapest tree and its cost; `None` where conditions do not connect all relations.
    pub fn cheapest(&self) -> Option<(Tree, Cost)> {
        let best = match self.n_rows.len() {
            0 => return None,
            n if n <= EXACT_MAX => self.exact()?,
            _ => self.greedy()?,
        };
        Some((best.tree, best.cost))
    }

    /// What a tree costs.
    pub fn cost(&self, tree: &Tree) -> Cost {
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
            cost: Cost::default(),
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
            cost: Cost {
                between: left.cost.between + right.cost.between + n_rows,
                laid_out: left.cost.laid_out + right.cost.laid_out + turned,
            },
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
        let has = |set: u64, number: usize| set >> number & 1 == 1;
        let crossing = self.pairs.iter().filter(|(one, other, _)| {
            has(left, *one) && has(right, *other) || has(left, *other) && has(right, *one)
        });
        crossing.map(|(.., part)| part).product()
    }

    fn neighbours(&self, set: u64) -> u64 {
        let mut found = 0;
        for (one, other, _) in &self.pairs {
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
                if slot
                    .as_ref()
                    .is_none_or(|other| grown.cost.total() < other.cost.total())
                {
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
        Graph::new(
            vec![1e6, 1e4, 1e3, 2.0],
            &[(0, 1, 1e-4), (0, 2, 1e-3), (0, 3, 1e-2)],
        )
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
        assert!(cost.total() < star().cost(&written).total());
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
        let chain = Graph::new(
            vec![500.0, 3e4, 10.0, 8e5, 77.0],
            &[
                (0, 1, 1e-3),
                (1, 2, 1e-1),
                (1, 3, 1e-5),
                (3, 4, 1e-2),
                (3, 4, 1e-1),
            ],
        );
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
                let other = known.cost.total();
                assert!(cost.total() <= other * (1.0 + 1e-9), "{:?}", known.tree);
            }
        }
        assert!(n_connected > 3, "{n_connected}");
    }

    #[test]
    fn a_key_of_several_columns_drops_no_rows_by_itself() {
        let graph = Graph::new(vec![1.8e8, 2.4e7], &[(0, 1, 1.0 / 6e6), (0, 1, 1.0 / 3e5)]);
        assert_eq!(graph.between(1, 2), 1.0 / 2.4e7);
    }

    #[test]
    fn few_rows_before_a_large_relation_cost_that_relation() {
        let graph = Graph::new(vec![1e6, 100.0, 9e5], &[(0, 1, 1e-3), (0, 2, 1.0 / 9e5)]);
        let [facts, filter, other] = [0, 1, 2].map(|number| graph.relation(number));
        let early = graph.join(&other, &graph.join(&filter, &facts));
        let late = graph.join(&filter, &graph.join(&other, &facts));
        // A tenth is left either way; early it is laid out, and the other flows by it.
        let is = |cost: f64, expected: f64| (cost / expected - 1.0).abs() < 1e-9;
        assert!(is(early.cost.total(), 1e5 + 1e5 + (1e5 + 9e5)), "{early:?}");
        assert!(is(late.cost.total(), 1e6 + 1e5), "{late:?}");
    }

    #[test]
    fn what_nothing_connects_is_left_alone() {
        let apart = Graph::new(vec![1.0, 2.0, 3.0], &[(0, 1, 0.5)]);
        assert_eq!(apart.cheapest(), None);
    }

    #[test]
    fn many_relations_are_ordered_one_by_one() {
        let n = 25;
        let conditions: Vec<_> = (1..n).map(|i| (i - 1, i, 0.01)).collect();
        let graph = Graph::new((0..n).map(|i| 10.0 + i as f64).collect(), &conditions);
        let (tree, _) = graph.cheapest().expect("a connected graph");
        assert_eq!(graph.of_tree(&tree).relations, (1 << n) - 1);
    }
}
