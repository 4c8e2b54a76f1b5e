//! The invariants of a file's content, which debug builds check.

use super::Content;
use super::phase::Phase;
use wire::LeaseMode;

impl Content {
    /// Checks the [invariants](super).
    ///
    /// # Panics
    /// If one of them is violated.
    pub(crate) fn check_invariants(&self) {
        self.check_unloaded();
        self.check_writer_record();
        self.check_dirty_extent();
        assert!(
            !self.phase.is_uncertain() || self.phase.is_truncation_pending() || !self.is_in_chunks(),
            "chunks are truncated after an uncertain change of the size"
        );
    }

    fn check_unloaded(&self) {
        if self.phase.is_loaded() {
            return;
        }
        assert_eq!(self.phase, Phase::default(), "the next loaded state shows what is to be done");
        assert!(self.layout.is_none() && self.inline.is_none() && self.length_bounds.is_none());
        assert_eq!((self.epoch, self.tainted_epoch), (0, 0), "an epoch belongs to its lease");
        assert_eq!((self.size, self.last_write_end), (0, None));
    }

    fn check_writer_record(&self) {
        assert!(
            !self.phase.is_writer() || self.layout.is_some(),
            "the service assigns a layout to every writer"
        );
    }

    fn check_dirty_extent(&self) {
        let Some(dirty) = &self.dirty else { return };
        assert!(self.is_certain() && self.lease == LeaseMode::Write, "no other session sees the file");
        assert!(
            self.is_recorded_writer() && self.phase.needs_report() && !self.phase.is_truncation_pending()
        );
        assert!(self.is_in_chunks());
        assert!(dirty.end() <= self.size, "the size includes delayed writes");
        assert_eq!(self.last_write_end, Some(dirty.end()), "delayed writes are sequential");
    }
}
