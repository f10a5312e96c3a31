//! Rows that come in pieces, dealt out in shares of another size.

/// The rows of `pieces` in their order, `each` of them a share, the last with what is left; a
/// piece may go to several. There is a share also without rows.
pub fn dealt<T, S>(
    pieces: &[T],
    each: usize,
    n_rows: impl Fn(&T) -> usize,
    slice: impl Fn(&T, usize, usize) -> S,
) -> Vec<Vec<S>> {
    let mut shares: Vec<Vec<S>> = vec![Vec::new()];
    let mut room = each;
    for piece in pieces {
        let mut first = 0;
        while first < n_rows(piece) {
            if room == 0 {
                shares.push(Vec::new());
                room = each;
            }
            let n = room.min(n_rows(piece) - first);
            // There is a last share: it was just made, or the first.
            if let Some(share) = shares.last_mut() {
                share.push(slice(piece, first, n));
            }
            first += n;
            room -= n;
        }
    }
    shares
}
