//! Windows: rows to window order, partitions and peers told apart, totals over tiles of
//! rows, and then every column.
//!
//! ```text
//!   key columns ──sort──> order ──window_groups──> partition and peers of each place
//!                            │
//!   other columns ───────────┼── tiles, carry, leaves, levels ──> totals
//!                            └── window ──> columns, in window order
//! ```

use std::sync::Arc;

use super::context::{Context, RunCounts};
use super::output::WrittenOutput;
use super::parameters::ParameterBytes;
use super::sort::{Ordered, order};
use crate::codegen::{
    TREE_FAN, TotalKind, WINDOW_GROUPS_TEXT, WINDOW_ROWS_MAX, WindowKernel, generate_window,
    heads_tile_rows, totals_tile_rows,
};
use crate::columns::DeviceChunk;
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DevicePtr, Gpu, LaunchShape};
use crate::ir::Window;
use crate::jit::{Jit, Loaded};

/// Rows in window order, on the device.
#[derive(Debug)]
pub struct Windowed {
    /// The columns: those that were passed, then one for each call, numbered from 0.
    pub chunk: DeviceChunk,
    /// What was done.
    pub counts: RunCounts,
    /// The kernel that wrote the columns.
    pub kernel: String,
}

/// Device memory that a window takes beside the columns it reads, in bytes: an estimate
/// from above, whatever the columns hold.
pub fn window_bytes(window: &Window, n_rows: usize) -> usize {
    let keys = window.sort.keys.len() * 17 + 2 * (8 + 4);
    let groups = 4 * 4;
    let columns = window.passed.len() + window.calls.len();
    // A call has totals of at most 32 bytes and counts of 4.
    n_rows.saturating_mul(keys + groups + columns * 17 + window.calls.len() * (32 + 32 / 3 + 4))
}

/// The columns of a window over rows that are on the device.
///
/// Fails with [`Error::Unsupported`] when there are more rows than one window can have,
/// and with a fault when a total does not fit its type.
pub fn window_resident(
    gpu: Arc<dyn Gpu>,
    jit: Arc<Jit>,
    window: &Window,
    chunk: &DeviceChunk,
) -> Result<Windowed> {
    let n_rows = chunk.n_rows;
    if n_rows > WINDOW_ROWS_MAX {
        return Err(Error::Unsupported(format!(
            "a window over {n_rows} rows, at most {WINDOW_ROWS_MAX}"
        )));
    }
    let mut context = Context::new(gpu, jit)?;
    chunk.wait_on(&context.stream)?;
    let kernel = generate_window(window, &chunk.shapes())
        .map_err(|reason| Error::Unsupported(reason.message))?;
    let mut params = ParameterBytes::default();
    if n_rows == 0 {
        let outputs = WrittenOutput::allocate(&context, &kernel.outputs, 0, &mut params)?;
        return done(context, kernel, outputs, 0);
    }
    let ordered = match window.sort.keys.is_empty() {
        true => None,
        false => Some(order(&mut context, &window.sort, chunk)?),
    };
    let groups = Groups::of(&mut context, window, ordered.as_ref(), n_rows)?;
    let rows = ordered.and_then(|ordered| ordered.rows);

    params.word(n_rows as u64);
    params.word(context.fault_address());
    params.word(address(rows.as_ref()));
    for buffer in groups.buffers() {
        params.word(buffer.ptr().0);
    }
    let n_tiles = n_rows.div_ceil(totals_tile_rows(context.rows_threads()));
    let mut running = Vec::new();
    for kind in &kernel.running {
        let totals = DeviceBuffer::allocate(&context.gpu, n_rows * kind.bytes())?;
        let tiles = DeviceBuffer::allocate(&context.gpu, n_tiles * kind.tile_bytes())?;
        params.pair(totals.ptr().0, tiles.ptr().0);
        running.push((totals, tiles));
    }
    let mut trees = Vec::new();
    for kind in &kernel.trees {
        let nodes: usize = levels(n_rows).sum();
        let tree = DeviceBuffer::allocate(&context.gpu, nodes * kind.bytes())?;
        params.word(tree.ptr().0);
        trees.push((*kind, tree));
    }
    let outputs = WrittenOutput::allocate(&context, &kernel.outputs, n_rows, &mut params)?;
    for index in &kernel.columns {
        let column = chunk.column(*index)?;
        params.column(column);
        context.counts.bytes_read += column.bytes() as u64;
    }
    params.constants(&kernel.parameters, &context.gpu, &context.stream)?;

    let code = context.load(&kernel.name, &kernel.text)?;
    let each_row = n_rows.div_ceil(context.rows_threads() as usize);
    if !running.is_empty() {
        run(&mut context, &code, &kernel, "_tiles", n_tiles, &params)?;
        let carry = code.kernel(&format!("{}_carry", kernel.name))?;
        // One block goes over all tiles.
        let one = LaunchShape::new(1, context.rows_threads());
        // SAFETY: as for `run`.
        unsafe { context.run(&carry, one, &params)? };
    }
    if !trees.is_empty() {
        run(&mut context, &code, &kernel, "_leaves", each_row, &params)?;
        for (at, (kind, tree)) in trees.iter().enumerate() {
            grow(&mut context, &code, &kernel, at, *kind, tree, n_rows)?;
        }
    }
    run(&mut context, &code, &kernel, "", each_row, &params)?;
    done(context, kernel, outputs, n_rows)
}

fn done(
    mut context: Context,
    kernel: WindowKernel,
    outputs: Vec<WrittenOutput>,
    n_rows: usize,
) -> Result<Windowed> {
    let chunk = WrittenOutput::columns(&mut context, outputs, n_rows)?;
    context.counts.rows = n_rows as u64;
    context.counts.chunks = 1;
    Ok(Windowed {
        chunk,
        counts: context.counts,
        kernel: kernel.name,
    })
}

/// Which partition and which peers the row at each place belongs to, as
/// `cuda/rows/window_groups.h` lays it out.
struct Groups {
    partition_of: DeviceBuffer,
    peers_of: DeviceBuffer,
    partition_first: DeviceBuffer,
    peers_first: DeviceBuffer,
}

impl Groups {
    fn of(
        context: &mut Context,
        window: &Window,
        ordered: Option<&Ordered>,
        n_rows: usize,
    ) -> Result<Groups> {
        let places = |n: usize| DeviceBuffer::for_values::<u32>(&context.gpu, n);
        let groups = Groups {
            partition_of: places(n_rows)?,
            peers_of: places(n_rows)?,
            partition_first: places(n_rows + 1)?,
            peers_first: places(n_rows + 1)?,
        };
        let n_tiles = n_rows.div_ceil(heads_tile_rows(context.rows_threads()));
        let tiles = DeviceBuffer::zeroed(&context.gpu, &context.stream, (n_tiles + 1) * 8)?;
        let low_bit = |n_keys: usize| -> Result<u64> {
            let Some(ordered) = ordered else {
                return Ok(0);
            };
            let bit = ordered.low_bits.get(n_keys);
            let bit = bit.ok_or_else(|| Error::Internal("a window has too few keys".into()))?;
            Ok(u64::from(*bit))
        };
        let mut params = ParameterBytes::default();
        params.word(n_rows as u64);
        params.word(tiles.ptr().0);
        params.word(address(ordered.map(|ordered| &ordered.words)));
        params.word(ordered.map_or(0, |ordered| ordered.n_words as u64));
        params.word(low_bit(window.n_partition)?);
        params.word(low_bit(window.n_peers)?);
        params.word(address(ordered.and_then(|ordered| ordered.rows.as_ref())));
        for buffer in groups.buffers() {
            params.word(buffer.ptr().0);
        }
        let code = context.load("window_groups", WINDOW_GROUPS_TEXT)?;
        let entry = code.kernel("window_groups")?;
        let shape = context.rows_shape(&entry, n_tiles)?;
        // SAFETY: the fields are those of `WindowHeads`, in order; all buffers outlive the
        // call, which waits for the kernel.
        unsafe { context.run(&entry, shape, &params)? };
        Ok(groups)
    }

    fn buffers(&self) -> [&DeviceBuffer; 4] {
        [
            &self.partition_of,
            &self.peers_of,
            &self.partition_first,
            &self.peers_first,
        ]
    }
}

fn address(buffer: Option<&DeviceBuffer>) -> u64 {
    buffer.map_or(DevicePtr::NULL, DeviceBuffer::ptr).0
}

/// Runs one of the kernels that take the window's parameters.
fn run(
    context: &mut Context,
    code: &Arc<Loaded>,
    kernel: &WindowKernel,
    suffix: &str,
    n_pieces: usize,
    params: &ParameterBytes,
) -> Result<()> {
    let entry = code.kernel(&format!("{}{suffix}", kernel.name))?;
    let shape = context.rows_shape(&entry, n_pieces)?;
    // SAFETY: the caller appended the fields in the order of the generated struct; the
    // buffers and the chunk are its own and outlive the call, which waits for the kernel.
    unsafe { context.run(&entry, shape, params) }
}

/// How many nodes each level of a tree has, the leaves first.
fn levels(n_rows: usize) -> impl Iterator<Item = usize> {
    let below = |n: &usize| Some(n / TREE_FAN).filter(|above| *above > 0);
    std::iter::successors(Some(n_rows), below)
}

/// Fills the levels above the leaves of a tree.
fn grow(
    context: &mut Context,
    code: &Arc<Loaded>,
    kernel: &WindowKernel,
    at: usize,
    kind: TotalKind,
    tree: &DeviceBuffer,
    n_rows: usize,
) -> Result<()> {
    let entry = code.kernel(&format!("{}_level{at}", kernel.name))?;
    let mut below = 0;
    let mut n_below = n_rows;
    for n_above in levels(n_rows).skip(1) {
        let above = below + n_below;
        let mut params = ParameterBytes::default();
        params.word(n_above as u64);
        params.word(tree.at(below * kind.bytes()).0);
        params.word(tree.at(above * kind.bytes()).0);
        let pieces = n_above.div_ceil(context.rows_threads() as usize);
        let shape = context.rows_shape(&entry, pieces)?;
        // SAFETY: the fields are those of `TreeLevel`, in order; the tree has room for all
        // its levels and outlives the call, which waits for the kernel.
        unsafe { context.run(&entry, shape, &params)? };
        (below, n_below) = (above, n_above);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_ends_with_fewer_nodes_than_make_another() {
        let of = |n| levels(n).collect::<Vec<_>>();
        assert_eq!(of(1), [1]);
        assert_eq!(of(4), [4, 1]);
        assert_eq!(of(35), [35, 8, 2]);
    }
}
