//! Who runs next, where, and why the others wait.
//!
//! Higher priority first. Within a priority the groups take turns: the one with the least
//! running and already ordered comes next, with its oldest batch. Within a kind of slot
//! nobody overtakes, so that what needs much is not starved by what needs little.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::batch::{Millis, Wants};
use crate::state::BatchState;

/// A batch that has not ended, as far as the queue looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBatch {
    /// Its id.
    pub id: String,
    /// Queued, running or cancelling.
    pub state: BatchState,
    /// Higher runs first.
    pub priority: i32,
    /// What fairness counts by.
    pub group: String,
    /// What it needs.
    pub wants: Wants,
    /// When it came into the queue.
    pub queued_ms: Millis,
    /// It is not tried before this time.
    pub not_before_ms: Option<Millis>,
    /// When it expires.
    pub queue_deadline_ms: Option<Millis>,
    /// The server that runs it, and until when it may.
    pub lease: Option<(String, Millis)>,
}

/// What one server can run at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// The server's name.
    pub server: String,
    /// Cores for batches that run on the CPU.
    pub cores: u32,
    /// GPUs.
    pub gpus: u32,
}

/// The kinds of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Core,
    Gpu,
}

/// Why a batch waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Its place among those that wait for the same kind of slot, from 1; absent while it
    /// waits for a time.
    pub position: Option<usize>,
    /// In words.
    pub reason: String,
}

impl Capacity {
    /// The kind of slot that a batch needs on this server, and how much of it. None when it
    /// cannot run here.
    fn slot_of(&self, wants: &Wants) -> Option<(Slot, u32)> {
        if wants.gpu.is_some() && self.gpus > 0 {
            return Some((Slot::Gpu, wants.gpu_milli.clamp(1, 1_000)));
        }
        if wants.gpu.is_some() && !wants.may_fall_back {
            return None;
        }
        Some((Slot::Core, wants.cores.clamp(1, self.cores.max(1))))
    }

    /// Whether anything may start beside what this server runs.
    pub fn has_room<'a>(&self, running: impl Iterator<Item = &'a Wants> + Clone) -> bool {
        [Slot::Core, Slot::Gpu].into_iter().any(|slot| {
            let amounts = running.clone().filter_map(|wants| self.slot_of(wants));
            let used: u32 = amounts.filter(|(of, _)| *of == slot).map(|(_, n)| n).sum();
            used < self.all_of(slot)
        })
    }

    fn all_of(&self, slot: Slot) -> u32 {
        match slot {
            Slot::Core => self.cores.max(1),
            Slot::Gpu => self.gpus.saturating_mul(1_000),
        }
    }

    fn used(&self, open: &[OpenBatch], slot: Slot) -> u32 {
        open.iter()
            .filter(|batch| {
                let server = batch.lease.as_ref().map(|(server, _)| server);
                server == Some(&self.server)
            })
            .filter_map(|batch| self.slot_of(&batch.wants))
            .filter(|(of, _)| *of == slot)
            .map(|(_, amount)| amount)
            .sum()
    }
}

/// The batch that this server should run next, if it has room for the one whose turn it is.
/// `skip` are those that it has tried to claim in vain.
pub fn next<'a>(
    open: &'a [OpenBatch],
    capacity: &Capacity,
    now: Millis,
    skip: &[String],
) -> Option<&'a OpenBatch> {
    let order = order(open, now);
    for slot in [Slot::Gpu, Slot::Core] {
        let of_slot = |batch: &&&OpenBatch| {
            let needs = capacity.slot_of(&batch.wants).map(|(of, _)| of);
            needs == Some(slot) && !skip.contains(&batch.id)
        };
        let Some(first) = order.iter().find(of_slot) else {
            continue;
        };
        let free = capacity
            .all_of(slot)
            .saturating_sub(capacity.used(open, slot));
        let needed = capacity.slot_of(&first.wants).map_or(u32::MAX, |(_, n)| n);
        if needed <= free {
            return Some(first);
        }
    }
    None
}

/// Why a batch waits, as this server sees it. None when it does not wait.
pub fn explain(open: &[OpenBatch], capacity: &Capacity, now: Millis, id: &str) -> Option<Wait> {
    let batch = open.iter().find(|batch| batch.id == id)?;
    if batch.state != BatchState::Queued {
        return None;
    }
    if let Some(time) = batch.not_before_ms.filter(|time| *time > now) {
        let seconds = (time - now) as f64 / 1_000.0;
        return Some(Wait {
            position: None,
            reason: format!("the next attempt starts in {seconds:.1} s"),
        });
    }
    let Some((slot, amount)) = capacity.slot_of(&batch.wants) else {
        let gpu = batch.wants.gpu.as_deref().unwrap_or("GPU");
        return Some(Wait {
            position: None,
            reason: format!("waiting for a server with a GPU ({gpu}); this one has none"),
        });
    };
    let order = order(open, now);
    let same = |other: &&&OpenBatch| capacity.slot_of(&other.wants).map(|(of, _)| of) == Some(slot);
    let position = 1 + order.iter().filter(same).position(|other| other.id == id)?;
    let used = capacity.used(open, slot);
    let all = capacity.all_of(slot);
    let reason = if used + amount <= all && position == 1 {
        "about to start".to_owned()
    } else {
        match slot {
            Slot::Core => format!("waiting for {used} of {all} cores in use, position {position}"),
            Slot::Gpu => {
                let slots = all / amount;
                let busy = used.div_ceil(amount).min(slots);
                let gpu = batch.wants.gpu.as_deref().unwrap_or("GPU");
                format!("waiting for {busy} of {slots} {gpu} slots, position {position}")
            }
        }
    };
    Some(Wait {
        position: Some(position),
        reason,
    })
}

/// Those that may start now, in the order in which they should.
fn order(open: &[OpenBatch], now: Millis) -> Vec<&OpenBatch> {
    let mut load: HashMap<&str, u32> = HashMap::new();
    for batch in open.iter().filter(|batch| batch.lease.is_some()) {
        *load.entry(&batch.group).or_default() += 1;
    }
    let mut waiting: Vec<&OpenBatch> = open
        .iter()
        .filter(|batch| batch.state == BatchState::Queued)
        .filter(|batch| batch.not_before_ms.is_none_or(|time| time <= now))
        .collect();
    waiting.sort_by(|a, b| (a.queued_ms, &a.id).cmp(&(b.queued_ms, &b.id)));
    let mut by_priority: BTreeMap<i32, BTreeMap<&str, VecDeque<&OpenBatch>>> = BTreeMap::new();
    for batch in waiting {
        let groups = by_priority.entry(-batch.priority).or_default();
        groups.entry(&batch.group).or_default().push_back(batch);
    }
    let mut order = Vec::new();
    for (_, mut groups) in by_priority {
        while let Some(group) = groups
            .iter()
            .filter_map(|(group, queue)| {
                let oldest = queue.front()?;
                let loaded = load.get(group).copied().unwrap_or(0);
                Some((loaded, oldest.queued_ms, &oldest.id, *group))
            })
            .min()
            .map(|(.., group)| group)
        {
            *load.entry(group).or_default() += 1;
            if let Some(batch) = groups.get_mut(group).and_then(VecDeque::pop_front) {
                order.push(batch);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: &str, group: &str, queued_ms: i64) -> OpenBatch {
        OpenBatch {
            id: id.into(),
            state: BatchState::Queued,
            priority: 0,
            group: group.into(),
            wants: Wants {
                cores: 1,
                ..Wants::default()
            },
            queued_ms,
            not_before_ms: None,
            queue_deadline_ms: None,
            lease: None,
        }
    }

    fn running(id: &str, group: &str, server: &str) -> OpenBatch {
        OpenBatch {
            state: BatchState::Running,
            lease: Some((server.into(), 10)),
            ..waiting(id, group, 0)
        }
    }

    fn here(cores: u32, gpus: u32) -> Capacity {
        Capacity {
            server: "here".into(),
            cores,
            gpus,
        }
    }

    #[track_caller]
    fn check_order(open: &[OpenBatch], expected: &[&str]) {
        let ids: Vec<_> = order(open, 100)
            .into_iter()
            .map(|b| b.id.as_str())
            .collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn groups_take_turns_and_priority_comes_first() {
        let mut open = vec![
            waiting("a1", "a", 1),
            waiting("a2", "a", 2),
            waiting("a3", "a", 3),
            waiting("b1", "b", 9),
        ];
        check_order(&open, &["a1", "b1", "a2", "a3"]);
        open.push(running("a0", "a", "elsewhere"));
        check_order(&open, &["b1", "a1", "a2", "a3"]);
        open[2].priority = 1;
        check_order(&open, &["a3", "b1", "a1", "a2"]);
        open[2].not_before_ms = Some(101);
        check_order(&open, &["b1", "a1", "a2"]);
    }

    #[test]
    fn nobody_overtakes_within_a_kind_of_slot() {
        let mut large = waiting("large", "a", 1);
        large.wants.cores = 4;
        let open = vec![large, waiting("small", "b", 2), running("r", "c", "here")];
        assert_eq!(next(&open, &here(4, 0), 100, &[]), None);
        let free = &open[..2];
        assert_eq!(
            next(free, &here(4, 0), 100, &[]).map(|b| b.id.as_str()),
            Some("large")
        );
        // What asks for more than there is runs alone.
        assert_eq!(
            next(free, &here(2, 0), 100, &[]).map(|b| b.id.as_str()),
            Some("large")
        );
        let skip = ["large".to_owned()];
        assert_eq!(
            next(free, &here(2, 0), 100, &skip).map(|b| b.id.as_str()),
            Some("small")
        );
    }

    fn gpu(id: &str, milli: u32, queued_ms: i64, may_fall_back: bool) -> OpenBatch {
        let mut batch = waiting(id, id, queued_ms);
        batch.wants.gpu = Some("l4".into());
        batch.wants.gpu_milli = milli;
        batch.wants.may_fall_back = may_fall_back;
        batch
    }

    #[test]
    fn a_full_server_looks_for_nothing() {
        let one = Wants {
            cores: 1,
            ..Wants::default()
        };
        let half = Wants {
            gpu: Some("l4".into()),
            gpu_milli: 500,
            ..Wants::default()
        };
        for (running, gpus, has_room) in [
            (vec![], 0, true),
            (vec![&one], 0, true),
            (vec![&one, &one], 0, false),
            (vec![&one, &one], 1, true),
            (vec![&one, &one, &half], 1, true),
            (vec![&one, &one, &half, &half], 1, false),
        ] {
            assert_eq!(here(2, gpus).has_room(running.into_iter()), has_room);
        }
    }

    #[test]
    fn a_share_of_a_gpu_is_a_slot() {
        let mut busy = gpu("busy", 500, 0, true);
        busy.state = BatchState::Running;
        busy.lease = Some(("here".into(), 10));
        let open = vec![busy, gpu("half", 500, 1, true), gpu("whole", 1000, 2, true)];
        assert_eq!(
            next(&open, &here(1, 1), 100, &[]).map(|b| b.id.as_str()),
            Some("half")
        );
        let skip = ["half".to_owned()];
        assert_eq!(next(&open, &here(1, 1), 100, &skip), None);
        assert_eq!(
            explain(&open, &here(1, 1), 100, "whole"),
            Some(Wait {
                position: Some(2),
                reason: "waiting for 1 of 1 l4 slots, position 2".into()
            })
        );
    }

    #[test]
    fn without_a_gpu_only_what_may_fall_back_runs() {
        let open = vec![gpu("strict", 1000, 1, false), gpu("lenient", 1000, 2, true)];
        assert_eq!(
            next(&open, &here(1, 0), 100, &[]).map(|b| b.id.as_str()),
            Some("lenient")
        );
        let wait = explain(&open, &here(1, 0), 100, "strict").unwrap();
        assert!(wait.reason.contains("a server with a GPU (l4)"), "{wait:?}");
    }

    #[test]
    fn what_waits_is_told_why() {
        let mut open = vec![running("r", "a", "here"), waiting("w", "a", 1)];
        let reason = |open: &[OpenBatch]| explain(open, &here(1, 0), 100, "w").unwrap().reason;
        assert_eq!(reason(&open), "waiting for 1 of 1 cores in use, position 1");
        open[1].not_before_ms = Some(1_600);
        assert_eq!(reason(&open), "the next attempt starts in 1.5 s");
        open.remove(0);
        open[0].not_before_ms = None;
        assert_eq!(reason(&open), "about to start");
        assert_eq!(explain(&open, &here(1, 0), 100, "absent"), None);
    }
}
