//! What the attributes' code calls. Not an interface: it changes with them.

mod aggregate;
mod args;
mod frame;
mod name;
mod out;
mod panic;
mod rows;

pub use aggregate::{
    states_drop, states_emit, states_finish, states_init, states_merge, states_update,
};
pub use args::{Arg, ColumnArg, Fixed};
pub use frame::{Call, Column, set_bit};
pub use name::{Name, nulls, record, record_length};
pub use out::{ColumnOut, Out, Written};
pub use rows::{STRIP, each_row, whole};
