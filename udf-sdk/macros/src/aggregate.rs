//! `#[udaf]` and `#[derive(State)]`.

use std::fmt::Write;

use proc_macro::{Delimiter, TokenStream, TokenTree};

use crate::options::{Record, block, options, sql_name};
use crate::parse::{self, Function, Problem, Result};

/// The functions that an aggregate consists of.
const PARTS: &str = "an aggregate has `fn update(state: &mut S, x: X)`, `fn merge(state: &mut S, \
                     other: &S)` and `fn finish(state: &S) -> R`, where S derives `State`";

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<String> {
    let options = options(attribute, &["name"])?;
    let mut tokens = item.into_iter().peekable();
    let doc = parse::attributes(&mut tokens);
    let (mut own, mut span, mut body) = (String::new(), proc_macro::Span::call_site(), None);
    for token in tokens {
        match token {
            TokenTree::Ident(word) if word.to_string() == "impl" => span = word.span(),
            TokenTree::Ident(word) => own = word.to_string(),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => body = Some(group),
            other => return Err(Problem::new(other.span(), PARTS)),
        }
    }
    let body =
        body.ok_or_else(|| Problem::new(span, "this attribute belongs on an `impl` block"))?;
    let name = sql_name(&options, &snake_case(&own), span)?;
    let mut functions: Vec<Function> = Vec::new();
    let mut inside = body.stream().into_iter().peekable();
    while inside.peek().is_some() {
        functions.push(parse::function(&mut inside)?);
    }
    let find = |which: &str| {
        functions
            .iter()
            .find(|function| function.name == which)
            .ok_or_else(|| Problem::new(span, format!("`{which}` is absent: {PARTS}")))
    };
    let (update, finish) = (find("update")?, find("finish")?);
    find("merge")?;
    let Some((state, args)) = update.parameters.split_first() else {
        return Err(Problem::new(update.span, PARTS));
    };
    let Some(state) = state
        .kind
        .trim()
        .strip_prefix('&')
        .and_then(|kind| kind.trim().strip_prefix("mut").map(str::trim))
    else {
        return Err(Problem::new(update.span, PARTS));
    };
    let argument = |i: usize| format!("<{} as ::udf_sdk::rt::Arg<'_>>", args[i].kind);

    let mut record = Record::new(&name, "aggregate");
    record.args(
        args.iter()
            .enumerate()
            .map(|(i, arg)| (arg.name.as_str(), format!("{}::NAME", argument(i)))),
    );
    record.text(",\"returns\":\"");
    record.name(&format!("<{} as ::udf_sdk::rt::Out>::NAME", finish.returns));
    record.text("\",\"nulls\":\"");
    let sees: Vec<String> = (0..args.len())
        .map(|i| format!("{}::SEES_NULL", argument(i)))
        .collect();
    record.name(&format!("::udf_sdk::rt::nulls(&[{}])", sees.join(", ")));
    record.text("\"");
    record.doc(&name, &doc);

    let (mut readers, mut values) = (String::new(), String::new());
    for i in 0..args.len() {
        let _ = writeln!(
            readers,
            "let a{i} = {}::reader(call.arg({i}));",
            argument(i)
        );
        let _ = write!(values, ", {}::get(&a{i}, row)", argument(i));
    }
    let entries = [
        ("init", "::udf_sdk::rt::states_init::<UdfState>(call)".to_string()),
        (
            "update",
            format!(
                "{readers}
                 ::udf_sdk::rt::states_update::<UdfState>(call, |state, row| {own}::update(state{values}))"
            ),
        ),
        ("merge", format!("::udf_sdk::rt::states_merge::<UdfState>(call, {own}::merge)")),
        ("state", "::udf_sdk::rt::states_emit::<UdfState>(call)".to_string()),
        (
            "finish",
            format!("::udf_sdk::rt::states_finish::<UdfState, {}>(call, {own}::finish)", finish.returns),
        ),
        ("drop", "::udf_sdk::rt::states_drop::<UdfState>(call)".to_string()),
    ];
    let mut items = format!(
        "{}
         const _: () = {{ let _ = ({own}::update, {own}::merge, {own}::finish); }};
         #[allow(dead_code)] type UdfState = {state};",
        record.items()
    );
    for (which, body) in entries {
        let _ = write!(
            items,
            "#[cfg(target_arch = \"wasm32\")]
             #[unsafe(export_name = \"udf1_agg_{which}_{name}\")]
             extern \"C\" fn udf_{which}(call: u32) -> u32 {{
                 // SAFETY: the host calls this with a `Call` of ABI 1 whose columns are of
                 // the types that the record above declares.
                 let call = unsafe {{ ::udf_sdk::rt::Call::at(call) }};
                 {body}
             }}"
        );
    }
    Ok(block(&items))
}

/// `ApproxDistinct` as `approx_distinct`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

pub(crate) fn derive_state(item: TokenStream) -> Result<TokenStream> {
    let (name, fields) = parse::fields(item)?;
    let mut text = format!(
        "impl ::udf_sdk::State for {name} {{ fn save(&self, into: &mut ::std::vec::Vec<u8>) {{"
    );
    for field in &fields {
        let _ = write!(text, "::udf_sdk::State::save(&self.{}, into);", field.name);
    }
    text.push_str("} fn load(from: &mut &[u8]) -> ::core::option::Option<Self> { ::core::option::Option::Some(Self {");
    for field in &fields {
        let _ = write!(text, "{}: ::udf_sdk::State::load(from)?,", field.name);
    }
    text.push_str("}) } }");
    text.parse().map_err(|_| {
        Problem::new(
            proc_macro::Span::call_site(),
            "this struct has unusual fields",
        )
    })
}
