//! Byte ranges of column chunks from an object store.
//!
//! ```text
//!   wanted    [a]..[b]................[c]
//!   requests  [a----b]                [c]     a short gap costs less than a request
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::error::DataFusionError;
use datafusion::object_store::{Error as StoreError, GetOptions, GetRange, GetResult};
use futures::{StreamExt, TryStreamExt};

use super::footers::{File, Piece};
use crate::exec::failure::Failure;

/// Ranges are fetched by one request when what lies between them is not more than this
/// part of them, or than so many bytes: little is fetched that nobody wants.
const GAP_PART: u64 = 20;
const GAP_BYTES: u64 = 4 << 10;

/// A request for several ranges is not larger than this.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Requests of one row group that are under way at a time.
const REQUESTS: usize = 8;

/// The compressed bytes of a row group's wanted columns, and how many were fetched.
pub struct Fetched {
    /// Where each starts in the file, and its bytes.
    pub columns: Vec<(u64, Bytes)>,
    /// Bytes that came from the store.
    pub n_bytes: u64,
}

/// Fetches the wanted columns of a row group.
pub async fn fetch(piece: &Piece, columns: &[usize]) -> Result<Fetched, Failure> {
    let group = piece.file.metadata.row_group(piece.row_group);
    let ranges = columns.iter().map(|column| {
        let meta = group.column(piece.file.leaves[*column]);
        // The crate's own sum of start and length may overflow.
        let start = meta.dictionary_page_offset().unwrap_or(i64::MAX);
        let start = u64::try_from(start.min(meta.data_page_offset())).ok();
        let length = u64::try_from(meta.compressed_size()).ok();
        let end = start
            .zip(length)
            .and_then(|(start, length)| start.checked_add(length));
        match (start, end) {
            (Some(start), Some(end)) if end <= piece.file.meta.size => Ok(start..end),
            _ => {
                let name = meta.column_path().string();
                let file = &piece.file.name;
                let message = format!(
                    "{file}: column {name}, row group {}: it is not inside of the file",
                    piece.row_group
                );
                Err(damaged(message))
            }
        }
    });
    let ranges = ranges.collect::<Result<Vec<_>, Failure>>()?;
    let requests = coalesced(&ranges);
    let fetched = requests.iter().cloned().map(|range| {
        let file = Arc::clone(&piece.file);
        async move { get(&file, range).await }
    });
    let fetched: Vec<Bytes> = futures::stream::iter(fetched)
        .buffered(REQUESTS)
        .try_collect()
        .await?;
    let n_bytes = requests.iter().map(|range| range.end - range.start).sum();
    let columns = ranges.into_iter().map(|range| {
        let at = requests.partition_point(|request| request.start <= range.start);
        let at = at.max(1) - 1;
        let from = (range.start - requests[at].start) as usize;
        let bytes = fetched[at].slice(from..from + (range.end - range.start) as usize);
        (range.start, bytes)
    });
    Ok(Fetched {
        columns: columns.collect(),
        n_bytes,
    })
}

/// An error of a file that is not what its footer says.
pub fn damaged(message: String) -> Failure {
    let error = parquet::errors::ParquetError::General(message);
    Failure::User(DataFusionError::ParquetError(Box::new(error)))
}

/// How often a request whose answer broke off is made again. The store's client itself
/// repeats requests that were refused or not answered.
const ATTEMPTS: u32 = 5;

/// The pause before the second attempt; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);

/// The bytes of one request.
pub(super) async fn get(file: &File, range: Range<u64>) -> Result<Bytes, Failure> {
    let wanted = range.end - range.start;
    if wanted == 0 {
        return Ok(Bytes::new());
    }
    let mut attempt = 1;
    loop {
        let answer = ask(file, range.clone()).await;
        let problem = match answer?.bytes().await {
            Ok(bytes) if bytes.len() as u64 == wanted => return Ok(bytes),
            Ok(bytes) => {
                let message = format!("{}: {} of {wanted} bytes came", file.name, bytes.len());
                Failure::User(DataFusionError::Execution(message))
            }
            Err(error) => Failure::User(error.into()),
        };
        if attempt == ATTEMPTS {
            return Err(problem);
        }
        tracing::warn!(file = %file.name, attempt, "an answer broke off and is asked for again");
        tokio::time::sleep(PAUSE * 2u32.pow(attempt - 1)).await;
        attempt += 1;
    }
}

/// Asks for a range. The file must be the one that was listed: a batch does not mix two.
async fn ask(file: &File, range: Range<u64>) -> Result<GetResult, Failure> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range)),
        if_match: file.meta.e_tag.clone(),
        ..GetOptions::default()
    };
    match file.store.get_opts(&file.meta.location, options).await {
        Err(StoreError::Precondition { .. }) => {
            let message = format!("{}: it changed while it was read", file.name);
            Err(Failure::User(DataFusionError::Execution(message)))
        }
        answer => answer.map_err(|error| Failure::User(error.into())),
    }
}

/// The requests for these ranges, in order, each within one of them.
fn coalesced(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| (range.start, range.end));
    let mut requests: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        let joins = |last: &Range<u64>| {
            let wanted = (last.end - last.start) + (range.end - range.start);
            let gap = range.start.saturating_sub(last.end);
            range.end <= last.end
                || (gap <= (wanted / GAP_PART).max(GAP_BYTES)
                    && range.end - last.start <= REQUEST_BYTES_MAX)
        };
        match requests.last_mut() {
            Some(last) if joins(last) => last.end = last.end.max(range.end),
            _ => requests.push(range),
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ranges_are_one_request_and_far_or_large_ones_are_not() {
        type Ranges = &'static [(u64, u64)];
        const MB: u64 = 1 << 20;
        let cases: &[(Ranges, Ranges)] = &[
            (&[], &[]),
            (&[(0, 10), (10, 20)], &[(0, 20)]),
            (&[(100, 200), (0, 10)], &[(0, 200)]),
            (&[(0, 10), (MB, MB + 5)], &[(0, 10), (MB, MB + 5)]),
            (&[(0, 10 * MB), (11 * MB, 22 * MB)], &[(0, 22 * MB)]),
            (
                &[(0, 10 * MB), (12 * MB, 22 * MB)],
                &[(0, 10 * MB), (12 * MB, 22 * MB)],
            ),
            (
                &[(0, 40 * MB), (40 * MB, 80 * MB)],
                &[(0, 40 * MB), (40 * MB, 80 * MB)],
            ),
            (&[(0, 100 * MB)], &[(0, 100 * MB)]),
            (&[(5, 9), (5, 9), (6, 7)], &[(5, 9)]),
        ];
        for (ranges, requests) in cases {
            let ranges: Vec<Range<u64>> = ranges.iter().map(|(from, to)| *from..*to).collect();
            let made = coalesced(&ranges);
            let made: Vec<(u64, u64)> = made.iter().map(|made| (made.start, made.end)).collect();
            assert_eq!(made, *requests, "{ranges:?}");
        }
    }
}
