//! Numbers for the texts of a whole column, made on all cores.
//!
//! ```text
//!   rows     dealt to threads; each numbers the texts that it meets     b a b | c a | b d
//!   buckets  texts by their hash; a bucket finds where each was first   b:0 a:0 | c:1 | d:2
//!   numbers  firsts in the order of rows, and what points at them       0 1 0 | 2 1 | 0 3
//! ```
//!
//! A column of names has as many texts as rows, so no step may put all of them through one
//! table.

use ahash::RandomState;
use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use kernels::error::Error as KernelError;
use kernels::threads::on_threads;

use super::codes::internal;
use super::deal::dealt;
use super::failure::Failure;

type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// Fewer rows than these are not worth a thread.
const THREAD_ROWS_MIN: usize = 1 << 16;

/// The codes of `Utf8` arrays, one after another, and their texts. Codes follow the order
/// in which texts are first seen, that of `first` before all; null stays null.
pub fn encode_all(
    parts: &[ArrayRef],
    first: Option<&str>,
    n_threads: usize,
) -> Result<(Int32Array, StringArray), Failure> {
    let parts = parts.iter().map(|part| {
        let texts = part.as_string_opt::<i32>();
        texts.ok_or_else(|| internal(format!("codes of {}", part.data_type())).into())
    });
    let parts: Vec<&StringArray> = parts.collect::<Result<_, Failure>>()?;
    let shares = shares(&parts, n_threads);
    let by = RandomState::new();
    let n_buckets = shares.len().next_power_of_two();
    let mut locals = vec![Local::of_text(first, n_buckets, &by)];
    locals.extend(on_threads(&shares, n_threads, |share| {
        Local::of(share, n_buckets, &by)
    }));

    let buckets: Vec<usize> = (0..n_buckets).collect();
    let found = on_threads(&buckets, n_threads, |bucket| firsts(&locals, *bucket));
    let (numbers, texts) = numbered(&locals, &found);
    let n_bytes: usize = texts.iter().map(|text| text.len()).sum();
    // Offsets into all texts, and codes, are 32 bits.
    if i32::try_from(n_bytes.max(texts.len())).is_err() {
        let message = format!("{n_bytes} bytes of different texts in one column");
        return Err(KernelError::Unsupported(message).into());
    }
    let rows: Vec<(&Local<'_>, &Vec<i32>)> = locals.iter().zip(&numbers).collect();
    let mut codes = on_threads(&rows, n_threads, |(local, numbers)| {
        local.renumbered(numbers)
    });
    let values: Vec<i32> = match codes.as_mut_slice() {
        [_, only] => std::mem::take(only),
        several => several.concat(),
    };
    let nulls = parts.iter().any(|part| part.null_count() > 0).then(|| {
        let all = parts
            .iter()
            .flat_map(|part| (0..part.len()).map(|row| part.is_valid(row)));
        NullBuffer::from_iter(all)
    });
    let texts = joined(&texts, n_bytes, shares.len())?;
    Ok((Int32Array::new(values.into(), nulls), texts))
}

/// The rows of the parts, dealt to threads in their order; a part may go to several.
fn shares(parts: &[&StringArray], n_threads: usize) -> Vec<Vec<StringArray>> {
    let n_rows: usize = parts.iter().map(|part| part.len()).sum();
    let each = n_rows.div_ceil(n_threads.max(1)).max(THREAD_ROWS_MIN);
    dealt(
        parts,
        each,
        |part| part.len(),
        |part, first, n| StringArray::slice(part, first, n),
    )
}

/// What one thread met.
struct Local<'a> {
    /// A number of its own for each row; anything for null.
    codes: Vec<i32>,
    texts: Vec<&'a str>,
    /// Its numbers by the hash of their texts.
    buckets: Vec<Vec<u32>>,
}

impl<'a> Local<'a> {
    fn of(parts: &'a [StringArray], n_buckets: usize, by: &RandomState) -> Local<'a> {
        let mut known: HashMap<&str, i32> = HashMap::default();
        let mut texts: Vec<&str> = Vec::new();
        let mut codes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            codes.extend(part.iter().map(|text| match text {
                None => 0,
                Some(text) => *known.entry(text).or_insert_with(|| {
                    texts.push(text);
                    texts.len() as i32 - 1
                }),
            }));
        }
        drop(known);
        Local {
            codes,
            buckets: buckets(&texts, n_buckets, by),
            texts,
        }
    }

    /// As if one text, or none, had been met in no row.
    fn of_text(text: Option<&'a str>, n_buckets: usize, by: &RandomState) -> Local<'a> {
        let texts: Vec<&str> = text.into_iter().collect();
        Local {
            codes: Vec::new(),
            buckets: buckets(&texts, n_buckets, by),
            texts,
        }
    }

    /// Its codes in the numbers of all.
    fn renumbered(&self, numbers: &[i32]) -> Vec<i32> {
        // Rows that are null have a number although there may be no text.
        let number = |code: &i32| numbers.get(*code as usize).copied().unwrap_or(0);
        self.codes.iter().map(number).collect()
    }
}

fn buckets(texts: &[&str], n_buckets: usize, by: &RandomState) -> Vec<Vec<u32>> {
    let mut buckets = vec![Vec::new(); n_buckets];
    for (number, text) in texts.iter().enumerate() {
        let bucket = by.hash_one(text) as usize & (n_buckets - 1);
        buckets[bucket].push(number as u32);
    }
    buckets
}

/// Where a text was first met: by which thread, and its number there.
type First = (u32, u32);

/// For each thread's texts of a bucket where they were first met.
fn firsts(locals: &[Local<'_>], bucket: usize) -> Vec<Vec<First>> {
    let mut known: HashMap<&str, First> = HashMap::default();
    let each = locals.iter().enumerate().map(|(thread, local)| {
        let numbers = local.buckets[bucket].iter();
        let of = numbers.map(|number| {
            let text = local.texts[*number as usize];
            *known.entry(text).or_insert((thread as u32, *number))
        });
        of.collect()
    });
    each.collect()
}

/// For each thread's numbers those of all, and the texts of all.
fn numbered<'a>(locals: &[Local<'a>], found: &[Vec<Vec<First>>]) -> (Vec<Vec<i32>>, Vec<&'a str>) {
    let mut numbers: Vec<Vec<i32>> = Vec::with_capacity(locals.len());
    let mut texts: Vec<&str> = Vec::new();
    for (thread, local) in locals.iter().enumerate() {
        let mut first_of = vec![(0, 0); local.texts.len()];
        for (bucket, own) in local.buckets.iter().enumerate() {
            for (number, first) in own.iter().zip(&found[bucket][thread]) {
                first_of[*number as usize] = *first;
            }
        }
        let mut own: Vec<i32> = Vec::with_capacity(local.texts.len());
        for (number, first) in first_of.into_iter().enumerate() {
            own.push(match first {
                (at, of) if at as usize == thread && of as usize == number => {
                    texts.push(local.texts[number]);
                    texts.len() as i32 - 1
                }
                // What was met before has its number.
                (at, of) if at as usize == thread => own[of as usize],
                (at, of) => numbers[at as usize][of as usize],
            });
        }
        numbers.push(own);
    }
    (numbers, texts)
}

/// Texts as one array, whose bytes several threads copy.
fn joined(texts: &[&str], n_bytes: usize, n_threads: usize) -> Result<StringArray, Failure> {
    let offsets = OffsetBuffer::<i32>::from_lengths(texts.iter().map(|text| text.len()));
    let mut bytes = vec![0u8; n_bytes];
    let n_each = texts.len().div_ceil(n_threads.max(1)).max(THREAD_ROWS_MIN);
    std::thread::scope(|scope| {
        let mut rest = bytes.as_mut_slice();
        for some in texts.chunks(n_each) {
            let n: usize = some.iter().map(|text| text.len()).sum();
            let (own, others) = rest.split_at_mut(n);
            rest = others;
            scope.spawn(move || {
                let mut at = 0;
                for text in some {
                    own[at..at + text.len()].copy_from_slice(text.as_bytes());
                    at += text.len();
                }
            });
        }
    });
    Ok(StringArray::try_new(offsets, bytes.into(), None)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn threads_number_texts_as_one_would() {
        let part = |from: usize| -> ArrayRef {
            let rows = (from..from + THREAD_ROWS_MIN).map(|row| match row % 7 {
                0 => None,
                _ => Some(((row / 3) % 1009).to_string()),
            });
            Arc::new(rows.collect::<StringArray>())
        };
        let parts: Vec<ArrayRef> = (0..4).map(|at| part(at * 40_000)).collect();
        let of = |n_threads| {
            encode_all(&parts, Some("first"), n_threads).unwrap_or_else(|_| panic!("text"))
        };
        let (codes, texts) = of(4);
        assert_eq!((codes.clone(), texts.clone()), of(1));
        assert_eq!((texts.len(), texts.value(0)), (1010, "first"));
        let rows = parts.iter().flat_map(|part| part.as_string::<i32>());
        for (code, text) in codes.iter().zip(rows) {
            assert_eq!(code.map(|code| texts.value(code as usize)), text);
        }
    }

    #[test]
    fn one_large_part_keeps_several_threads_busy() {
        let texts =
            StringArray::from_iter_values((0..4 * THREAD_ROWS_MIN).map(|row| row.to_string()));
        let parts = shares(&[&texts], 4);
        assert_eq!(parts.len(), 4);
        let rows = parts.iter().flatten().flat_map(|part| part.iter());
        assert!(rows.eq(texts.iter()));
    }

    #[test]
    fn no_rows_and_only_nulls_have_no_texts() {
        let nulls: ArrayRef = Arc::new(StringArray::new_null(3));
        for parts in [vec![], vec![nulls]] {
            let Ok((codes, texts)) = encode_all(&parts, None, 4) else {
                panic!("text has codes");
            };
            assert_eq!((codes.null_count(), texts.len()), (codes.len(), 0));
        }
    }
}
