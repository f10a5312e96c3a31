//! Random expressions over columns in scope.

use super::{Class, Column, Dice};

/// The columns that an expression may read.
pub(super) struct Scope<'a> {
    pub(super) columns: &'a [Column],
}

impl<'a> Scope<'a> {
    fn of(&self, class: Class) -> Vec<&'a Column> {
        let columns = self.columns.iter();
        columns.filter(|column| column.class == class).collect()
    }

    /// A column of this class, if there is one.
    pub(super) fn column(&self, class: Class, dice: &mut Dice) -> Option<&'a Column> {
        let of_class = self.of(class);
        (!of_class.is_empty()).then(|| *dice.pick(&of_class))
    }

    /// Any column.
    pub(super) fn any(&self, dice: &mut Dice) -> &'a Column {
        dice.pick(self.columns)
    }

    /// A column whose sums are exact and fit.
    pub(super) fn summable(&self, dice: &mut Dice) -> Option<&'a Column> {
        let columns = self.columns.iter().filter(|column| match column.class {
            Class::Integer | Class::Decimal => column.is_small,
            Class::Float => true,
            _ => false,
        });
        let columns: Vec<&Column> = columns.collect();
        (!columns.is_empty()).then(|| *dice.pick(&columns))
    }

    /// A value of a class, of so many levels of operations at most.
    pub(super) fn value(&self, class: Class, depth: usize, dice: &mut Dice) -> String {
        let column = self.column(class, dice).map(|column| column.name.clone());
        if depth == 0 || dice.chance(35) {
            return match column {
                Some(column) if !dice.chance(15) => column,
                _ => literal(class, dice),
            };
        }
        let depth = depth - 1;
        match (class, dice.below(6)) {
            (Class::Bool, _) => self.condition(depth, dice),
            (_, 0) => format!(
                "case when {} then {} else {} end",
                self.condition(depth, dice),
                self.value(class, depth, dice),
                self.value(class, depth, dice)
            ),
            (_, 1) => format!(
                "coalesce({}, {})",
                self.value(class, depth, dice),
                self.value(class, depth, dice)
            ),
            (Class::Text, _) if column.is_some() && dice.chance(30) => {
                // Text that follows from one column.
                let column = column.unwrap_or_default();
                match dice.below(5) {
                    0 => format!("coalesce({column}, 'none')"),
                    1 => format!("concat({column}, '!')"),
                    2 => format!("upper({column})"),
                    3 => format!("case when {column} like 'a%' then {column} else 'other' end"),
                    _ => format!("nullif({column}, 'ab')"),
                }
            }
            (Class::Text, 2) => format!("upper({})", self.value(class, depth, dice)),
            (Class::Text, 3) => format!("substring({}, 1, 2)", self.value(class, depth, dice)),
            (Class::Date | Class::Timestamp, 2) => {
                let part = *dice.pick(&["day", "month", "year"]);
                match class == Class::Timestamp {
                    true => format!("date_trunc('{part}', {})", self.value(class, depth, dice)),
                    false => self.value(class, depth, dice),
                }
            }
            (Class::Integer, 2) => match dice.below(4) {
                0 => format!(
                    "extract(year from {})",
                    self.value(Class::Date, depth, dice)
                ),
                1 => format!("length({})", self.value(Class::Text, depth, dice)),
                2 => format!(
                    "extract(hour from {})",
                    self.value(Class::Timestamp, depth, dice)
                ),
                _ => format!("extract(day from {})", self.value(Class::Date, depth, dice)),
            },
            (Class::Integer | Class::Decimal | Class::Float, 3 | 4) => {
                let operands = self.of(class);
                let operands: Vec<_> = operands.iter().filter(|c| c.is_small).collect();
                if operands.is_empty() {
                    return literal(class, dice);
                }
                let left = &dice.pick(&operands).name;
                let right = match dice.chance(60) {
                    true => dice.pick(&operands).name.clone(),
                    false => literal(class, dice),
                };
                match dice.below(5) {
                    0 => format!("({left} / {})", dice.within(1, 5)),
                    1 if class == Class::Integer => {
                        format!("case when {right} <> 0 then {left} % {right} end")
                    }
                    op => format!("({left} {} {right})", ["+", "-", "*"][op % 3]),
                }
            }
            _ => column.unwrap_or_else(|| literal(class, dice)),
        }
    }

    /// A condition.
    pub(super) fn condition(&self, depth: usize, dice: &mut Dice) -> String {
        if depth > 0 && dice.chance(40) {
            let left = self.condition(depth - 1, dice);
            let right = self.condition(depth - 1, dice);
            return match dice.below(5) {
                0 | 1 => format!("({left} and {right})"),
                2 | 3 => format!("({left} or {right})"),
                _ => format!("not ({left})"),
            };
        }
        let column = self.any(dice).clone();
        let (name, class) = (&column.name, column.class);
        let depth = depth.min(1);
        match dice.below(9) {
            0 => format!("{name} is null"),
            1 => format!("{name} is not null"),
            2 => {
                let items: Vec<String> = (0..3).map(|_| literal(class, dice)).collect();
                let not = if dice.chance(40) { "not " } else { "" };
                format!("{name} {not}in ({})", items.join(", "))
            }
            3 if class == Class::Text => {
                let pattern = *dice.pick(&["a%", "%b", "%_b%", "a_", "%", "", "\\%", "%é", "_"]);
                let not = if dice.chance(30) { "not " } else { "" };
                format!("{name} {not}like '{pattern}'")
            }
            4 => {
                let not = if dice.chance(50) { "not " } else { "" };
                format!(
                    "({name} is {not}distinct from {})",
                    self.value(class, depth, dice)
                )
            }
            5 if class == Class::Bool => name.clone(),
            6 if class != Class::Bool => {
                format!(
                    "{name} between {} and {}",
                    literal(class, dice),
                    literal(class, dice)
                )
            }
            _ => {
                let op = *dice.pick(&["=", "<>", "<", "<=", ">", ">="]);
                format!("{name} {op} {}", self.value(class, depth, dice))
            }
        }
    }
}

/// A constant.
pub(super) fn literal(class: Class, dice: &mut Dice) -> String {
    match class {
        Class::Integer => dice.within(-5, 9).to_string(),
        Class::Decimal => format!("{}.{:02}", dice.within(-5, 9), dice.below(100)),
        Class::Float if dice.chance(15) => {
            let special = *dice.pick(&["NaN", "inf", "-inf", "-0.0"]);
            format!("cast('{special}' as double)")
        }
        Class::Float => format!("cast({} as double)", dice.within(-20, 40) as f64 / 4.0),
        Class::Date => format!("date '1970-01-{:02}'", dice.within(1, 9)),
        Class::Timestamp | Class::Nanoseconds => {
            format!("timestamp '1970-01-01T00:00:00.00000{}'", dice.within(0, 9))
        }
        Class::Bool => (*dice.pick(&["true", "false"])).to_string(),
        Class::Text => {
            let text = *dice.pick(&["", "a", "ab", "b", "aé", "日本", "a%b", "zz"]);
            format!("'{text}'")
        }
    }
}
