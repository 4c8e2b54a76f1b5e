//! Last measured ceilings of the hardware: stored beside the map in the metadata store, and not in
//! the map, since no service depends on them.

use crate::management::Management;
use net::LocalFuture;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use types::{ClusterMap, Errno, Error, NodeId, Result, TargetId};
use wire::MgmtReply;
use wire::mgmt::{CeilingInfo, MAX_CEILINGS, MeasuredPlace};

/// Their key in the metadata store, among the global keys.
pub(crate) const CEILINGS_KEY: &[u8] = b"\xff\xffceilings";

/// Longest name of a limit or place, in bytes.
const MAX_NAME: usize = 200;

/// The latest value of each place and limit.
#[derive(Clone, Default, Debug, PartialEq)]
pub(crate) struct Ceilings(BTreeMap<(String, String), CeilingInfo>);

impl Ceilings {
    /// Loads the stored values; none if they can't be read: they can be measured again.
    pub(crate) fn stored(value: Option<&[u8]>) -> Ceilings {
        let all: Vec<CeilingInfo> =
            value.and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default();
        let mut ceilings = Ceilings::default();
        ceilings.insert(all);
        ceilings
    }

    /// All values by place and limit.
    pub(crate) fn all(&self) -> Vec<CeilingInfo> {
        self.0.values().cloned().collect()
    }

    /// The last measured value of a target's limit.
    pub(crate) fn of_target(&self, target: TargetId, limit: &str) -> Option<f64> {
        Some(self.0.get(&(format!("target {target}"), limit.to_string()))?.rate)
    }

    fn insert(&mut self, new: Vec<CeilingInfo>) {
        self.0.extend(new.into_iter().map(|c| ((c.place.clone(), c.limit.clone()), c)));
        while self.0.len() > MAX_CEILINGS {
            // The oldest: timestamps of one format sort as text.
            let oldest = self.0.iter().min_by(|a, b| a.1.measured.cmp(&b.1.measured));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.0.remove(&key);
        }
    }

    /// Drops values of removed nodes and targets.
    fn follow(&mut self, map: &ClusterMap) {
        self.0.retain(|(place, _), _| exists(place, map));
    }

    fn newest(&self, place: &str) -> Option<String> {
        let prefix = format!("{place},");
        let here = self.0.values().filter(|c| c.place == place || c.place.starts_with(&prefix));
        here.map(|c| c.measured.clone()).max()
    }

    /// Each target and node of the map, with the time of its last measurement.
    fn places(&self, map: &ClusterMap) -> Vec<MeasuredPlace> {
        let targets = map.targets.iter().map(|target| format!("target {}", target.id));
        let nodes = map.nodes.iter().map(|node| format!("node {}", node.id));
        let place = |place: String| MeasuredPlace { measured: self.newest(&place), place };
        targets.chain(nodes).map(place).collect()
    }
}

/// Whether the map has everything that a place names; in a cluster of one process it has no nodes.
fn exists(place: &str, map: &ClusterMap) -> bool {
    place.split(" to ").all(|part| {
        let part = part.split(',').next().unwrap_or(part);
        match part.split_once(' ') {
            Some(("target", id)) => id.parse().is_ok_and(|id| map.target(TargetId(id)).is_some()),
            Some(("node", id)) => {
                map.nodes.is_empty() || id.parse().is_ok_and(|id| map.node(NodeId(id)).is_some())
            }
            _ => true,
        }
    })
}

fn check(ceilings: &[CeilingInfo]) -> Result<()> {
    let refused = |message: String| {
        Err(Error::new(Errno::EINVAL, message).hint("weft bench storage, net and cpu measure ceilings"))
    };
    if ceilings.len() > MAX_CEILINGS {
        return refused(format!("{} ceilings at a time; at most {MAX_CEILINGS} are stored", ceilings.len()));
    }
    let is_wrong = |c: &&CeilingInfo| {
        let names = [&c.limit, &c.place, &c.measured];
        !c.rate.is_finite() || c.rate < 0.0 || names.iter().any(|n| n.is_empty() || n.len() > MAX_NAME)
    };
    match ceilings.iter().find(is_wrong) {
        Some(wrong) => refused(format!("{wrong:?} is not a valid ceiling")),
        None => Ok(()),
    }
}

impl Management {
    pub(crate) fn ceilings(&self) -> MutexGuard<'_, Ceilings> {
        self.ceilings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn measured_places(&self) -> Vec<MeasuredPlace> {
        self.ceilings().places(&self.current())
    }

    /// Stores measured values, durably when this returns.
    pub(crate) fn note_ceilings(&self, new: Vec<CeilingInfo>) -> LocalFuture<'_, Result<MgmtReply>> {
        Box::pin(async move {
            check(&new)?;
            let stored = {
                let mut ceilings = self.ceilings();
                ceilings.insert(new);
                ceilings.follow(&self.current());
                serde_json::to_vec(&ceilings.all()).expect("ceilings have string keys and finite numbers")
            };
            let writes = vec![(CEILINGS_KEY.to_vec(), Some(stored.into()))];
            self.store.put(writes).await.map_err(crate::Error::from)?;
            self.sync().await?;
            Ok(MgmtReply::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{CapacityClass, PoolId, Target, TargetState};

    fn ceiling(place: &str, limit: &str, rate: f64, measured: &str) -> CeilingInfo {
        CeilingInfo { limit: limit.into(), place: place.into(), rate, streams: 1, measured: measured.into() }
    }

    fn map_with(targets: &[u32]) -> ClusterMap {
        let target = |&id: &u32| Target {
            id: TargetId(id),
            node: NodeId(1),
            pool: PoolId(1),
            path: "/t".into(),
            state: TargetState::Online,
            capacity: 1,
            free: 1,
            class: CapacityClass::Normal,
            drain: false,
            used: None,
        };
        ClusterMap { targets: targets.iter().map(target).collect(), ..ClusterMap::default() }
    }

    #[test]
    fn the_newest_of_each_place_and_limit_stays() {
        let mut ceilings = Ceilings::default();
        ceilings.insert(vec![
            ceiling("target 1", "a", 1.0, "2026-01-01"),
            ceiling("target 1", "b", 2.0, "2026-01-01"),
        ]);
        ceilings.insert(vec![
            ceiling("target 1", "a", 3.0, "2026-01-02"),
            ceiling("node 1, one core", "c", 4.0, "2026-01-03"),
        ]);
        let rates: Vec<f64> = ceilings.all().iter().map(|c| c.rate).collect();
        assert_eq!(rates, [4.0, 3.0, 2.0]);
        let stored = serde_json::to_vec(&ceilings.all()).unwrap();
        assert_eq!(Ceilings::stored(Some(&stored)), ceilings);
        assert_eq!(Ceilings::stored(Some(b"damaged")), Ceilings::default());
        let places = ceilings.places(&map_with(&[1, 12]));
        let told: Vec<_> = places.iter().map(|p| (p.place.as_str(), p.measured.as_deref())).collect();
        assert_eq!(told, [("target 1", Some("2026-01-02")), ("target 12", None)]);
        assert_eq!(ceilings.newest("node 1").as_deref(), Some("2026-01-03"));
    }

    #[test]
    fn ceilings_of_removed_places_are_dropped() {
        let mut ceilings = Ceilings::default();
        ceilings.insert(vec![ceiling("target 1", "a", 1.0, "t"), ceiling("target 2", "a", 1.0, "t")]);
        ceilings.follow(&map_with(&[2]));
        let places: Vec<String> = ceilings.all().into_iter().map(|c| c.place).collect();
        assert_eq!(places, ["target 2"]);
        assert!(exists("node 1", &map_with(&[])));
    }

    #[test]
    fn ceilings_are_bounded_and_validated() {
        let mut ceilings = Ceilings::default();
        let new = (0..MAX_CEILINGS + 5).map(|n| ceiling(&format!("x{n}"), "a", 1.0, &format!("{n:08}")));
        ceilings.insert(new.collect());
        assert_eq!(ceilings.0.len(), MAX_CEILINGS);
        assert_eq!((ceilings.newest("x4"), ceilings.newest("x5").is_some()), (None, true));
        assert!(check(&[ceiling("target 1", "a", f64::NAN, "t")]).is_err());
        assert!(check(&[ceiling("", "a", 1.0, "t")]).is_err());
        assert!(check(&[ceiling("target 1", "a", 1.0, "t")]).is_ok());
    }
}
