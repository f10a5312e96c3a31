//! Rules over logical plans that make queries faster, after DataFusion's own.
//!
//! What makes answers right is in [`crate::guard`].

mod columns;
mod enumerate;
pub mod facts;
mod join_order;
mod of_joins;
mod reduce;
mod semi_first;

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;

use facts::Facts;
use join_order::JoinOrder;
use of_joins::OfJoins;

/// Adds the rules to those that a session has. Joins are put in order by `facts`, if there
/// are any: once filters stand at the tables, and before columns that are not needed are
/// dropped.
pub fn install(
    mut builder: SessionStateBuilder,
    facts: Option<&Arc<Facts>>,
) -> SessionStateBuilder {
    let Some(optimizer) = builder.optimizer() else {
        return builder;
    };
    let rules = &mut optimizer.rules;
    let filters = rules
        .iter()
        .position(|rule| rule.name() == "push_down_filter");
    if let (Some(at), Some(facts)) = (filters, facts) {
        let facts = Arc::clone(facts);
        rules.insert(at + 1, Arc::new(JoinOrder { facts }));
    }
    rules.push(Arc::new(OfJoins {
        name: "semi_joins_first",
        rewrite: semi_first::moved,
    }));
    rules.push(Arc::new(OfJoins {
        name: "groups_that_match",
        rewrite: reduce::reduced,
    }));
    builder
}

#[cfg(test)]
mod tests {
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    /// The optimised plan as lines, indentation kept.
    async fn plan(sql: &str) -> String {
        let builder = SessionStateBuilder::new().with_default_features();
        let state = super::install(crate::guard::install(builder), None).build();
        let context = SessionContext::new_with_state(state);
        for table in [
            "create table part (p int, brand varchar)",
            "create table line (p int, q int, k int)",
            "create table orders (k int, c int)",
        ] {
            context.sql(table).await.expect(table);
        }
        let plan = context.sql(sql).await.expect(sql).into_optimized_plan();
        plan.expect(sql).display_indent().to_string()
    }

    fn depth(plan: &str, of: &str) -> usize {
        let line = plan.lines().find(|line| line.contains(of));
        let line = line.unwrap_or_else(|| panic!("no {of} in\n{plan}"));
        line.len() - line.trim_start().len()
    }

    const GROUPS: &str = "(select p, count(*) as n from line group by p) g";

    #[tokio::test]
    async fn groups_that_match_nothing_are_not_made() {
        for sql in [
            format!("select g.n from part t join {GROUPS} on g.p = t.p where t.brand = 'a'"),
            "select l.q from line l join part t on t.p = l.p where t.brand = 'a' \
             and l.q < (select avg(m.q) from line m where m.p = t.p)"
                .to_string(),
        ] {
            let plan = plan(&sql).await;
            assert!(
                depth(&plan, "__keys_that_match") > depth(&plan, "Aggregate"),
                "{plan}"
            );
        }
    }

    #[tokio::test]
    async fn groups_that_are_seen_unmatched_are_all_made() {
        for sql in [
            format!("select g.n from part t join {GROUPS} on g.p = t.p"),
            format!(
                "select g.n from (select * from part where brand = 'a') t \
                 right join {GROUPS} on g.p = t.p"
            ),
            format!(
                "select g.n from (select * from part where brand = 'a') t \
                 full join {GROUPS} on g.p = t.p"
            ),
            format!(
                "select g.n from (select * from part where random() < 0.5) t \
                 join {GROUPS} on g.p = t.p"
            ),
            format!(
                "select g.n from (select * from part where brand = 'a') t \
                 join {GROUPS} on g.p is not distinct from t.p"
            ),
        ] {
            let plan = plan(&sql).await;
            assert!(!plan.contains("__keys_that_match"), "{plan}");
        }
    }

    #[tokio::test]
    async fn a_semi_join_stands_below_joins_that_filter_nothing() {
        let keys = "o.k in (select k from line group by k having count(*) > 1)";
        let sql = format!("select l.q from orders o join line l on l.k = o.k where {keys}");
        let moved = plan(&sql).await;
        assert!(
            depth(&moved, "LeftSemi Join") > depth(&moved, "Inner Join"),
            "{moved}"
        );
        let kept = plan(&format!("{sql} and l.q > 3")).await;
        assert!(
            depth(&kept, "LeftSemi Join") < depth(&kept, "Inner Join"),
            "{kept}"
        );
    }
}
