//! The parts of a service, and which part uses which.
//!
//! From the bottom up: state (executors, sessions, leases, locks), [`Commands`], recovery of what
//! ended sessions leave behind, the end of sessions, their registration, and ownership of
//! partitions. A part refers only to parts below it, with one exception: a command waits for
//! recalls, and a wait evicts the session that doesn't acknowledge.

use super::{MetaOptions, MetaService};
use crate::data::chunks::ChunkFiles;
use crate::data::group_creation::OnDemandGroups;
use crate::data::orphans::Orphans;
use crate::data::quarantine::Quarantine;
use crate::data::reaper::Reaper;
use crate::data::reconciliation::Reconciliation;
use crate::data::references::References;
use crate::data::reported_sizes::ReportedSizes;
use crate::data::size_recovery::SizeRecovery;
use crate::data::truncations::PendingTruncations;
use crate::drain::{Claims, Drainer, Drains, ExclusiveAccess, Migrations, Migrator, StripeMover};
use crate::lease::coherence::Coherence;
use crate::lease::recalls::RecallWaits;
use crate::lease::table::Leases;
use crate::partition::executor::Executors;
use crate::partition::ownership::Ownership;
use crate::partition::peers::PeerServices;
use crate::partition::serving::Serving;
use crate::service::command::Commands;
use crate::session::capabilities::Capabilities;
use crate::session::cleanup::SessionCleanup;
use crate::session::eviction::Eviction;
use crate::session::exports::AccessRules;
use crate::session::fencing::Fencing;
use crate::session::grace_period::{GracePeriod, SessionReturns};
use crate::session::locks::Locks;
use crate::session::records::SessionRecords;
use crate::session::registration::Registration;
use crate::session::table::Sessions;
use kv::Store;
use parking_lot::Mutex;
use routing::StorageChannels;
use std::sync::{Arc, OnceLock};
use types::MapHandle;

/// State that several parts share.
struct State {
    options: MetaOptions,
    map: MapHandle,
    peers: Option<Arc<PeerServices>>,
    serving: Arc<Serving>,
    executors: Arc<Executors>,
    sessions: Arc<Sessions>,
    records: Arc<SessionRecords>,
    grace: Arc<GracePeriod>,
    locks: Arc<Locks>,
    leases: Arc<Leases>,
    chunks: Arc<ChunkFiles>,
    claims: Arc<Claims>,
    truncations: Arc<PendingTruncations>,
    quarantine: Arc<Quarantine>,
    reported_sizes: Arc<ReportedSizes>,
    drains: Arc<Drains>,
}

/// Creates a service that owns no partition yet.
pub(super) fn assemble(
    store: Arc<dyn Store>,
    options: MetaOptions,
    map: MapHandle,
    storage: StorageChannels,
    peers: Option<Arc<PeerServices>>,
) -> Arc<MetaService> {
    let process = rt::random_u64().max(1);
    let executors = Arc::new(Executors::new(store, options.node, options.partitions));
    let state = State {
        options,
        records: Arc::new(SessionRecords::new(executors.clone(), peers.is_some())),
        chunks: Arc::new(ChunkFiles { map: map.clone(), channels: storage }),
        map,
        serving: Arc::new(Serving::new(peers.clone())),
        peers,
        executors,
        sessions: Arc::default(),
        grace: Arc::default(),
        locks: Arc::default(),
        leases: Arc::default(),
        claims: Arc::default(),
        truncations: Arc::default(),
        quarantine: Arc::default(),
        reported_sizes: Arc::default(),
        drains: Arc::default(),
    };
    let reaper = state.reaper();
    let recalls = state.recall_waits();
    let commands = state.commands(&recalls, &reaper);
    let sizes = state.size_recovery(&commands);
    let orphans = state.orphans(&commands);
    let eviction = state.eviction(&sizes, &orphans);
    _ = recalls.eviction.set(Arc::downgrade(&eviction));
    let ownership = state.ownership(&eviction, &sizes, &orphans, &reaper);
    let exclusive = state.exclusive_access(&recalls);
    let mover = state.stripe_mover(&exclusive, &reaper);
    let references =
        Arc::new(References { executors: state.executors.clone(), chunks: state.chunks.clone() });
    let migrations = Arc::<Migrations>::default();
    Arc::new(MetaService {
        process,
        shares_partitions: state.peers.is_some(),
        capabilities: Capabilities::new(state.leases.clone()),
        access_rules: AccessRules::new(state.map.clone()),
        groups: OnDemandGroups::new(commands.clone()),
        registration: state.registration(&eviction, &sizes, &commands),
        reconciliation: state.reconciliation(&commands, &exclusive),
        drainer: state.drainer(&ownership, &references, &mover, &reaper),
        migrator: state.migrator(&migrations, &mover),
        recalls,
        sizes,
        eviction,
        ownership,
        reaper,
        references,
        migrations,
        serving: state.serving,
        executors: state.executors,
        sessions: state.sessions,
        grace: state.grace,
        locks: state.locks,
        leases: state.leases,
        drains: state.drains,
    })
}

impl State {
    fn reaper(&self) -> Arc<Reaper> {
        Arc::new(Reaper {
            executors: self.executors.clone(),
            leases: self.leases.clone(),
            chunks: self.chunks.clone(),
            claims: self.claims.clone(),
            serving: self.serving.clone(),
            requested: Mutex::default(),
            needed: rt::sync::Event::new(),
        })
    }

    fn recall_waits(&self) -> Arc<RecallWaits> {
        Arc::new(RecallWaits {
            sessions: self.sessions.clone(),
            leases: self.leases.clone(),
            grace: self.grace.clone(),
            map: self.map.clone(),
            serving: self.serving.clone(),
            eviction: OnceLock::new(),
        })
    }

    fn commands(&self, recalls: &Arc<RecallWaits>, reaper: &Arc<Reaper>) -> Arc<Commands> {
        Arc::new(Commands {
            options: self.options,
            map: self.map.clone(),
            executors: self.executors.clone(),
            coherence: Coherence::new(self.sessions.clone(), self.leases.clone()),
            recalls: recalls.clone(),
            truncations: self.truncations.clone(),
            peers: self.peers.clone(),
            serving: self.serving.clone(),
            reaper: reaper.clone(),
        })
    }

    fn size_recovery(&self, commands: &Arc<Commands>) -> Arc<SizeRecovery> {
        Arc::new(SizeRecovery {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            leases: self.leases.clone(),
            grace: self.grace.clone(),
            chunks: self.chunks.clone(),
            commands: commands.clone(),
            truncations: self.truncations.clone(),
            quarantine: self.quarantine.clone(),
            reported_sizes: self.reported_sizes.clone(),
            serving: self.serving.clone(),
        })
    }

    fn orphans(&self, commands: &Arc<Commands>) -> Arc<Orphans> {
        Arc::new(Orphans {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            leases: self.leases.clone(),
            commands: commands.clone(),
            serving: self.serving.clone(),
        })
    }

    fn eviction(&self, sizes: &Arc<SizeRecovery>, orphans: &Arc<Orphans>) -> Arc<Eviction> {
        let cleanup = SessionCleanup {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            locks: self.locks.clone(),
            leases: self.leases.clone(),
            truncations: self.truncations.clone(),
            records: self.records.clone(),
            orphans: orphans.clone(),
            sizes: sizes.clone(),
            serving: self.serving.clone(),
        };
        let returns = SessionReturns {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            grace: self.grace.clone(),
            quarantine: self.quarantine.clone(),
            reported_sizes: self.reported_sizes.clone(),
            shares_partitions: self.peers.is_some(),
        };
        Arc::new(Eviction {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            records: self.records.clone(),
            fencing: Fencing::new(self.chunks.clone()),
            cleanup,
            grace: self.grace.clone(),
            returns: Arc::new(returns),
            peers: self.peers.clone(),
            serving: self.serving.clone(),
            requested: Default::default(),
        })
    }

    fn ownership(
        &self,
        eviction: &Arc<Eviction>,
        sizes: &Arc<SizeRecovery>,
        orphans: &Arc<Orphans>,
        reaper: &Arc<Reaper>,
    ) -> Arc<Ownership> {
        Arc::new(Ownership {
            options: self.options,
            map: self.map.clone(),
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            locks: self.locks.clone(),
            leases: self.leases.clone(),
            truncations: self.truncations.clone(),
            reported_sizes: self.reported_sizes.clone(),
            grace: self.grace.clone(),
            returns: eviction.returns.clone(),
            eviction: eviction.clone(),
            sizes: sizes.clone(),
            orphans: orphans.clone(),
            reaper: reaper.clone(),
            peers: self.peers.clone(),
            serving: self.serving.clone(),
        })
    }

    fn registration(
        &self,
        eviction: &Arc<Eviction>,
        sizes: &Arc<SizeRecovery>,
        commands: &Arc<Commands>,
    ) -> Registration {
        Registration {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            records: self.records.clone(),
            locks: self.locks.clone(),
            leases: self.leases.clone(),
            grace: self.grace.clone(),
            returns: eviction.returns.clone(),
            eviction: eviction.clone(),
            sizes: sizes.clone(),
            commands: commands.clone(),
            drains: self.drains.clone(),
            shares_partitions: self.peers.is_some(),
        }
    }

    fn exclusive_access(&self, recalls: &Arc<RecallWaits>) -> Arc<ExclusiveAccess> {
        Arc::new(ExclusiveAccess {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            leases: self.leases.clone(),
            recalls: recalls.clone(),
            quarantine: self.quarantine.clone(),
            drains: self.drains.clone(),
            serving: self.serving.clone(),
        })
    }

    fn reconciliation(
        &self,
        commands: &Arc<Commands>,
        exclusive: &Arc<ExclusiveAccess>,
    ) -> Arc<Reconciliation> {
        Arc::new(Reconciliation {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            leases: self.leases.clone(),
            chunks: self.chunks.clone(),
            claims: self.claims.clone(),
            commands: commands.clone(),
            exclusive: exclusive.clone(),
            serving: self.serving.clone(),
        })
    }

    fn stripe_mover(&self, exclusive: &Arc<ExclusiveAccess>, reaper: &Arc<Reaper>) -> Arc<StripeMover> {
        Arc::new(StripeMover {
            executors: self.executors.clone(),
            leases: self.leases.clone(),
            chunks: self.chunks.clone(),
            claims: self.claims.clone(),
            exclusive: exclusive.clone(),
            reaper: reaper.clone(),
            serving: self.serving.clone(),
        })
    }

    fn drainer(
        &self,
        ownership: &Arc<Ownership>,
        references: &Arc<References>,
        mover: &Arc<StripeMover>,
        reaper: &Arc<Reaper>,
    ) -> Arc<Drainer> {
        Arc::new(Drainer {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            grace: self.grace.clone(),
            ownership: ownership.clone(),
            chunks: self.chunks.clone(),
            references: references.clone(),
            drains: self.drains.clone(),
            mover: mover.clone(),
            reaper: reaper.clone(),
            serving: self.serving.clone(),
        })
    }

    fn migrator(&self, migrations: &Arc<Migrations>, mover: &Arc<StripeMover>) -> Arc<Migrator> {
        Arc::new(Migrator {
            executors: self.executors.clone(),
            sessions: self.sessions.clone(),
            grace: self.grace.clone(),
            chunks: self.chunks.clone(),
            drains: self.drains.clone(),
            migrations: migrations.clone(),
            mover: mover.clone(),
            serving: self.serving.clone(),
        })
    }
}
