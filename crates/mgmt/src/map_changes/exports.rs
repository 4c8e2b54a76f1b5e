//! Export rules.

use super::Roster;
use crate::limits::MAX_EXPORTS;
use crate::refusal;
use types::{ExportClients, ExportRule, Result, Squash};

impl Roster {
    /// Sets the rule of some clients, in place of an earlier one.
    pub fn set_export(&mut self, rule: &ExportRule) -> Result<()> {
        if rule.export.squash != Squash::None && rule.export.anon_uid == 0 {
            return Err(refusal::anonymous_root());
        }
        match self.map.exports.binary_search_by(|known| known.clients.cmp(&rule.clients)) {
            Ok(at) => self.map.exports[at] = rule.clone(),
            Err(_) if self.map.exports.len() >= MAX_EXPORTS => return Err(refusal::too_many_exports()),
            Err(at) => self.map.exports.insert(at, rule.clone()),
        }
        Ok(())
    }

    /// Removes the rule of these clients.
    pub fn remove_export(&mut self, clients: &ExportClients) -> Result<()> {
        match self.map.exports.binary_search_by(|known| known.clients.cmp(clients)) {
            Ok(at) => _ = self.map.exports.remove(at),
            Err(_) => return Err(refusal::no_export(clients)),
        }
        Ok(())
    }
}
