//! Rows that had to leave the device, or never got there: in host memory while the batch's
//! budget has room, in a file otherwise.
//!
//! A file is mapped, so whoever reads the rows needs not know where they are, and it has no
//! name: nothing is left of it when the process ends, however that happens.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::array::{ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::Buffer;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use kernels::launch::StagedBatch;

/// Buffers below this size stay in memory: a mapping takes whole pages.
const FILE_BYTES_MIN: usize = 64 << 10;

/// Each mapping starts at a multiple of this, which pages of all common sizes divide.
const MAPPING_ALIGNMENT: u64 = 64 << 10;

/// Where one pipeline's rows wait.
#[derive(Debug)]
pub struct Spill {
    pool: Arc<dyn MemoryPool>,
    /// Made when it is needed: operators that can spill share the budget.
    reservation: OnceLock<MemoryReservation>,
    disk: Arc<DiskManager>,
    file: Mutex<Option<Growing>>,
    /// Bytes that left the device, or could not get there.
    moved: AtomicU64,
    /// Bytes of them that went to disk.
    on_disk: AtomicU64,
}

/// A file without a name, and where it ends.
#[derive(Debug)]
struct Growing {
    file: File,
    end: u64,
}

impl Spill {
    /// A place within the memory and the disk budget of the batch.
    pub fn new(context: &TaskContext) -> Arc<Spill> {
        Arc::new(Spill {
            pool: Arc::clone(context.memory_pool()),
            reservation: OnceLock::new(),
            disk: Arc::clone(&context.runtime_env().disk_manager),
            file: Mutex::new(None),
            moved: AtomicU64::new(0),
            on_disk: AtomicU64::new(0),
        })
    }

    /// Bytes that left the device because it was short of memory, or could not get there.
    pub fn moved_bytes(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Bytes that went to disk because host memory was short too.
    pub fn disk_bytes(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }

    /// Keeps rows that are laid out for a device.
    pub fn keep_staged(&self, rows: StagedBatch) -> Result<StagedBatch> {
        rows.map_buffers(&mut |buffer| self.keep(buffer))
    }

    /// Keeps a record batch.
    pub fn keep_batch(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| -> Result<ArrayRef> {
            Ok(make_array(self.keep_data(column.to_data())?))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(batch.schema(), columns, &options)?;
        Ok(batch)
    }

    fn keep_data(&self, data: ArrayData) -> Result<ArrayData> {
        let buffers = data.buffers().iter().cloned();
        let buffers = buffers.map(|buffer| self.keep(buffer));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let children = data.child_data().iter().cloned();
        let children = children.map(|child| self.keep_data(child));
        let children = children.collect::<Result<Vec<_>>>()?;
        let kept = data.into_builder().buffers(buffers).child_data(children);
        Ok(kept.build()?)
    }

    /// Keeps the bytes of a buffer.
    fn keep(&self, buffer: Buffer) -> Result<Buffer> {
        let bytes = buffer.len();
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        let reservation = self.reservation.get_or_init(|| {
            let consumer = MemoryConsumer::new("GPU spill").with_can_spill(true);
            consumer.register(&self.pool)
        });
        if reservation.try_grow(bytes).is_ok() {
            return Ok(buffer);
        }
        if bytes < FILE_BYTES_MIN {
            reservation.grow(bytes);
            return Ok(buffer);
        }
        self.to_file(&buffer)
    }

    fn to_file(&self, buffer: &Buffer) -> Result<Buffer> {
        let bytes = buffer.len() as u64;
        let before = self.on_disk.fetch_add(bytes, Ordering::Relaxed);
        let (used, limit) = (
            self.disk.used_disk_space(),
            self.disk.max_temp_directory_size(),
        );
        if used.saturating_add(before).saturating_add(bytes) > limit {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "rows that do not fit the device's memory nor the host's need {} bytes of disk, \
                 and operators may spill {limit}; raise `spill.limit_gb`",
                before + bytes
            )));
        }
        let mut growing = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let growing = match &mut *growing {
            Some(growing) => growing,
            none => {
                let file = match self.disk.temp_dir_paths().first() {
                    Some(directory) => tempfile::tempfile_in(directory)?,
                    None => tempfile::tempfile()?,
                };
                none.insert(Growing { file, end: 0 })
            }
        };
        let at = growing.end;
        growing.file.write_all_at(buffer, at)?;
        growing.end = (at + bytes).next_multiple_of(MAPPING_ALIGNMENT);
        Ok(mapped(&growing.file, at, buffer.len())?)
    }
}

/// Part of a file as memory.
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is mapped read-only and belongs to this value alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}
impl std::panic::RefUnwindSafe for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `mapped` with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// `bytes` bytes of a file from `at` on, which is a multiple of [`MAPPING_ALIGNMENT`]. The
/// mapping outlives the file's handle, and with the last of both the file's space is free.
fn mapped(file: &File, at: u64, bytes: usize) -> std::io::Result<Buffer> {
    let offset = libc::off_t::try_from(at).map_err(std::io::Error::other)?;
    // SAFETY: a new read-only mapping of a file that nobody else can open or cut short.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let address = NonNull::new(address.cast::<u8>());
    let address = address.ok_or_else(|| std::io::Error::other("a mapping at address 0"))?;
    let owner = Arc::new(Mapping { address, bytes });
    // SAFETY: the bytes are readable and do not change while `owner` lives.
    Ok(unsafe { Buffer::from_custom_allocation(address, bytes, owner) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::execution::disk_manager::DiskManagerBuilder;
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;

    fn spill(memory: usize, disk: u64) -> Arc<Spill> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
            .with_disk_manager_builder(
                DiskManagerBuilder::default().with_max_temp_directory_size(disk),
            )
            .build_arc()
            .unwrap();
        Spill::new(&TaskContext::default().with_runtime(runtime))
    }

    fn batch(n: i64) -> RecordBatch {
        let numbers: Int64Array = (0..n).map(|i| (i % 3 > 0).then_some(i)).collect();
        let texts: StringArray = (0..n).map(|i| Some(format!("text {i}"))).collect();
        let schema = Schema::new(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("t", DataType::Utf8, true),
        ]);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(numbers), Arc::new(texts)]).unwrap()
    }

    #[test]
    fn rows_are_the_same_in_memory_and_on_disk() {
        for (memory, on_disk) in [(1 << 30, false), (0, true)] {
            let spill = spill(memory, 1 << 30);
            let all = batch(40_000);
            // A slice: its buffers are those of all rows.
            for rows in [all.clone(), all.slice(777, 30_001)] {
                let kept = spill.keep_batch(rows.clone()).unwrap();
                assert_eq!(kept, rows);
            }
            assert_eq!(spill.disk_bytes() > 0, on_disk);
            assert!(spill.moved_bytes() >= spill.disk_bytes());
        }
    }

    #[test]
    fn kept_rows_outlive_the_place() {
        let (rows, place) = (batch(40_000), spill(0, 1 << 30));
        let kept = place.keep_batch(rows.clone()).unwrap();
        drop(place);
        assert_eq!(kept, rows);
    }

    #[test]
    fn a_full_disk_budget_is_an_error_that_says_what_to_raise() {
        let error = spill(0, 1000).keep_batch(batch(40_000)).unwrap_err();
        assert!(error.to_string().contains("spill.limit_gb"), "{error}");
    }
}
