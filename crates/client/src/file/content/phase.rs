//! The phases of a file's content, and the events that change them.

use types::Timestamp;

/// The phases of a file's content: one of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Phase {
    knowledge: Knowledge,
    writer: WriterRecord,
    /// Chunks may reach beyond the size, because a truncation or a write failed half-way, or an
    /// answer came too late. They are truncated before the next write.
    truncation_pending: bool,
}

/// Whether the service's state of the file is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Knowledge {
    #[default]
    Unloaded,
    /// It is valid, as long as the lease is held.
    Certain,
    /// The outcome of a change of size or inline content is uncertain: the client must load the
    /// state again before it uses it.
    Uncertain,
}

/// Whether the service has this session on record as a writer of the chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum WriterRecord {
    #[default]
    None,
    /// `BeginWrite` was granted, and `EndWrite` has yet to end it.
    Recorded(Report),
    /// The outcome of an `EndWrite` is uncertain: the service may no longer expect changes by this
    /// session.
    Unconfirmed(Report),
}

/// Whether size or mtime differ from what the metadata service has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Report {
    UpToDate,
    Needed {
        /// The last change whose time the service doesn't have.
        changed_at: Option<Timestamp>,
    },
}

/// What happens to a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The service's state was loaded, and may show that chunks are to be truncated.
    Loaded {
        /// Chunks may reach beyond the size.
        truncation_pending: bool,
    },
    /// A change of size or inline content was not answered.
    ChangeUnanswered {
        /// The content is in chunks.
        in_chunks: bool,
    },
    /// The service has recorded this session as a writer.
    WriteBegun,
    /// The same for a session that was a writer, unless it has lost its lease meanwhile.
    WriteBegunAgain,
    /// The session has changed size or content.
    Changed {
        /// When it did so.
        at: Timestamp,
    },
    /// The time of the last change was set explicitly: that of the session's own changes is not to
    /// be reported.
    TimeSet,
    /// The service has size and mtime.
    Reported {
        /// The record of the writer has ended.
        done: bool,
    },
    /// An `EndWrite` that ends the record of the writer was not answered.
    EndUnanswered,
    /// Chunks may reach beyond the size.
    ChunksExceedSize,
    /// They don't any more.
    ChunksTruncated,
}

impl Event {
    /// Whether chunks are as the session's successful writes have left them.
    pub(crate) fn keeps_chunks(self) -> bool {
        match self {
            Event::Loaded { .. }
            | Event::ChangeUnanswered { .. }
            | Event::WriteBegunAgain
            | Event::ChunksExceedSize
            | Event::ChunksTruncated => false,
            Event::WriteBegun
            | Event::Changed { .. }
            | Event::TimeSet
            | Event::Reported { .. }
            | Event::EndUnanswered => true,
        }
    }
}

/// What a change of phase means for the rest of the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub(crate) struct Actions {
    /// The service has recovered the file since the session last knew its size under another lease.
    pub(crate) ends_recovery: bool,
    /// The service has this change of the session now.
    pub(crate) reported: Option<Timestamp>,
}

impl Phase {
    /// Returns the phase after an event, and what follows from it.
    pub(crate) fn on(self, event: Event) -> (Phase, Actions) {
        let (mut next, mut actions) = (self, Actions::default());
        match event {
            Event::Loaded { truncation_pending } => {
                next.knowledge = Knowledge::Certain;
                next.truncation_pending |= truncation_pending;
                actions.ends_recovery = true;
            }
            Event::ChangeUnanswered { in_chunks } => {
                next.knowledge = Knowledge::Uncertain;
                next.truncation_pending |= in_chunks;
            }
            Event::ChunksExceedSize => next.truncation_pending = true,
            Event::ChunksTruncated => next.truncation_pending = false,
            event => next.writer = self.writer.after(event),
        }
        if let Event::Reported { .. } = event {
            actions.reported = self.unreported_change();
        }
        (next, actions)
    }

    /// Whether the service's state is loaded, which may be uncertain.
    pub(crate) fn is_loaded(self) -> bool {
        self.knowledge != Knowledge::Unloaded
    }

    /// Whether the service's state is loaded and certain.
    pub(crate) fn is_certain(self) -> bool {
        self.knowledge == Knowledge::Certain
    }

    /// Whether the service's state must be loaded again.
    pub(crate) fn is_uncertain(self) -> bool {
        self.knowledge == Knowledge::Uncertain
    }

    /// Whether the service may expect a report of this session.
    pub(crate) fn is_writer(self) -> bool {
        self.writer != WriterRecord::None
    }

    /// Whether the service has this session on record as a writer of the chunks.
    pub(crate) fn is_recorded_writer(self) -> bool {
        matches!(self.writer, WriterRecord::Recorded(_))
    }

    /// Whether size or mtime differ from what the metadata service has.
    pub(crate) fn needs_report(self) -> bool {
        matches!(self.writer.report(), Some(Report::Needed { .. }))
    }

    /// The last change whose time is to be reported.
    pub(crate) fn unreported_change(self) -> Option<Timestamp> {
        match self.writer.report() {
            Some(Report::Needed { changed_at }) => changed_at,
            _ => None,
        }
    }

    /// Whether chunks may reach beyond the size.
    pub(crate) fn is_truncation_pending(self) -> bool {
        self.truncation_pending
    }
}

impl WriterRecord {
    fn report(self) -> Option<Report> {
        match self {
            WriterRecord::None => None,
            WriterRecord::Recorded(report) | WriterRecord::Unconfirmed(report) => Some(report),
        }
    }

    fn after(self, event: Event) -> WriterRecord {
        use WriterRecord::{None, Recorded, Unconfirmed};
        match (event, self) {
            (Event::WriteBegun, None) => Recorded(Report::UpToDate),
            (Event::WriteBegun | Event::WriteBegunAgain, Unconfirmed(report)) => Recorded(report),
            (Event::Changed { at }, Recorded(_)) => Recorded(Report::Needed { changed_at: Some(at) }),
            (Event::Changed { at }, Unconfirmed(_)) => Unconfirmed(Report::Needed { changed_at: Some(at) }),
            (Event::TimeSet, Recorded(report)) => Recorded(report.without_time()),
            (Event::TimeSet, Unconfirmed(report)) => Unconfirmed(report.without_time()),
            (Event::Changed { .. }, None) => {
                debug_assert!(false, "the session changes chunks as a writer only");
                None
            }
            (Event::Reported { done: true }, _) => None,
            (Event::Reported { done: false }, Recorded(_)) => Recorded(Report::UpToDate),
            // An earlier `EndWrite` stays unconfirmed.
            (Event::Reported { done: false }, Unconfirmed(_)) => Unconfirmed(Report::UpToDate),
            (Event::EndUnanswered, Recorded(report)) => Unconfirmed(report),
            (_, unchanged) => unchanged,
        }
    }
}

impl Report {
    fn without_time(self) -> Report {
        match self {
            Report::UpToDate => Report::UpToDate,
            Report::Needed { .. } => Report::Needed { changed_at: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same phases as flags that each event sets or clears.
    #[derive(Clone, Copy, Default)]
    struct Flags {
        loaded: bool,
        uncertain: bool,
        writing: bool,
        end_uncertain: bool,
        unreported: bool,
        mtime: Option<Timestamp>,
        truncate_pending: bool,
    }

    impl Flags {
        fn on(&mut self, event: Event) -> Actions {
            let mut actions = Actions::default();
            match event {
                Event::Loaded { truncation_pending } => {
                    (self.loaded, self.uncertain) = (true, false);
                    self.truncate_pending |= truncation_pending;
                    actions.ends_recovery = true;
                }
                Event::ChangeUnanswered { in_chunks } => {
                    self.uncertain = true;
                    self.truncate_pending |= in_chunks;
                }
                Event::WriteBegun => (self.writing, self.end_uncertain) = (true, false),
                Event::WriteBegunAgain => self.end_uncertain = false,
                Event::Changed { at } => (self.unreported, self.mtime) = (true, Some(at)),
                Event::TimeSet => self.mtime = None,
                Event::Reported { done } => {
                    (self.unreported, self.writing) = (false, !done);
                    self.end_uncertain &= !done;
                    actions.reported = self.mtime.take();
                }
                Event::EndUnanswered => self.end_uncertain = true,
                Event::ChunksExceedSize => self.truncate_pending = true,
                Event::ChunksTruncated => self.truncate_pending = false,
            }
            actions
        }

        /// Whether the client lets an event happen.
        fn permits(&self, event: Event) -> bool {
            match event {
                Event::Loaded { .. } => true,
                // A report that doesn't end the record isn't sent without one.
                Event::Changed { .. } | Event::Reported { .. } | Event::EndUnanswered => self.writing,
                Event::WriteBegunAgain | Event::TimeSet => true,
                _ => self.loaded,
            }
        }

        fn queries(&self) -> ([bool; 7], Option<Timestamp>) {
            let phases = [
                self.loaded,
                self.loaded && !self.uncertain,
                self.uncertain,
                self.writing,
                self.writing && !self.end_uncertain,
                self.unreported,
                self.truncate_pending,
            ];
            (phases, self.mtime)
        }
    }

    fn queries(phase: Phase) -> ([bool; 7], Option<Timestamp>) {
        let phases = [
            phase.is_loaded(),
            phase.is_certain(),
            phase.is_uncertain(),
            phase.is_writer(),
            phase.is_recorded_writer(),
            phase.needs_report(),
            phase.is_truncation_pending(),
        ];
        (phases, phase.unreported_change())
    }

    const AT: [Timestamp; 2] = [Timestamp { secs: 1, nanos: 0 }, Timestamp { secs: 2, nanos: 0 }];
    const EVENTS: [Event; 14] = [
        Event::Loaded { truncation_pending: false },
        Event::Loaded { truncation_pending: true },
        Event::ChangeUnanswered { in_chunks: false },
        Event::ChangeUnanswered { in_chunks: true },
        Event::WriteBegun,
        Event::WriteBegunAgain,
        Event::Changed { at: AT[0] },
        Event::Changed { at: AT[1] },
        Event::TimeSet,
        Event::Reported { done: false },
        Event::Reported { done: true },
        Event::EndUnanswered,
        Event::ChunksExceedSize,
        Event::ChunksTruncated,
    ];

    /// Every phase that events lead to, however many, behaves like the flags.
    #[test]
    fn phases_are_the_reachable_combinations_of_flags() {
        let mut reached = vec![(Phase::default(), Flags::default())];
        let mut next = 0;
        while let Some(&(phase, flags)) = reached.get(next) {
            next += 1;
            assert_eq!(queries(phase), flags.queries(), "{phase:?}");
            for event in EVENTS.into_iter().filter(|event| flags.permits(*event)) {
                let mut flags = flags;
                let (phase, actions) = phase.on(event);
                assert_eq!(actions, flags.on(event), "{event:?} leads to {phase:?}");
                assert_eq!(queries(phase), flags.queries(), "{event:?} leads to {phase:?}");
                if reached.iter().all(|(known, _)| *known != phase) {
                    reached.push((phase, flags));
                }
            }
        }
        // No writer, or one of two records with one of four reports (up to date, or needed with one
        // of three times).
        let records = 1 + 2 * (1 + 3);
        // Unloaded; certain or uncertain, with one of the records, and a truncation or not.
        assert_eq!(reached.len(), 1 + 2 * records * 2);
    }
}
