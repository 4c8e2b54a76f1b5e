//! What administrators set for the whole cluster.

use super::Roster;
use crate::refusal;
use types::{Result, ResyncSettings, ScrubSettings};

/// The least that a rate may be, bytes a second: less would never come to an end.
const MIN_RATE: u64 = 1 << 20;

/// The most of a target that may be kept free, percent: the rest is for data.
const MAX_SPARE: u8 = 50;

impl Roster {
    /// How members are brought in step and replaced from now on.
    pub fn set_resync(&mut self, settings: &ResyncSettings) -> Result<()> {
        check_rate(settings.rate)?;
        self.map.settings.resync = settings.clone();
        Ok(())
    }

    /// How targets are searched for damage from now on. How often one was asked for never becomes
    /// less: targets begin one when it grows.
    pub fn set_scrub(&mut self, settings: &ScrubSettings) -> Result<()> {
        check_rate(settings.rate)?;
        let asked = self.map.settings.scrub.asked.max(settings.asked);
        self.map.settings.scrub = ScrubSettings { asked, ..settings.clone() };
        Ok(())
    }

    /// Whether data is summed and checked from now on.
    pub fn set_checksums(&mut self, on: bool) {
        self.map.settings.checksums_off = !on;
    }

    /// Share of each target of a pool that new files leave free, percent.
    pub fn set_spare(&mut self, pool: &str, percent: u8) -> Result<()> {
        if percent > MAX_SPARE {
            return Err(refusal::spare(percent, MAX_SPARE));
        }
        let found = self.map.pools.iter_mut().find(|known| known.name == pool);
        found.ok_or_else(|| refusal::no_pool(pool))?.spare = percent;
        Ok(())
    }
}

fn check_rate(rate: Option<u64>) -> Result<()> {
    match rate {
        Some(rate) if rate < MIN_RATE => Err(refusal::low_rate(rate, MIN_RATE)),
        _ => Ok(()),
    }
}
