//! Probes without keys: every row of the relation is looked at.
//!
//! ```text
//! for (AllMatches<false> m1{NO_ROW, 0, false}; m1.next(p.j1, match1);) {
//!   const u32 r1 = m1.row;
//! ```

use super::emit::Emitter;
use super::error::Unsupported;
use super::steps::{emit_mark, emit_match};
use crate::ir::{Probe, ProbeKind};

/// Emits the probe; true when it opened a loop.
pub(super) fn emit_all(emitter: &mut Emitter, probe: &Probe) -> Result<bool, Unsupported> {
    let n = probe.relation;
    emit_match(emitter, probe, false)?;
    let found = format!("any_match_of_all(p.j{n}, match{n})");
    let leave = emitter.exit();
    match probe.kind {
        ProbeKind::Mark => emitter.line(&format!("const u32 r{n} = {found};")),
        ProbeKind::IfAny => emitter.line(&format!("if ({found} == NO_ROW) {leave};")),
        ProbeKind::IfNone => emitter.line(&format!("if ({found} != NO_ROW) {leave};")),
        ProbeKind::NotIn => return Err(Unsupported::expression("NOT IN without a key")),
        ProbeKind::Matches | ProbeKind::MatchesOrNull | ProbeKind::Full => {
            let or_null = probe.kind.may_miss();
            emitter.open_loop(&format!(
                "for (AllMatches<{or_null}> m{n}{{NO_ROW, 0, false}}; \
                 m{n}.next(p.j{n}, match{n});)"
            ));
            emitter.line(&format!("const u32 r{n} = m{n}.row;"));
            emit_mark(emitter, probe);
            return Ok(true);
        }
    }
    Ok(false)
}
