//! The service: receives requests, makes checked changes of the map, and returns views of it.

use crate::authority::MembershipAuthority;
use crate::health::{
    Certificates, health, with_backups, with_certificates, with_findings, with_lost, with_store,
};
use crate::limits::{HEARTBEAT_INTERVAL, SERVING_LEASE, WATCH_INTERVAL};
use crate::management::{Management, Metadata};
use crate::map_changes::{ManagementIdentity, check_clock, check_version};
use crate::member_states::{self, MemberReport};
use crate::refusal;
use crate::superblock::Superblock;
use net::{Caller, Handler, LocalFuture};
use rt::IoBuf;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::{
    ClusterMap, Epoch, Errno, Error, Export, ExportAccess, ExportClients, NodeId, Result, Target, TargetId,
    TargetState,
};
use wire::authorization::Principal;
use wire::mgmt::{
    Alive, Heartbeat, Join, Joined, MAX_RECONCILE_FILES, NodeInfo, Register, Registered, Secret, TargetInfo,
    UnreachableNode,
};
use wire::{MgmtReply, MgmtRequest};

impl Handler<MgmtRequest, MgmtReply> for Management {
    /// Requests of an administrator on this machine, who may do everything.
    fn handle(&self, request: MgmtRequest, _payload: Option<IoBuf>) -> LocalFuture<'_, Result<MgmtReply>> {
        Box::pin(self.answer(request))
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: MgmtRequest,
        _payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<MgmtReply>> {
        Box::pin(async move {
            match request {
                MgmtRequest::Attach { cluster, version, clock_s } => {
                    self.attach_from(caller, &cluster, &version, clock_s)
                }
                MgmtRequest::SetMember { group, since, target, state, reason, orderly } => {
                    let report = MemberReport { group, since, target, state, orderly };
                    self.set_member(reporting_node(caller)?, report, &reason).await
                }
                MgmtRequest::Renew { member, csr } => self.renew(Some(caller), &member, &csr),
                MgmtRequest::Register(_) | MgmtRequest::Heartbeat(_) => {
                    self.note_certificate(caller);
                    self.answer(request).await
                }
                MgmtRequest::CertifyApi { node, csr, names } => {
                    require_own_names(&self.current(), node, &names)?;
                    self.certify_api(&csr, &names)
                }
                MgmtRequest::ReportUnreachable { member, nodes } => {
                    let ip = caller.address.inet().map_or_else(String::new, |at| at.ip().to_string());
                    self.note_report(caller.client, (&reporter(caller, member), &ip), nodes)
                }
                request => self.answer(request).await,
            }
        })
    }
}

/// Refuses more files than one reconciliation request may name.
fn check_reconcile_size(files: &[types::ChunkFileId]) -> Result<()> {
    if files.len() <= MAX_RECONCILE_FILES {
        return Ok(());
    }
    Err(Error::new(Errno::E2BIG, format!("{} files to reconcile at a time", files.len()))
        .hint(format!("name at most {MAX_RECONCILE_FILES}")))
}

/// The node that reports on a member; `None` where connections prove nothing.
fn reporting_node(caller: &Caller) -> Result<Option<NodeId>> {
    match caller.proof.principal() {
        Principal::Unauthenticated => Ok(None),
        Principal::Node(node) => Ok(Some(node)),
        Principal::NoCertificate | Principal::Client => Err(refusal::not_allowed(&caller.name)),
    }
}

/// The sender of a report, for display: its own name for itself proves nothing.
fn reporter(caller: &Caller, member: String) -> String {
    match caller.proof.role() {
        Some(role) => format!("{role} ({member})"),
        None => member,
    }
}

/// Refuses names by which a node could impersonate another machine.
fn require_own_names(map: &ClusterMap, node: NodeId, names: &[String]) -> Result<()> {
    let known = map.node(node).ok_or_else(|| refusal::no_node(node))?;
    let addresses = known.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
    let ips: Vec<IpAddr> = addresses.map(|address| address.ip().to_canonical()).collect();
    let is_own = |name: &str| match name.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback() || ips.contains(&ip.to_canonical()),
        Err(_) => name == "localhost" || name == known.name,
    };
    match names.iter().find(|name| !is_own(name)) {
        None => Ok(()),
        Some(name) => Err(refusal::foreign_name(known, name)),
    }
}

impl Management {
    async fn answer(&self, request: MgmtRequest) -> Result<MgmtReply> {
        match request {
            MgmtRequest::Join(join) => self.join(join).await,
            MgmtRequest::Register(register) => self.register(register).await,
            MgmtRequest::Heartbeat(heartbeat) => self.heartbeat(heartbeat).await,
            MgmtRequest::Goodbye { node, instance } => self.goodbye(node, instance).await,
            MgmtRequest::Attach { cluster, version, clock_s } => self.attach(&cluster, &version, clock_s),
            MgmtRequest::WatchMap { after } => Ok(MgmtReply::Map { map: self.watch(after).await }),
            MgmtRequest::ReportUnreachable { member, nodes } => self.note_report(0, (&member, ""), nodes),
            MgmtRequest::AddTarget { node, path, pool } => self.add_target(node, &path, &pool).await,
            MgmtRequest::Reconcile { target, touched } => {
                check_reconcile_size(&touched.files)?;
                self.metadata()?.reconcile(target, touched).await.map(|()| MgmtReply::Done)
            }
            MgmtRequest::ReconcileGroup { group, touched } => {
                check_reconcile_size(&touched.files)?;
                self.metadata()?.reconcile_group(group, touched).await.map(|()| MgmtReply::Done)
            }
            MgmtRequest::ListNodes => Ok(MgmtReply::Nodes { nodes: self.nodes() }),
            MgmtRequest::ListTargets => Ok(MgmtReply::Targets { targets: self.targets().await }),
            MgmtRequest::ListPools => Ok(MgmtReply::Pools { pools: self.pools() }),
            MgmtRequest::ListExports => {
                self.require_cluster()?;
                Ok(MgmtReply::Exports { exports: self.current().exports.clone() })
            }
            MgmtRequest::ListSessions => {
                Ok(MgmtReply::Sessions { sessions: self.metadata()?.sessions().await? })
            }
            MgmtRequest::ListMetas => Ok(MgmtReply::Metas { metas: self.metas_now().await? }),
            MgmtRequest::RebalanceMetas => {
                self.require_cluster()?;
                tracing::info!("administrator requests an even distribution of partitions");
                self.refresh().await?;
                Ok(MgmtReply::Metas { metas: self.metas_now().await? })
            }
            MgmtRequest::EvictSession { session } => {
                self.metadata()?.evict(session).await.map(|()| MgmtReply::Done)
            }
            MgmtRequest::Health => Ok(self.health_report()),
            MgmtRequest::ListScrubs => Ok(MgmtReply::Scrubs {
                settings: self.current().settings.scrub.clone(),
                scrubs: self.scrubs(),
            }),
            MgmtRequest::NoteCeilings { ceilings } => self.note_ceilings(ceilings).await,
            MgmtRequest::ListCeilings => {
                Ok(MgmtReply::Ceilings { ceilings: self.ceilings().all(), drives: self.drives() })
            }
            MgmtRequest::ListGroups => Ok(MgmtReply::Groups { groups: self.groups() }),
            MgmtRequest::MakeGroups { pool, scheme } => self.make_groups(&pool, scheme).await,
            MgmtRequest::ListResyncs => Ok(MgmtReply::Resyncs {
                settings: self.current().settings.resync.clone(),
                members: self.resyncs(),
            }),
            MgmtRequest::RebalanceGroups { pool, dry_run } => self.rebalance_groups(&pool, dry_run).await,
            MgmtRequest::RecoverGroup { group, from, accept_loss } => {
                self.recover_group(group, from, accept_loss).await
            }
            MgmtRequest::SetMember { group, since, target, state, reason, orderly } => {
                let report = MemberReport { group, since, target, state, orderly };
                self.set_member(None, report, &reason).await
            }
            MgmtRequest::NewToken(_)
            | MgmtRequest::ListTokens
            | MgmtRequest::RevokeToken { .. }
            | MgmtRequest::AddClient(_)
            | MgmtRequest::ListClients
            | MgmtRequest::RevokeClient { .. }
            | MgmtRequest::Renew { .. } => self.answer_membership(request).await,
            MgmtRequest::CertifyApi { csr, names, .. } => self.certify_api(&csr, &names),
            MgmtRequest::RemoveTarget { target, accept_loss } => {
                self.remove_target(target, accept_loss).await
            }
            MgmtRequest::SetPool { target, pool } => self.set_pool(target, &pool).await,
            administrative => self.administer(administrative).await,
        }
    }

    /// Records which nodes a member reports as unreachable.
    fn note_report(
        &self,
        process: u64,
        member: (&str, &str),
        nodes: Vec<UnreachableNode>,
    ) -> Result<MgmtReply> {
        self.reachability().report(process, member, nodes, rt::monotonic_ns());
        Ok(MgmtReply::Done)
    }

    /// Changes of the map that need no other service.
    async fn administer(&self, request: MgmtRequest) -> Result<MgmtReply> {
        // As JSON, which is what commands and programs send.
        let text = serde_json::to_string(&request).unwrap_or_default();
        tracing::info!(operation = request.spec().name, "an administrator's request: {text}");
        if let MgmtRequest::SetExport { .. } | MgmtRequest::RemoveExport { .. } = request {
            self.require_cluster()?;
        }
        if let MgmtRequest::SetExport { rule } = &request
            && matches!(rule.clients, ExportClients::Client(_))
            && !self.authority()?.proves_names()
        {
            return Err(refusal::no_proven_names(&rule.clients));
        }
        self.change(|roster| match &request {
            MgmtRequest::RenameNode { node, name } => roster.rename_node(*node, name),
            MgmtRequest::SetRack { node, rack } => roster.set_rack(*node, rack.as_deref()),
            MgmtRequest::SetNode { node, changes } => roster.set_node(*node, changes),
            MgmtRequest::RemoveNode { node } => roster.remove_node(*node),
            MgmtRequest::SetDrain { target, drain } => roster.set_drain(*target, *drain),
            MgmtRequest::RenamePool { pool, name } => roster.rename_pool(pool, name),
            MgmtRequest::RemovePool { pool } => roster.remove_pool(pool),
            MgmtRequest::SetExport { rule } => roster.set_export(rule),
            MgmtRequest::RemoveExport { clients } => roster.remove_export(clients),
            MgmtRequest::SetResync { settings } => roster.set_resync(settings),
            MgmtRequest::SetScrub { settings } => roster.set_scrub(settings),
            MgmtRequest::SetChecksums { on } => {
                roster.set_checksums(*on);
                Ok(())
            }
            MgmtRequest::SetSpare { pool, percent } => roster.set_spare(pool, *percent),
            other => Err(Error::new(Errno::EPROTO, format!("{other:?} is answered elsewhere"))),
        })
        .await?;
        if let MgmtRequest::RemoveNode { node } = request {
            self.liveness().forget(node);
        }
        self.sync().await?;
        Ok(MgmtReply::Done)
    }

    async fn join(&self, join: Join) -> Result<MgmtReply> {
        let (superblock, host) = self.require_cluster()?;
        let (authority, now_s) = (self.authority()?, rt::now().secs);
        authority.check(&join, now_s)?;
        let joined = self.change(|roster| {
            let node = roster.join(&join, host, now_s)?;
            let certificate = authority.admit(&join, node.id, now_s)?;
            Ok::<_, Error>((node, certificate))
        });
        let (node, certificate) = joined.await?;
        // The number must not be assigned to another machine after a power failure.
        self.sync().await?;
        let facts = superblock.constants();
        Ok(MgmtReply::Joined(Joined {
            node: node.id,
            name: node.name,
            facts,
            certificate,
            map: self.current(),
        }))
    }

    async fn register(&self, register: Register) -> Result<MgmtReply> {
        let (_, host) = self.require_cluster()?;
        let (node, instance, now_s) = (register.node, register.instance, rt::now().secs);
        let is_new = self.change(|roster| {
            let mut liveness = self.liveness();
            roster.register(&register, &liveness, host, now_s)?;
            let now_ns = rt::monotonic_ns();
            // The same process may repeat the request, if an answer was lost.
            let is_new = liveness.process(node).map_or(!register.again, |seen| seen.instance != instance);
            if is_new {
                let presence = liveness.reachability_snapshot(&roster.map, now_ns);
                member_states::handle_restart(&mut roster.map, node, &presence);
            }
            liveness.note_registration(node, instance, now_ns);
            liveness.set_has_foreign_addresses(node, register.is_elsewhere);
            liveness.note_heartbeat(
                node,
                instance,
                register.clock_s.saturating_sub(now_s),
                &register.targets,
                now_ns,
            );
            Ok::<_, Error>(is_new)
        });
        let is_new = is_new.await?;
        tracing::info!(node = node.0, targets = register.targets.len(), "node {node} has registered");
        let (keys, map) = (self.keys(now_s)?, self.current());
        if is_new {
            self.members().note_restarted(&map, node);
            // It has served no client yet, and will use this map.
            self.liveness().note_map(node, instance, map.epoch, &[]);
            self.notify_heartbeat();
        }
        Ok(MgmtReply::Registered(Registered {
            lease_ms: lease_ms(),
            map,
            keys,
            time_s: self.cluster_time_s(),
        }))
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<MgmtReply> {
        self.require_cluster()?;
        let (node, before) = (heartbeat.node, self.current());
        if before.node(node).is_none() {
            return Err(refusal::removed_node(node));
        }
        let skew_s = heartbeat.clock_s.saturating_sub(rt::now().secs);
        let (is_registered, was_skewed) = {
            let mut liveness = self.liveness();
            let was_skewed = liveness.process(node).map(|seen| seen.is_skewed());
            let is_registered = liveness.note_heartbeat(
                node,
                heartbeat.instance,
                skew_s,
                &heartbeat.targets,
                rt::monotonic_ns(),
            );
            (is_registered, was_skewed)
        };
        match (is_registered, was_skewed) {
            (true, _) => {}
            (false, None) => return Err(refusal::unregistered(node)),
            (false, Some(_)) => return Err(refusal::replaced(node)),
        }
        self.liveness().note_map(node, heartbeat.instance, heartbeat.epoch, &heartbeat.resyncs);
        self.liveness().note_scrubs(node, heartbeat.instance, &heartbeat.scrubs);
        self.notify_heartbeat();
        if was_skewed == Some(false)
            && let Err(e) = check_clock(&format!("node {node}"), skew_s)
        {
            tracing::error!(node = node.0, hint = &*e.hint, "{}", e.message);
        }
        // A returning node, or one with a target that appears or disappears, doesn't wait for the
        // next periodic refresh.
        let needs_refresh = before.node(node).is_some_and(|n| n.state != types::NodeState::Online)
            || heartbeat.targets.iter().any(|report| {
                let known = before.target(report.target);
                known.is_some_and(|t| (t.state == types::TargetState::Online) != report.space.is_some())
            })
            || has_released_member(&before, node);
        if needs_refresh {
            self.refresh().await?;
        }
        let map = Some(self.current()).filter(|map| map.epoch > heartbeat.epoch);
        let keys = self.keys(rt::now().secs)?;
        Ok(MgmtReply::Alive(Alive { lease_ms: lease_ms(), map, keys, time_s: self.cluster_time_s() }))
    }

    /// Wakes the tasks that wait for a node's confirmation.
    fn notify_heartbeat(&self) {
        self.heartbeat_received.set();
        self.heartbeat_received.clear();
    }

    async fn goodbye(&self, node: NodeId, instance: u64) -> Result<MgmtReply> {
        {
            let mut liveness = self.liveness();
            match liveness.process(node) {
                Some(seen) if seen.instance == instance => liveness.forget(node),
                _ => return Ok(MgmtReply::Done),
            }
        }
        self.change(|roster| {
            roster.set_node_state(node, types::NodeState::Offline);
            let presence = self.reachability_snapshot(&roster.map);
            member_states::handle_shutdown(&mut roster.map, node, &presence);
            Ok::<_, Error>(())
        })
        .await?;
        self.notify_heartbeat();
        Ok(MgmtReply::Done)
    }

    fn attach(&self, cluster: &str, version: &str, clock_s: i64) -> Result<MgmtReply> {
        let (superblock, host) = self.require_cluster()?;
        if cluster != host.uuid {
            return Err(refusal::other_cluster(cluster, &host.uuid));
        }
        check_version("this client", version, &host.version)?;
        check_clock("this client", clock_s.saturating_sub(rt::now().secs))?;
        let (facts, map) = (superblock.constants(), self.current());
        Ok(MgmtReply::Welcome { facts, map, export: Export::default() })
    }

    /// The same for a client over a connection: the rule for its address decides whether it may
    /// mount, and how.
    fn attach_from(&self, caller: &Caller, cluster: &str, version: &str, clock_s: i64) -> Result<MgmtReply> {
        let exports = net::Exports::default();
        exports.apply_map(&self.current());
        let export = exports.of(caller);
        if export.access == ExportAccess::None {
            return Err(refusal::not_exported(&caller.name, &caller.address.to_string()));
        }
        match self.attach(cluster, version, clock_s)? {
            MgmtReply::Welcome { facts, map, .. } => Ok(MgmtReply::Welcome { facts, map, export }),
            other => Ok(other),
        }
    }

    /// Returns the first map after this epoch; the current one after a while in any case.
    async fn watch(&self, after: Epoch) -> Arc<ClusterMap> {
        // Before reading the map, so that no change is missed in between.
        let changed = self.changed.wait();
        let map = self.current();
        if map.epoch > after {
            return map;
        }
        rt::select(changed, rt::sleep(WATCH_INTERVAL)).await;
        self.current()
    }

    async fn add_target(&self, node: NodeId, path: &str, pool: &str) -> Result<MgmtReply> {
        self.require_cluster()?;
        let target = self.change(|roster| roster.add_target(node, path, pool)).await?;
        self.sync().await?;
        Ok(MgmtReply::Added { target })
    }

    async fn set_pool(&self, target: TargetId, pool: &str) -> Result<MgmtReply> {
        tracing::info!(target_id = target.0, pool, "administrator changes the pool of a target");
        let is_same_pool = {
            let map = self.current();
            map.target(target).is_some_and(|own| map.pool(own.pool).is_some_and(|known| known.name == pool))
        };
        if !is_same_pool {
            self.change(|roster| roster.require_no_member(target, "change its pool")).await?;
        }
        if self.is_last_of_pool(target) && !is_same_pool {
            self.require_unreferenced_pool(target).await?;
            self.change(|roster| roster.set_pool_of_last(target, pool)).await?;
        } else {
            self.change(|roster| roster.set_pool(target, pool)).await?;
        }
        self.sync().await?;
        Ok(MgmtReply::Done)
    }

    /// Nodes, for display.
    fn nodes(&self) -> Vec<NodeInfo> {
        let (map, liveness, now_ns) = (self.current(), self.liveness(), rt::monotonic_ns());
        let info = |node: &types::Node| NodeInfo {
            targets: map.targets.iter().filter(|t| t.node == node.id).map(|t| t.id).collect(),
            silent_s: liveness.process(node.id).map(|seen| now_ns.saturating_sub(seen.at_ns) / 1_000_000_000),
            node: node.clone(),
        };
        map.nodes.iter().map(info).collect()
    }

    /// Metadata services, for display: their assigned and their actual partitions.
    async fn metas_now(&self) -> Result<Vec<wire::mgmt::MetaInfo>> {
        let metadata = self.metadata()?;
        let requests = self.metas().into_iter().map(|mut meta| async move {
            // A service that doesn't answer is shown without them.
            meta.executed = metadata.executed(&meta.node).await.ok();
            meta
        });
        Ok(rt::join_all(requests.collect()).await)
    }

    /// Online targets, grouped by file system. A target on an unknown file system is alone in its
    /// group.
    fn drives(&self) -> Vec<Vec<TargetId>> {
        let (map, liveness) = (self.current(), self.liveness());
        let mut drives: Vec<(Option<u64>, Vec<TargetId>)> = Vec::new();
        for target in map.targets.iter().filter(|target| target.state == TargetState::Online) {
            let device = liveness.device(target.id);
            match drives.iter_mut().find(|(other, _)| device.is_some() && *other == device) {
                Some((_, targets)) => targets.push(target.id),
                None => drives.push((device, vec![target.id])),
            }
        }
        drives.into_iter().map(|(_, targets)| targets).collect()
    }

    /// Targets, for display.
    async fn targets(&self) -> Vec<TargetInfo> {
        let map = self.current();
        let drains = match self.metadata() {
            Ok(metadata) if map.targets.iter().any(|target| target.drain) => metadata.drains().await,
            _ => Vec::new(),
        };
        let progress = |target: &Target| {
            let found = drains.iter().find(|(id, _)| *id == target.id).map(|(_, progress)| progress.clone());
            target
                .drain
                .then(|| self.with_stuck_reason(target, self.with_groups(target, found.unwrap_or_default())))
        };
        let info = |target: &Target| TargetInfo {
            progress: progress(target),
            node_name: map.node(target.node).map(|node| node.name.clone()).unwrap_or_default(),
            pool_name: map.pool(target.pool).map(|pool| pool.name.clone()).unwrap_or_default(),
            target: target.clone(),
        };
        map.targets.iter().map(info).collect()
    }

    fn health_report(&self) -> MgmtReply {
        let version = self.cluster().map_or(env!("CARGO_PKG_VERSION"), |(_, host)| &host.version);
        let scrubs = self.scrubs();
        let health = {
            let (map, liveness, now_ns) = (self.current(), self.liveness(), rt::monotonic_ns());
            let health = health(&map, &liveness, &scrubs, version);
            with_findings(health, self.reachability().findings(&map, &liveness, now_ns))
        };
        let health = match self.backups.get() {
            Some(backups) => with_backups(health, backups()),
            None => health,
        };
        let health = with_lost(health, &self.current(), self.lost_usage().as_ref());
        let mut health = match self.store_info.get().and_then(|store| store()) {
            Some(store) => with_store(health, store),
            None => health,
        };
        if let Some(authority) = self.authority.get() {
            let now_s = rt::now().secs;
            let certificates = Certificates {
                nodes: self.liveness().certificates().clone(),
                clients: authority.clients(now_s).unwrap_or_default(),
                authority: authority.authority_ends_s(),
            };
            health = with_certificates(health, &self.current(), &certificates, now_s);
        }
        health.ceilings = self.measured_places();
        let ceilings = self.ceilings().clone();
        let ceiling = |target, limit: &str| ceilings.of_target(target, limit);
        health.rates = self.liveness().rates(&self.current(), rt::monotonic_ns(), ceiling);
        MgmtReply::Health(health)
    }

    pub(crate) fn require_cluster(&self) -> Result<(&Superblock, &ManagementIdentity)> {
        self.cluster().ok_or_else(|| {
            Error::new(Errno::EOPNOTSUPP, "this cluster is one process: it has no nodes")
                .hint("weft cluster init creates a cluster of several machines")
        })
    }

    /// The keys to verify capabilities. Only nodes get them: only they may register.
    fn keys(&self, now_s: i64) -> Result<Secret> {
        Ok(Secret(self.authority()?.capability_keys(now_s)?))
    }

    /// Requests about tokens, clients and certificates.
    async fn answer_membership(&self, request: MgmtRequest) -> Result<MgmtReply> {
        let now_s = rt::now().secs;
        match request {
            MgmtRequest::NewToken(wanted) => {
                Ok(MgmtReply::Token { token: self.authority()?.token(&wanted, now_s)? })
            }
            MgmtRequest::ListTokens => Ok(MgmtReply::Tokens { tokens: self.authority()?.tokens(now_s)? }),
            MgmtRequest::RevokeToken { token } => {
                self.authority()?.revoke_token(&token)?;
                tracing::info!(token, "an administrator revokes a join token");
                Ok(MgmtReply::Done)
            }
            MgmtRequest::AddClient(wanted) => {
                let token = self.authority()?.add_client(&wanted, now_s)?;
                tracing::info!(client = wanted.name, "an administrator adds a client");
                Ok(MgmtReply::Token { token })
            }
            MgmtRequest::ListClients => Ok(MgmtReply::Clients { clients: self.clients().await? }),
            MgmtRequest::RevokeClient { name } => self.revoke_client(&name).await,
            MgmtRequest::Renew { member, csr } => self.renew(None, &member, &csr),
            other => Err(Error::new(Errno::EPROTO, format!("{other:?} is answered elsewhere"))),
        }
    }

    fn certify_api(&self, csr: &str, names: &[String]) -> Result<MgmtReply> {
        let chain = self.authority()?.certify_api(csr, names, rt::now().secs)?;
        Ok(MgmtReply::Certificate { chain })
    }

    pub(crate) fn authority(&self) -> Result<&Arc<dyn MembershipAuthority>> {
        self.require_cluster()?;
        self.authority.get().ok_or_else(refusal::no_metadata)
    }

    pub(crate) fn metadata(&self) -> Result<&Arc<dyn Metadata>> {
        self.metadata.get().ok_or_else(refusal::no_metadata)
    }
}

/// Whether this node has a replaced member: it stops being a member as soon as the node knows that
/// it was ejected.
fn has_released_member(map: &ClusterMap, node: NodeId) -> bool {
    let ejected_leaving_member = |group: &types::Group| {
        group.leaving.filter(|id| {
            group.state_of(*id).is_some_and(|state| state != types::MemberState::InSync)
                && map.target(*id).is_some_and(|target| target.node == node)
        })
    };
    map.groups.iter().any(|group| ejected_leaving_member(group).is_some())
}

fn lease_ms() -> u64 {
    debug_assert!(SERVING_LEASE > 2 * HEARTBEAT_INTERVAL, "one lost heartbeat must not stop a node");
    SERVING_LEASE.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::{Identity, Member as Proved};
    use net::{Proof, Transport};
    use std::net::Ipv4Addr;
    use types::{Node, NodeState};

    fn caller(proof: Proof) -> Caller {
        Caller {
            name: "caller".into(),
            proof,
            holder: 0,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)).into(),
            transport: Transport::Tcp,
            client: 1,
            core: 0,
            cluster: String::new(),
            host: String::new(),
        }
    }

    fn proved(role: Proved) -> Proof {
        Proof::Member(Identity { cluster: "c".into(), role, expires: 0, serial: String::new() })
    }

    #[test]
    fn a_report_names_what_its_sender_has_proved() {
        let name = |proof: Proof| reporter(&caller(proof), "node 1 (mgmt)".into());
        assert_eq!(name(proved(Proved::Client("login1".into()))), "client/login1 (node 1 (mgmt))");
        assert_eq!(name(Proof::NotRequired), "node 1 (mgmt)");
    }

    /// Management checks this again: it decides about replicas.
    #[test]
    fn only_nodes_may_report_on_members() {
        let says = |proof: Proof| reporting_node(&caller(proof)).map_err(|error| error.errno);
        assert_eq!(says(proved(Proved::Node(NodeId(2)))), Ok(Some(NodeId(2))));
        assert_eq!(says(Proof::NotRequired), Ok(None));
        for proof in [Proof::Unauthenticated, proved(Proved::Client("login1".into()))] {
            assert_eq!(says(proof), Err(Errno::EACCES));
        }
    }

    #[test]
    fn a_node_gets_no_name_of_another_machine() {
        let node = |id: u32| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![format!("10.0.0.{id}:7500"), format!("[fd00::{id}]:7500")],
            roles: vec![],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        let map = ClusterMap { nodes: vec![node(1), node(2)], ..ClusterMap::default() };
        let asks = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            require_own_names(&map, NodeId(2), &names).map_err(|error| error.errno)
        };
        assert_eq!(asks(&["localhost", "127.0.0.1", "::1", "n2", "10.0.0.2", "fd00::2"]), Ok(()));
        for name in ["n1", "10.0.0.1", "fd00::1", "weft.example.com", "", "n2.example.com"] {
            assert_eq!(asks(&["n2", name]), Err(Errno::EACCES), "{name}");
        }
        assert_eq!(require_own_names(&map, NodeId(3), &[]).unwrap_err().errno, Errno::ENOENT);
    }
}
