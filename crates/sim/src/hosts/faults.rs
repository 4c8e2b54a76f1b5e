//! Faults and their repair.

use super::process::Service;
use super::run::{PowerCuts, Run};
use mgmt::limits::OFFLINE_AFTER;
use rt::sim::{HostId, NetworkOptions, World};
use std::time::Duration;

/// Longest time that a process stays down, and longest time between two faults.
pub(super) const MAX_DOWN_MS: u64 = 2_000;
pub(super) const MAX_FAULT_INTERVAL_MS: u64 = 1_000;
/// Probability, in millionths, that a segment of a stream breaks its connection.
const RESETS_PER_MILLION: u32 = 300;
/// In a bad network: probability of a delay, in millionths, and its length. It may exceed the time
/// after which peers count a connection as broken.
const BAD_SLOW_PER_MILLION: u32 = 100_000;
const BAD_SLOW_NS: (u64, u64) = (10_000_000, 1_500_000_000);
/// With management: longest duration of some faults, so that management reassigns partitions and
/// ejects members from groups.
pub(super) const MAX_LONG_FAULT_MS: u64 = 30_000;
/// Longest time that clients are cut off before the power failure of the store's host.
const MAX_CUT_OFF_MS: u64 = 20;
/// Maximum number of cut-offs until a commit occurs during one.
const MAX_CUT_OFFS: u32 = 20;
/// Maximum number of crashes of all processes in a row, the time within which the processes of one
/// round crash, and the time between rounds. The latter may be shorter or longer than clients need
/// to recover.
const MAX_KILL_ALL_ROUNDS: u64 = 4;
const MAX_KILL_ALL_SPREAD_MS: u64 = 20;
const MAX_KILL_ALL_INTERVAL_MS: u64 = 8_000;
/// Time until a process that ended itself is restarted.
const RESTART_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest offset of a clock, and its maximum drift in millionths.
const MAX_CLOCK_OFFSET_NS: u64 = 10_000_000_000;
const MAX_DRIFT_PPM: u64 = 2_000;

pub(super) fn skew_clock(world: &mut World, host: HostId) {
    let offset_ns = (world.random() % MAX_CLOCK_OFFSET_NS) as i64;
    let drift_ppm = (world.random() % (2 * MAX_DRIFT_PPM)) as i32 - MAX_DRIFT_PPM as i32;
    world.set_clock(host, offset_ns, drift_ppm);
}

pub(super) fn usual_network() -> NetworkOptions {
    NetworkOptions { resets_per_million: RESETS_PER_MILLION, ..NetworkOptions::default() }
}

impl Run {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.world.random() % limit
    }

    fn one_of(&mut self, hosts: &[HostId]) -> HostId {
        hosts[self.below(hosts.len() as u64) as usize]
    }

    pub(super) fn advance_up_to(&mut self, limit_ms: u64) {
        let time = Duration::from_millis(self.below(limit_ms));
        self.advance(time);
    }

    /// Advances time. Restarts processes that end themselves, because the store's host lost commits
    /// or because management refuses to go on with them.
    pub(super) fn advance(&mut self, time: Duration) {
        if !self.options.store_power && self.management.is_none() {
            return self.world.advance(time);
        }
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(RESTART_CHECK_INTERVAL);
            self.world.advance(step);
            left -= step;
            for service in self.cluster.take_services_to_restart() {
                self.restart(service);
            }
            self.reconnect_restarted_metas();
        }
    }

    fn restart(&mut self, service: Service) {
        let host = match service {
            Service::Metadata(index) => self.metas[index],
            Service::Storage(index) => self.storages[index],
        };
        self.log_fault("restarted", host);
        self.world.kill(host);
        match service {
            Service::Metadata(index) => self.start_meta(index),
            Service::Storage(index) => self.start_storage(index),
        }
    }

    /// Reconnects clients with metadata hosts that have opened the store since its host lost power.
    /// A metadata host that continues without that stays cut off, which makes the run fail.
    fn reconnect_restarted_metas(&mut self) {
        let opened = self.cluster.metas_with_store();
        for index in self.cut_off_metas.intersection(&opened).copied().collect::<Vec<_>>() {
            self.cut_off_metas.remove(&index);
            for client in self.clients.clone() {
                self.world.reset_connections(self.metas[index], client);
                self.world.heal(self.metas[index], client);
            }
        }
    }

    fn is_cut_off(&self, a: HostId, b: HostId) -> bool {
        let connects = |meta: HostId| {
            (a == meta && self.clients.contains(&b)) || (b == meta && self.clients.contains(&a))
        };
        self.cut_off_metas.iter().any(|index| connects(self.metas[*index]))
    }

    /// Advances time by a random amount without new faults, while applications make long pauses.
    pub(super) fn advance_up_to_with_pauses(&mut self, limit_ms: u64) {
        let time = Duration::from_millis(self.below(limit_ms));
        self.advance_with_pauses(time);
    }

    /// Advances time by the given amount, while applications make long pauses.
    pub(super) fn advance_with_pauses(&mut self, time: Duration) {
        self.recorder.long_pauses.set(true);
        self.advance(time);
        self.recorder.long_pauses.set(false);
    }

    fn all_hosts(&self) -> Vec<HostId> {
        let metas = self.metas.iter().take(1).chain(&self.storages).chain(&self.clients);
        metas.chain(self.metas.iter().skip(1)).chain(&self.store).copied().collect()
    }

    pub(super) fn log_fault(&self, what: &str, host: HostId) {
        tracing::info!(clock_s = self.clock_s(), host = self.world.name(host), "{what}");
    }

    fn log_link_fault(&self, what: &str, a: HostId, b: HostId) {
        let (one, other) = (self.world.name(a), self.world.name(b));
        tracing::info!(clock_s = self.clock_s(), one, other, "{what}");
    }

    fn clock_s(&self) -> f64 {
        self.world.clock_ns() as f64 / 1e9
    }

    /// Injects a fault, or repairs faults.
    pub(super) fn inject_fault(&mut self) -> Result<(), String> {
        let hosts = self.all_hosts();
        let (a, b) = (self.one_of(&hosts), self.one_of(&hosts));
        if self.options.cut_off_pairs && self.below(4) == 0 {
            return self.cut_off_pair();
        }
        if self.has_racks() && self.below(4) == 0 {
            return self.fail_rack();
        }
        if self.options.faults_during_resync && self.below(3) > 0 {
            return self.inject_resync_faults();
        }
        if self.options.kill_all && self.below(3) == 0 {
            self.kill_all();
            return Ok(());
        }
        let kinds = match (self.management, self.store) {
            (Some(_), _) if self.options.scheme.has_primary() => 18,
            (Some(_), _) => 14,
            (None, Some(_)) => 12,
            (None, None) => 10,
        };
        match self.below(kinds) {
            10 | 11 => self.kill_store(),
            14.. => self.crash_storages()?,
            12 => self.slow_down(),
            13 => {
                self.log_fault("clock skewed", a);
                skew_clock(&mut self.world, a);
            }
            0 | 1 if self.options.scheme.has_primary() => self.crash_storages()?,
            0 | 1 => self.kill_storage(),
            2 if self.options.metas_crash => self.kill_meta(),
            3 if self.options.clients_crash => self.kill_client(),
            4 => {
                self.log_link_fault("link cut", a, b);
                self.world.cut(a, b);
            }
            5 => {
                self.log_link_fault("link cut in one direction", a, b);
                self.world.cut_one_way(a, b);
            }
            6 => {
                self.log_link_fault("connections reset", a, b);
                self.world.reset_connections(a, b);
            }
            7 => {
                self.log_fault("stopped", a);
                self.world.stop(a);
            }
            _ => {
                self.repair();
                return Ok(());
            }
        }
        self.summary.cuts += 1;
        // Long enough for management to count a host as offline.
        if self.management.is_some() && self.below(4) == 0 {
            self.advance_up_to_with_pauses(MAX_LONG_FAULT_MS);
        }
        Ok(())
    }

    /// Cuts off a metadata service and a client from management together. Management gives the
    /// service's partitions to another one, which the client doesn't learn.
    fn cut_off_pair(&mut self) -> Result<(), String> {
        let Some(management) = self.management else { return Ok(()) };
        let (meta, client) = (self.one_of(&self.metas.clone()), self.one_of(&self.clients.clone()));
        self.log_link_fault("both cut off from management", meta, client);
        self.world.cut(meta, management);
        self.world.cut(client, management);
        self.summary.cuts += 2;
        let time = OFFLINE_AFTER + Duration::from_millis(self.below(MAX_LONG_FAULT_MS));
        self.advance_with_pauses(time);
        self.repair();
        Ok(())
    }

    fn kill_storage(&mut self) {
        let index = self.below(self.storages.len() as u64) as usize;
        self.log_fault("killed", self.storages[index]);
        let has_power = match self.options.power_cuts {
            PowerCuts::Unsynced => false,
            PowerCuts::Fsynced => self.below(2) == 0,
            _ => true,
        };
        match has_power {
            true => self.world.kill(self.storages[index]),
            false => self.world.crash(self.storages[index]),
        }
        self.summary.kills += 1;
        self.advance_up_to(MAX_DOWN_MS);
        self.log_fault("started", self.storages[index]);
        self.start_storage(index);
    }

    /// Storage hosts with replicas crash or lose power: one, some, or all at once.
    fn crash_storages(&mut self) -> Result<(), String> {
        let is_one_at_a_time = self.options.power_cuts == PowerCuts::OneAtATime;
        if is_one_at_a_time {
            // Each member may be the only one with data that the others haven't synced.
            self.repair();
            self.await_in_sync()?;
        }
        let mut left: Vec<usize> = (0..self.storages.len()).collect();
        let count = match self.below(8) {
            _ if is_one_at_a_time => 1,
            0..=3 => 1,
            4 | 5 => 2,
            6 => 3.min(left.len()),
            _ => left.len(),
        };
        let limit = [MAX_DOWN_MS, MAX_LONG_FAULT_MS][self.below(2) as usize];
        let mut dead = Vec::new();
        for _ in 0..count {
            let index = left.remove(self.below(left.len() as u64) as usize);
            self.crash_storage(index);
            dead.push((self.below(limit), index));
        }
        dead.sort_unstable();
        let mut elapsed_ms = 0;
        for (after_ms, index) in dead {
            self.recorder.long_pauses.set(limit == MAX_LONG_FAULT_MS);
            self.advance(Duration::from_millis(after_ms - elapsed_ms));
            self.recorder.long_pauses.set(false);
            elapsed_ms = after_ms;
            self.log_fault("started", self.storages[index]);
            self.start_storage(index);
        }
        if is_one_at_a_time { self.await_in_sync() } else { Ok(()) }
    }

    fn has_racks(&self) -> bool {
        self.options.racks > 0 && self.options.scheme.has_primary()
    }

    /// All storage hosts of a rack crash or lose power at once, or are cut off from all other
    /// hosts.
    fn fail_rack(&mut self) -> Result<(), String> {
        let is_one_at_a_time = self.options.power_cuts == PowerCuts::OneAtATime;
        if is_one_at_a_time {
            // The other racks have all data, since no two members are in one rack.
            self.repair();
            self.await_in_sync()?;
        }
        let rack = self.below(self.options.racks as u64) as usize;
        let racks = self.options.racks;
        let inside: Vec<usize> = (0..self.storages.len()).filter(|index| index % racks == rack).collect();
        let limit = [MAX_DOWN_MS, MAX_LONG_FAULT_MS][self.below(2) as usize];
        tracing::info!(clock_s = self.clock_s(), rack, "rack failed");
        let is_cut = self.below(3) == 0;
        let own: Vec<HostId> = inside.iter().map(|index| self.storages[*index]).collect();
        let others: Vec<HostId> = self.all_hosts().into_iter().filter(|host| !own.contains(host)).collect();
        let management = self.management;
        let links: Vec<(HostId, HostId)> =
            own.iter().flat_map(|a| others.iter().chain(&management).map(move |b| (*a, *b))).collect();
        match is_cut {
            true => links.iter().for_each(|(a, b)| self.world.cut(*a, *b)),
            false => inside.iter().for_each(|index| self.crash_storage(*index)),
        }
        self.summary.cuts += 1;
        match limit {
            MAX_LONG_FAULT_MS => self.advance_up_to_with_pauses(limit),
            _ => self.advance_up_to(limit),
        }
        match is_cut {
            true => links.iter().for_each(|(a, b)| self.world.heal(*a, *b)),
            false => inside.iter().for_each(|index| self.start_storage(*index)),
        }
        if is_one_at_a_time { self.await_in_sync() } else { Ok(()) }
    }

    pub(super) fn crash_storage(&mut self, index: usize) {
        let host = self.storages[index];
        let has_power = match self.options.power_cuts {
            PowerCuts::Never => true,
            PowerCuts::Unsynced | PowerCuts::OneAtATime => false,
            PowerCuts::Synced | PowerCuts::Fsynced => self.below(2) == 0,
        };
        self.summary.kills += 1;
        if has_power {
            self.log_fault("killed", host);
            self.world.kill(host);
        } else {
            self.log_fault("lost power", host);
            self.world.crash(host);
        }
        self.cluster.cancel_restart(Service::Storage(index));
    }

    fn kill_meta(&mut self) {
        self.summary.kills += 1;
        if self.management.is_none() {
            self.log_fault("killed", self.metas[0]);
            self.world.kill(self.metas[0]);
            self.cluster.engine.kill();
            self.advance_up_to(MAX_DOWN_MS);
            return self.start_meta(0);
        }
        let index = self.below(self.metas.len() as u64) as usize;
        let limit = [MAX_DOWN_MS, MAX_LONG_FAULT_MS][self.below(2) as usize];
        self.log_fault("killed", self.metas[index]);
        self.world.kill(self.metas[index]);
        self.cluster.cancel_restart(Service::Metadata(index));
        match limit {
            MAX_LONG_FAULT_MS => self.advance_up_to_with_pauses(limit),
            _ => self.advance_up_to(limit),
        }
        self.log_fault("started", self.metas[index]);
        self.start_meta(index);
    }

    /// Crashes the process of the store, which may be management's.
    pub(super) fn kill_store(&mut self) {
        let Some(host) = self.store else { return };
        if self.options.store_power && self.below(2) == 0 {
            return self.cut_power_of_store(host);
        }
        self.log_fault("killed", host);
        self.world.kill(host);
        self.cluster.engine.kill();
        self.summary.kills += 1;
        self.advance_up_to(MAX_DOWN_MS);
        self.log_fault("started", host);
        self.start_store();
        self.start_management();
    }

    /// The store's host loses power, together with some of the last commits. No application has
    /// seen those commits: clients get no replies before, replies in flight never arrive, and all
    /// metadata hosts are cut off from clients until they have restarted.
    ///
    /// If metadata hosts are still cut off since the last power failure, no commits are lost: their
    /// later commits may become visible as soon as they are reconnected.
    fn cut_power_of_store(&mut self, host: HostId) {
        let links: Vec<(HostId, HostId)> = self
            .metas
            .iter()
            .flat_map(|meta| self.clients.iter().map(move |client| (*meta, *client)))
            .collect();
        let last =
            if self.cut_off_metas.is_empty() { self.commits_while_clients_are_cut_off(&links) } else { 0 };
        links.iter().for_each(|(meta, client)| self.world.cut_one_way(*meta, *client));
        let lost = self.below(last + 1);
        tracing::info!(
            last,
            lost,
            unsynced = self.cluster.engine.unsynced(),
            "commits that no application has seen"
        );
        self.log_fault("lost power", host);
        self.world.crash(host);
        let (applied, unsynced) = (self.cluster.engine.applied(), self.cluster.engine.unsynced());
        self.cluster.engine.crash(unsynced.saturating_sub(lost as usize));
        self.summary.lost_commits += applied - self.cluster.engine.applied();
        if let Some(management_state) = &self.cluster.management_state {
            management_state.engine.crash(0);
        }
        self.summary.kills += 1;
        self.cluster.clear_metas_with_store();
        self.cut_off_metas = (0..self.metas.len()).collect();
        self.advance_up_to(MAX_DOWN_MS);
        self.log_fault("started", host);
        self.start_store();
        self.start_management();
    }

    /// Cuts clients off from all metadata hosts until commits occur, for a limited time. Returns
    /// the number of these commits.
    fn commits_while_clients_are_cut_off(&mut self, links: &[(HostId, HostId)]) -> u64 {
        for _ in 0..MAX_CUT_OFFS {
            links.iter().for_each(|(meta, client)| self.world.cut_one_way(*meta, *client));
            let before = self.cluster.engine.applied();
            self.advance_up_to(MAX_CUT_OFF_MS);
            let last = self.cluster.engine.applied() - before;
            if last > 0 {
                return last;
            }
            // No change was in flight.
            links.iter().for_each(|(meta, client)| self.world.heal(*meta, *client));
            self.advance_up_to(MAX_CUT_OFF_MS);
        }
        0
    }

    /// Crashes and restarts the processes of all services, several times in a row.
    fn kill_all(&mut self) {
        for _ in 0..=self.below(MAX_KILL_ALL_ROUNDS) {
            tracing::info!(clock_s = self.clock_s(), "all services killed");
            // All of them are killed.
            let _ = self.cluster.take_services_to_restart();
            let mut hosts: Vec<HostId> =
                self.storages.iter().chain(&self.metas).chain(&self.store).copied().collect();
            self.summary.kills += hosts.len() as u64;
            while !hosts.is_empty() {
                let index = self.below(hosts.len() as u64) as usize;
                self.world.kill(hosts.swap_remove(index));
                self.advance_up_to(MAX_KILL_ALL_SPREAD_MS);
            }
            self.cluster.engine.kill();
            self.advance_up_to(MAX_DOWN_MS);
            self.start_all();
            self.advance_up_to(MAX_KILL_ALL_INTERVAL_MS);
        }
    }

    /// Starts the processes of all services, one after the other.
    fn start_all(&mut self) {
        self.start_store();
        self.start_management();
        let (storages, metas) = (self.storages.len(), self.metas.len());
        let mut dead: Vec<usize> = (0..storages + metas).collect();
        while !dead.is_empty() {
            let index = self.below(dead.len() as u64) as usize;
            match dead.swap_remove(index) {
                storage if storage < storages => self.start_storage(storage),
                meta => self.start_meta(meta - storages),
            }
            self.advance_up_to(MAX_DOWN_MS / 4);
        }
    }

    /// Makes the network slow from now on, which breaks connections.
    fn slow_down(&mut self) {
        tracing::info!(clock_s = self.clock_s(), "network slowed down");
        let (slow_per_million, slow_ns) = (BAD_SLOW_PER_MILLION, BAD_SLOW_NS);
        self.world.set_network(NetworkOptions { slow_per_million, slow_ns, ..usual_network() });
    }

    fn kill_client(&mut self) {
        let index = self.below(self.clients.len() as u64) as usize;
        self.log_fault("killed", self.clients[index]);
        self.world.kill(self.clients[index]);
        self.summary.kills += 1;
        self.advance_up_to(MAX_DOWN_MS);
        self.log_fault("started", self.clients[index]);
        self.start_client(index);
    }

    pub(super) fn repair(&mut self) {
        tracing::info!(clock_s = self.clock_s(), "all faults repaired");
        self.world.set_network(usual_network());
        let hosts = self.all_hosts();
        for (index, &a) in hosts.iter().enumerate() {
            self.world.resume(a);
            for &b in &hosts[index..] {
                if !self.is_cut_off(a, b) {
                    self.world.heal(a, b);
                }
            }
        }
    }
}
