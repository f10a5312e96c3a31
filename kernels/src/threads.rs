//! Work on a slice, spread over threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What `work` gives for every item, in order. Threads take the next item when they
/// have done one. A panic of one of them goes on in the caller.
pub fn on_threads<'a, I: Sync, O: Send>(
    items: &'a [I],
    n_threads: usize,
    work: impl Fn(&'a I) -> O + Sync,
) -> Vec<O> {
    if n_threads < 2 || items.len() < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return done;
            };
            done.push((at, work(item)));
        }
    };
    let mut done: Vec<(usize, O)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads.min(items.len()))
            .map(|_| scope.spawn(take))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .flat_map(|own| own.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, output)| output).collect()
}
