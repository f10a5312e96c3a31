//! States of an aggregate's groups. The handle is the address of a vector with a state for
//! each group.

use super::args::Arg;
use super::frame::Call;
use super::out::{Out, Sink};
use super::panic;
use crate::state::State;

const OK: u32 = 0;
const FAILED: u32 = 1;

/// The states behind the handle of a call; made if there are none yet.
fn states<S: 'static>(call: &Call) -> &'static mut Vec<S> {
    if call.state() == 0 {
        let made = Box::leak(Box::new(Vec::<S>::new()));
        call.set_state(&raw mut *made as usize as u32);
    }
    // SAFETY: the handle is one that this function made for the same aggregate and that
    // `states_drop` has not ended; a module has one thread, so nobody else uses it now.
    unsafe { &mut *(call.state() as usize as *mut Vec<S>) }
}

/// Adds states of as many groups as the call has rows.
pub fn states_init<S: State + Default + 'static>(call: &Call) -> u32 {
    let states = states::<S>(call);
    let n = states.len() + call.rows();
    states.resize_with(n, S::default);
    OK
}

/// Takes rows. The last argument has each row's group.
pub fn states_update<S: 'static>(call: &Call, update: impl Fn(&mut S, usize)) -> u32 {
    let states = states::<S>(call);
    let groups = u32::reader(call.arg(call.n_args() - 1));
    for row in 0..call.rows() {
        panic::at(row);
        update(&mut states[u32::get(&groups, row) as usize], row);
    }
    OK
}

/// Takes states that `states_emit` wrote, with each one's group.
pub fn states_merge<S: State + 'static>(call: &Call, merge: impl Fn(&mut S, &S)) -> u32 {
    let states = states::<S>(call);
    let saved = <&[u8]>::reader(call.arg(0));
    let groups = u32::reader(call.arg(1));
    for row in 0..call.rows() {
        panic::at(row);
        let mut bytes = <&[u8]>::get(&saved, row);
        let Some(other) = S::load(&mut bytes).filter(|_| bytes.is_empty()) else {
            panic::fail(row, &"a saved state is damaged");
            return FAILED;
        };
        merge(&mut states[u32::get(&groups, row) as usize], &other);
    }
    OK
}

/// Writes the states of the first groups, as many as the call has rows, and forgets them.
pub fn states_emit<S: State + 'static>(call: &Call) -> u32 {
    let states = states::<S>(call);
    let mut sink = <Vec<u8> as Out>::Sink::new(call);
    let mut bytes = Vec::new();
    for (row, state) in states.drain(..call.rows()).enumerate() {
        bytes.clear();
        state.save(&mut bytes);
        bytes.as_slice().put(&mut sink, row);
        sink.end(row);
    }
    sink.finish(call);
    OK
}

/// Writes the results of the first groups, as many as the call has rows, and forgets them.
pub fn states_finish<S: 'static, O: Out>(call: &Call, finish: impl Fn(&S) -> O) -> u32 {
    let states = states::<S>(call);
    let mut sink = O::Sink::new(call);
    for (row, state) in states.drain(..call.rows()).enumerate() {
        panic::at(row);
        if !finish(&state).put(&mut sink, row) {
            return FAILED;
        }
        sink.end(row);
    }
    sink.finish(call);
    OK
}

/// Forgets all states.
pub fn states_drop<S>(call: &Call) -> u32 {
    if call.state() != 0 {
        // SAFETY: the handle is the address of a vector that `states` leaked from a box.
        drop(unsafe { Box::from_raw(call.state() as usize as *mut Vec<S>) });
        call.set_state(0);
    }
    OK
}
