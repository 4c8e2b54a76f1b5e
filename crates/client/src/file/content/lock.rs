//! The lock of a file's content.

use super::Content;
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// The lock of a file's content. Debug builds check the [invariants](super) whenever it is
/// released.
pub(crate) struct ContentLock(Mutex<Content>);

impl ContentLock {
    pub(crate) fn new(content: Content) -> ContentLock {
        ContentLock(Mutex::new(content))
    }

    pub(crate) fn lock(&self) -> ContentGuard<'_> {
        let content = self.0.lock();
        #[cfg(debug_assertions)]
        let before = (content.generation, content.phase.is_loaded());
        ContentGuard {
            content,
            #[cfg(debug_assertions)]
            before,
        }
    }
}

/// Access to a file's content, until it is dropped.
pub(crate) struct ContentGuard<'a> {
    content: MutexGuard<'a, Content>,
    /// The generation when the lock was taken, and whether the content was loaded.
    #[cfg(debug_assertions)]
    before: (u64, bool),
}

impl Deref for ContentGuard<'_> {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.content
    }
}

impl DerefMut for ContentGuard<'_> {
    fn deref_mut(&mut self) -> &mut Content {
        &mut self.content
    }
}

#[cfg(debug_assertions)]
impl Drop for ContentGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (generation, was_loaded) = self.before;
        let content = &*self.content;
        assert!(content.generation >= generation, "a generation is never used again");
        assert!(
            content.generation > generation || content.phase.is_loaded() || !was_loaded,
            "content is unloaded by the end of its generation alone"
        );
        content.check_invariants();
    }
}
