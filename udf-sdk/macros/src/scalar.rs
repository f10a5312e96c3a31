//! `#[udf]`.

use std::fmt::Write;

use proc_macro::TokenStream;

use crate::options::{Options, Record, block, options, sql_name};
use crate::parse::{Function, Parameter, Problem, Result, function};

const KNOWN: [&str; 4] = ["name", "volatility", "on_error", "vectorized"];

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<String> {
    let options = options(attribute, &KNOWN)?;
    let function = function(&mut item.into_iter().peekable())?;
    let name = sql_name(&options, &function.name, function.span)?;
    let shape = Shape::of(&function, &options)?;

    let mut record = Record::new(&name, "scalar");
    record.args(
        shape
            .args
            .iter()
            .map(|arg| (arg.name.as_str(), shape.type_name(arg))),
    );
    record.text(",\"returns\":\"");
    record.name(&shape.result_name());
    record.text("\",\"nulls\":\"");
    record.name(&shape.nulls());
    let volatility = options.volatility.as_deref().unwrap_or("immutable");
    record.text(&format!("\",\"volatility\":\"{volatility}\""));
    record.doc(&name, &function.doc);

    let body = if options.is_vectorized {
        shape.vectorized(&function)
    } else {
        shape.row_by_row(&function, &options)
    };
    let items = format!(
        "{record}
         const _: () = {{ let _ = {own}; }};
         #[cfg(target_arch = \"wasm32\")]
         #[unsafe(export_name = \"udf1_call_{name}\")]
         extern \"C\" fn udf_entry(call: u32) -> u32 {{
             // SAFETY: the host calls this with a `Call` of ABI 1 whose columns are of the
             // types that the record above declares.
             let call = unsafe {{ ::udf_sdk::rt::Call::at(call) }};
             {body}
         }}",
        record = record.items(),
        own = function.name,
    );
    Ok(block(&items))
}

/// What becomes of a function's parameters.
struct Shape<'a> {
    /// Those that are arguments in SQL.
    args: Vec<&'a Parameter>,
    /// Whether the last parameter is where the result goes.
    writes: Option<&'a Parameter>,
    returns: &'a str,
    is_vectorized: bool,
}

impl<'a> Shape<'a> {
    fn of(function: &'a Function, options: &Options) -> Result<Self> {
        let mut args: Vec<&Parameter> = function.parameters.iter().collect();
        let is_output = |kind: &str| {
            let kind = kind.replace(' ', "");
            kind.ends_with("StrWriter") || kind.contains("ColMut<")
        };
        let writes = args.pop_if(|last| is_output(&last.kind));
        if writes.is_none() && (function.returns == "()" || options.is_vectorized) {
            let message = match options.is_vectorized {
                true => {
                    "a vectorized function writes its result to a last parameter of type `ColMut<...>`"
                }
                false => {
                    "a user function returns a value, or writes text to a last parameter `out: &mut StrWriter`"
                }
            };
            return Err(Problem::new(function.span, message));
        }
        Ok(Shape {
            args,
            writes,
            returns: &function.returns,
            is_vectorized: options.is_vectorized,
        })
    }

    /// The trait that arguments have here.
    fn argument(&self, arg: &Parameter) -> String {
        match self.is_vectorized {
            true => format!("<{} as ::udf_sdk::rt::ColumnArg<'_>>", arg.kind),
            false => format!("<{} as ::udf_sdk::rt::Arg<'_>>", arg.kind),
        }
    }

    fn type_name(&self, arg: &Parameter) -> String {
        format!("{}::NAME", self.argument(arg))
    }

    fn result(&self) -> String {
        match self.writes {
            Some(out) if self.is_vectorized => {
                format!("<{} as ::udf_sdk::rt::ColumnOut<'_>>", out.kind)
            }
            Some(_) => format!(
                "<::udf_sdk::rt::Written<{}> as ::udf_sdk::rt::Out>",
                self.returns
            ),
            None => format!("<{} as ::udf_sdk::rt::Out>", self.returns),
        }
    }

    fn result_name(&self) -> String {
        format!("{}::NAME", self.result())
    }

    /// The record's word about nulls: a function that takes an `Option` sees them.
    fn nulls(&self) -> String {
        let sees: Vec<String> = self
            .args
            .iter()
            .map(|arg| format!("{}::SEES_NULL", self.argument(arg)))
            .collect();
        format!("::udf_sdk::rt::nulls(&[{}])", sees.join(", "))
    }

    fn row_by_row(&self, function: &Function, options: &Options) -> String {
        let mut text = String::new();
        for (i, arg) in self.args.iter().enumerate() {
            let _ = writeln!(
                text,
                "let a{i} = {}::reader(call.arg({i}));",
                self.argument(arg)
            );
        }
        let columns: Vec<String> = self
            .args
            .iter()
            .enumerate()
            .map(|(i, arg)| format!("(call.arg({i}), {}::SEES_NULL)", self.argument(arg)))
            .collect();
        let get = |how: &str| {
            let mut values: Vec<String> = self
                .args
                .iter()
                .enumerate()
                .map(|(i, arg)| format!("{}::{how}(&a{i}, row)", self.argument(arg)))
                .collect();
            match self.writes {
                Some(_) => {
                    values.push("writer".into());
                    format!(
                        "::udf_sdk::rt::Written({}({}))",
                        function.name,
                        values.join(", ")
                    )
                }
                None => format!("{}({})", function.name, values.join(", ")),
            }
        };
        let closure = match self.writes {
            Some(_) => "|row: usize, writer: &mut ::udf_sdk::StrWriter|",
            None => "|row: usize, _: &mut _|",
        };
        let _ = write!(
            text,
            "::udf_sdk::rt::each_row::<{out}, _, _>(
                 call, &[{columns}], {null_on_error},
                 {closure} {dense},
                 {closure} {any},
             )",
            out = match self.writes {
                Some(_) => format!("::udf_sdk::rt::Written<{}>", self.returns),
                None => self.returns.to_string(),
            },
            columns = columns.join(", "),
            null_on_error = options.is_null_on_error,
            dense = get("dense"),
            any = get("get"),
        );
        text
    }

    fn vectorized(&self, function: &Function) -> String {
        let mut values: Vec<String> = self
            .args
            .iter()
            .enumerate()
            .map(|(i, arg)| format!("{}::column(call.arg({i}))", self.argument(arg)))
            .collect();
        values.push(format!(
            "{}::column(call.ret(), call.rows())",
            self.result()
        ));
        format!(
            "::udf_sdk::rt::whole(call, || {}({}))",
            function.name,
            values.join(", ")
        )
    }
}
