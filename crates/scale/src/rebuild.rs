//! A server is lost, and others take the place of its targets, while programs go on.

use crate::engine::{Engine, Way};
use crate::farm::{Farm, Refusal};
use crate::load::{Load, Programs};
use std::collections::BTreeMap;
use types::{GroupId, MemberState, TargetId};

/// Requests of programs beside a rebuild, of which there are millions in a second of a large
/// cluster: after so many what is left to copy is taken to go on at the same rate.
const MOST_REQUESTS: u64 = 2_000_000;

/// What is copied, and how.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rebuild {
    /// The server, from 0.
    pub lost: u32,
    /// Bytes of each group. Rates don't depend on it once there are many records; time does.
    pub group_bytes: u64,
    /// Bytes of a copied piece.
    pub record_bytes: u64,
    /// Pieces of a member under way at a time.
    pub pieces: u32,
    /// Members that a server brings in step at a time.
    pub members: u32,
    /// Most that is copied to a member, bytes a second; infinite without a throttle.
    pub pace: f64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// From the loss to the end of the last copy, seconds.
    pub seconds: f64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Copies that nobody has room or a place for.
    pub homeless: usize,
    /// Targets that were copied to.
    pub receivers: usize,
    /// What programs moved while there was something to copy, bytes a second; 0 without programs.
    pub foreground_bytes_per_s: f64,
}

/// A member that gets what its group has.
struct Copy {
    server: usize,
    source: TargetId,
    to: TargetId,
    left: u64,
    under_way: u32,
    /// When the pace lets the next piece go.
    next_at: f64,
}

/// Takes a server away and lets successors get its copies, beside a load if there is one.
///
/// Errors: groups of one member have nothing to copy from; those of the load.
pub fn rebuild(farm: &Farm, how: Rebuild, load: Option<Load>) -> Result<Rebuilt, Refusal> {
    if !farm.hardware.scheme.is_mirrored() {
        return Err(Refusal(format!("files of scheme {} have no other copy", farm.hardware.scheme)));
    }
    let mut farm = farm.without(how.lost);
    let (moves, homeless) = replace(&mut farm);
    let mut programs = load.map(|load| Programs::new(&farm, load)).transpose()?;
    let count = programs.as_ref().map_or(0, Programs::count);
    let mut engine = Engine::new(farm.stations(load.map_or(0, |load| load.clients as usize)));
    if let Some(programs) = &mut programs {
        (0..count).for_each(|program| engine.begin(0.0, program, programs.next(program)));
    }
    let mut copies = Copies::new(&farm, how, moves, count);
    copies.begin_next(&farm, &mut engine);
    let mut requests = 0;
    while copies.unfinished > 0 {
        let Some(owner) = engine.next_ended() else { break };
        if owner < count {
            requests += 1;
            if requests >= MOST_REQUESTS && copies.arrived() > 0 {
                break;
            }
            if let Some(programs) = &mut programs {
                engine.begin(engine.now(), owner, programs.next(owner));
            }
        } else {
            copies.ended(&farm, &mut engine, owner - count);
        }
    }
    let (bytes, arrived) = (copies.all.len() as u64 * how.group_bytes, copies.arrived());
    let (seconds, moved) = (engine.now(), requests * load.map_or(0, |load| load.record_bytes));
    let mut receivers: Vec<TargetId> = copies.all.iter().map(|copy| copy.to).collect();
    receivers.sort_unstable();
    receivers.dedup();
    Ok(Rebuilt {
        seconds: if arrived > 0 { seconds * bytes as f64 / arrived as f64 } else { seconds },
        bytes,
        homeless,
        receivers: receivers.len(),
        foreground_bytes_per_s: if seconds > 0.0 { moved as f64 / seconds } else { 0.0 },
    })
}

/// Gives each lost member its successor, one after the other as management does; those without one
/// are counted.
fn replace(farm: &mut Farm) -> (Vec<(GroupId, TargetId)>, usize) {
    let lost: Vec<(usize, TargetId)> = farm
        .map
        .groups
        .iter()
        .enumerate()
        .flat_map(|(at, group)| {
            let gone = group.with_states().filter(|(_, state)| *state == MemberState::NeedsResync);
            gone.map(move |(member, _)| (at, member)).collect::<Vec<_>>()
        })
        .collect();
    let (mut moves, mut homeless) = (Vec::new(), 0);
    for (at, gone) in lost {
        let Some(to) = layout::successor(&farm.map, &farm.map.groups[at], gone) else {
            homeless += 1;
            continue;
        };
        let group = &mut farm.map.groups[at];
        if let Some(place) = group.members.iter().position(|member| *member == gone) {
            (group.members[place], group.states[place]) = (to, MemberState::Rebuilding);
            moves.push((group.id, to));
        }
    }
    (moves, homeless)
}

struct Copies {
    all: Vec<Copy>,
    how: Rebuild,
    /// Owners of copies come after those of programs.
    first_owner: usize,
    /// Those that each server has yet to begin, the next one last.
    waiting: BTreeMap<usize, Vec<usize>>,
    unfinished: usize,
}

impl Copies {
    fn new(farm: &Farm, how: Rebuild, moves: Vec<(GroupId, TargetId)>, first_owner: usize) -> Copies {
        let copy = |(group, to): (GroupId, TargetId)| {
            let source = farm.map.group(group).and_then(|group| group.primary())?;
            let server = farm.server(source);
            Some(Copy { server, source, to, left: how.group_bytes, under_way: 0, next_at: 0.0 })
        };
        let all: Vec<Copy> = moves.into_iter().filter_map(copy).collect();
        let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, copy) in all.iter().enumerate().rev() {
            waiting.entry(copy.server).or_default().push(at);
        }
        Copies { unfinished: all.len(), all, how, first_owner, waiting }
    }

    /// Lets each server begin as many as it does at a time.
    fn begin_next(&mut self, farm: &Farm, engine: &mut Engine) {
        let servers: Vec<usize> = self.waiting.keys().copied().collect();
        for server in servers {
            for _ in 0..self.how.members {
                self.begin_one(farm, engine, server);
            }
        }
    }

    fn begin_one(&mut self, farm: &Farm, engine: &mut Engine, server: usize) {
        if let Some(at) = self.waiting.get_mut(&server).and_then(Vec::pop) {
            self.all[at].next_at = engine.now();
            for _ in 0..self.how.pieces {
                self.send(farm, engine, at);
            }
        }
    }

    /// Sends the next piece of a copy, when the pace lets it go.
    fn send(&mut self, farm: &Farm, engine: &mut Engine, at: usize) {
        let copy = &mut self.all[at];
        let bytes = copy.left.min(self.how.record_bytes);
        if bytes == 0 {
            return;
        }
        let begins = copy.next_at.max(engine.now());
        copy.next_at = begins + bytes as f64 / self.how.pace;
        copy.left -= bytes;
        copy.under_way += 1;
        let mut hops =
            vec![farm.drive(copy.source, bytes, farm.hardware.target_read), farm.cores(copy.server, bytes)];
        hops.extend(farm.copied(copy.server, copy.to, bytes, at as u32));
        engine.begin(begins, self.first_owner + at, vec![Way::of(hops)]);
    }

    /// Bytes that were copied so far.
    fn arrived(&self) -> u64 {
        let of_one = |copy: &Copy| {
            let sent = self.how.group_bytes - copy.left;
            sent.saturating_sub(u64::from(copy.under_way) * self.how.record_bytes)
        };
        self.all.iter().map(of_one).sum()
    }

    /// A piece of a copy has arrived.
    fn ended(&mut self, farm: &Farm, engine: &mut Engine, at: usize) {
        self.all[at].under_way -= 1;
        self.send(farm, engine, at);
        let copy = &self.all[at];
        if copy.under_way == 0 && copy.left == 0 {
            self.unfinished -= 1;
            let server = copy.server;
            self.begin_one(farm, engine, server);
        }
    }
}
