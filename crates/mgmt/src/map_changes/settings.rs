//! Cluster-wide settings of administrators.

use super::Roster;
use crate::refusal;
use types::{Result, ResyncSettings, ScrubSettings};

/// Lowest rate in bytes a second: a lower one would never finish.
const MIN_RATE: u64 = 1 << 20;

/// Largest share of a target that may be kept free, in percent: the rest is for data.
const MAX_SPARE: u8 = 50;

impl Roster {
    /// Sets how members are resynced and replaced.
    pub fn set_resync(&mut self, settings: &ResyncSettings) -> Result<()> {
        check_rate(settings.rate, "weft group resync pause")?;
        self.map.settings.resync = settings.clone();
        Ok(())
    }

    /// Sets how targets are scrubbed. The number of requested scrubs never decreases: targets start
    /// one when it grows.
    pub fn set_scrub(&mut self, settings: &ScrubSettings) -> Result<()> {
        check_rate(settings.rate, "weft scrub stop")?;
        let asked = self.map.settings.scrub.asked.max(settings.asked);
        self.map.settings.scrub = ScrubSettings { asked, ..settings.clone() };
        Ok(())
    }

    /// Switches checksums of data on or off.
    pub fn set_checksums(&mut self, on: bool) {
        self.map.settings.checksums_off = !on;
    }

    /// Sets the share of each target of a pool that new files leave free, in percent.
    pub fn set_spare(&mut self, pool: &str, percent: u8) -> Result<()> {
        if percent > MAX_SPARE {
            return Err(refusal::spare(percent, MAX_SPARE));
        }
        let found = self.map.pools.iter_mut().find(|known| known.name == pool);
        found.ok_or_else(|| refusal::no_pool(pool))?.spare = percent;
        Ok(())
    }
}

/// `pause`: the command that stops the work for a while.
fn check_rate(rate: Option<u64>, pause: &str) -> Result<()> {
    match rate {
        Some(rate) if rate < MIN_RATE => Err(refusal::low_rate(rate, MIN_RATE, pause)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_rate_is_refused_with_the_command_that_pauses() {
        for pause in ["weft scrub stop", "weft group resync pause"] {
            let error = check_rate(Some(1), pause).unwrap_err();
            assert!(error.hint.contains(pause), "{error}");
        }
        assert!(check_rate(Some(MIN_RATE), "").is_ok() && check_rate(None, "").is_ok());
    }
}
