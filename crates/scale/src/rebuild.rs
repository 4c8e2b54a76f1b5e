//! Rebuild after the loss of a server: other targets replace its targets, while applications
//! continue.

use crate::cluster::{SimulatedCluster, SimulationError};
use crate::engine::{Engine, Route};
use crate::load::{Applications, Load};
use std::collections::BTreeMap;
use types::{GroupId, MemberState, TargetId};

/// Most application requests during a rebuild. A large cluster has millions per second; after this
/// many, the rest of the rebuild is extrapolated at the same rate.
const MAX_REQUESTS: u64 = 2_000_000;

/// Parameters of a rebuild.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rebuild {
    /// Number of the lost server, from 0.
    pub lost: u32,
    /// Bytes per group. With many records the rates don't depend on it, but the time does.
    pub group_bytes: u64,
    /// Bytes per copied piece.
    pub record_bytes: u64,
    /// Pieces in flight per member.
    pub pieces: u32,
    /// Concurrent resyncs per server.
    pub members: u32,
    /// Maximum bytes per second to one member; infinite without a throttle.
    pub max_bytes_per_s: f64,
}

/// Result of a simulated rebuild.
#[derive(Clone, Debug)]
pub struct RebuildResult {
    /// From the loss to the end of the last resync, in seconds.
    pub seconds: f64,
    /// Bytes copied.
    pub bytes: u64,
    /// Replicas for which no target has space or is allowed.
    pub unplaced: usize,
    /// Number of targets that receive data.
    pub receivers: usize,
    /// Application throughput during the rebuild, in bytes per second; 0 without applications.
    pub foreground_bytes_per_s: f64,
}

/// A member that gets the content of its group.
struct MemberCopy {
    server: usize,
    source: TargetId,
    to: TargetId,
    left: u64,
    in_flight: u32,
    /// When the throttle lets the next piece start.
    next_at: f64,
}

/// Removes a server and rebuilds its replicas on other targets, concurrently with a load if there
/// is one.
///
/// Errors: groups of one member have no source to copy from; those of the load.
pub fn rebuild(
    cluster: &SimulatedCluster,
    how: Rebuild,
    load: Option<Load>,
) -> Result<RebuildResult, SimulationError> {
    if !cluster.hardware.scheme.is_redundant() {
        return Err(SimulationError(format!(
            "files of scheme {} have no other replica",
            cluster.hardware.scheme
        )));
    }
    let mut cluster = cluster.without(how.lost);
    let (moves, unplaced) = replace(&mut cluster);
    let mut applications = load.map(|load| Applications::new(&cluster, load)).transpose()?;
    let count = applications.as_ref().map_or(0, Applications::count);
    let mut engine = Engine::new(cluster.stations(load.map_or(0, |load| load.clients as usize)));
    if let Some(applications) = &mut applications {
        (0..count).for_each(|program| engine.begin(0.0, program, applications.next(program)));
    }
    let mut copies = MemberCopies::new(&cluster, how, moves, count);
    copies.start_copies(&cluster, &mut engine);
    let mut requests = 0;
    while copies.unfinished > 0 {
        let Some(owner) = engine.run_until_next_end() else { break };
        if owner < count {
            requests += 1;
            if requests >= MAX_REQUESTS && copies.bytes_copied() > 0 {
                break;
            }
            if let Some(applications) = &mut applications {
                engine.begin(engine.now(), owner, applications.next(owner));
            }
        } else {
            copies.piece_arrived(&cluster, &mut engine, owner - count);
        }
    }
    let (bytes, arrived) = (copies.all.len() as u64 * how.group_bytes, copies.bytes_copied());
    let (seconds, moved) = (engine.now(), requests * load.map_or(0, |load| load.record_bytes));
    let mut receivers: Vec<TargetId> = copies.all.iter().map(|copy| copy.to).collect();
    receivers.sort_unstable();
    receivers.dedup();
    Ok(RebuildResult {
        seconds: if arrived > 0 { seconds * bytes as f64 / arrived as f64 } else { seconds },
        bytes,
        unplaced,
        receivers: receivers.len(),
        foreground_bytes_per_s: if seconds > 0.0 { moved as f64 / seconds } else { 0.0 },
    })
}

/// Replaces each lost member, one after the other as management does. Counts those without a
/// replacement.
fn replace(cluster: &mut SimulatedCluster) -> (Vec<(GroupId, TargetId)>, usize) {
    let lost: Vec<(usize, TargetId)> = cluster
        .map
        .groups
        .iter()
        .enumerate()
        .flat_map(|(at, group)| {
            let gone = group.members_with_states().filter(|(_, state)| *state == MemberState::NeedsResync);
            gone.map(move |(member, _)| (at, member)).collect::<Vec<_>>()
        })
        .collect();
    let (mut moves, mut unplaced) = (Vec::new(), 0);
    for (at, gone) in lost {
        let Some(to) = layout::replacement_target(&cluster.map, &cluster.map.groups[at], gone) else {
            unplaced += 1;
            continue;
        };
        let group = &mut cluster.map.groups[at];
        if let Some(place) = group.members.iter().position(|member| *member == gone) {
            (group.members[place], group.states[place]) = (to, MemberState::Rebuilding);
            moves.push((group.id, to));
        }
    }
    (moves, unplaced)
}

struct MemberCopies {
    all: Vec<MemberCopy>,
    how: Rebuild,
    /// Owner ids of copies follow those of applications.
    first_owner: usize,
    /// Copies that each server has yet to start, the next one last.
    waiting: BTreeMap<usize, Vec<usize>>,
    unfinished: usize,
}

impl MemberCopies {
    fn new(
        cluster: &SimulatedCluster,
        how: Rebuild,
        moves: Vec<(GroupId, TargetId)>,
        first_owner: usize,
    ) -> MemberCopies {
        let copy = |(group, to): (GroupId, TargetId)| {
            let source = cluster.map.group(group).and_then(|group| group.primary())?;
            let server = cluster.server(source);
            Some(MemberCopy { server, source, to, left: how.group_bytes, in_flight: 0, next_at: 0.0 })
        };
        let all: Vec<MemberCopy> = moves.into_iter().filter_map(copy).collect();
        let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, copy) in all.iter().enumerate().rev() {
            waiting.entry(copy.server).or_default().push(at);
        }
        MemberCopies { unfinished: all.len(), all, how, first_owner, waiting }
    }

    /// Starts the allowed number of copies on each server.
    fn start_copies(&mut self, cluster: &SimulatedCluster, engine: &mut Engine) {
        let servers: Vec<usize> = self.waiting.keys().copied().collect();
        for server in servers {
            for _ in 0..self.how.members {
                self.start_copy(cluster, engine, server);
            }
        }
    }

    fn start_copy(&mut self, cluster: &SimulatedCluster, engine: &mut Engine, server: usize) {
        if let Some(at) = self.waiting.get_mut(&server).and_then(Vec::pop) {
            self.all[at].next_at = engine.now();
            for _ in 0..self.how.pieces {
                self.send(cluster, engine, at);
            }
        }
    }

    /// Sends the next piece of a copy, when the throttle allows.
    fn send(&mut self, cluster: &SimulatedCluster, engine: &mut Engine, at: usize) {
        let copy = &mut self.all[at];
        let bytes = copy.left.min(self.how.record_bytes);
        if bytes == 0 {
            return;
        }
        let begins = copy.next_at.max(engine.now());
        copy.next_at = begins + bytes as f64 / self.how.max_bytes_per_s;
        copy.left -= bytes;
        copy.in_flight += 1;
        let mut hops = vec![
            cluster.drive(copy.source, bytes, cluster.hardware.target_read),
            cluster.cores(copy.server, bytes),
        ];
        hops.extend(cluster.copy_hops(copy.server, copy.to, bytes, at as u32));
        engine.begin(begins, self.first_owner + at, vec![Route::of(hops)]);
    }

    /// Returns the bytes copied so far.
    fn bytes_copied(&self) -> u64 {
        let of_one = |copy: &MemberCopy| {
            let sent = self.how.group_bytes - copy.left;
            sent.saturating_sub(u64::from(copy.in_flight) * self.how.record_bytes)
        };
        self.all.iter().map(of_one).sum()
    }

    /// Handles the arrival of a piece of a copy.
    fn piece_arrived(&mut self, cluster: &SimulatedCluster, engine: &mut Engine, at: usize) {
        self.all[at].in_flight -= 1;
        self.send(cluster, engine, at);
        let copy = &self.all[at];
        if copy.in_flight == 0 && copy.left == 0 {
            self.unfinished -= 1;
            let server = copy.server;
            self.start_copy(cluster, engine, server);
        }
    }
}
