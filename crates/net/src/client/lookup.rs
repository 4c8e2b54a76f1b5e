//! Finding out again where a peer is, before each try to connect: names may stand for other
//! addresses than before.

use super::peer::Shared;
use crate::limits::LOOKUP_PATIENCE;
use rt::sync::Event;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells where a peer is. It may block, as a question to a name server does: it is called on a
/// thread of its own.
#[derive(Clone)]
pub struct Lookup(Arc<dyn Fn() -> Vec<SocketAddr> + Send + Sync>);

impl Lookup {
    /// What is called; an empty list leaves the addresses as they were.
    pub fn new(find: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static) -> Lookup {
        Lookup(Arc::new(find))
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup")
    }
}

/// Of all cores, one looks up at a time: a name server that doesn't answer costs one thread.
#[derive(Default)]
pub(super) struct LookupState {
    is_under_way: AtomicBool,
    ended: Event,
}

impl Shared {
    /// Looks up where the peer is, if it is to be looked up. What takes too long ends later, and is
    /// of use for the next try.
    pub(super) async fn look_up(self: &Arc<Self>) {
        let Some(lookup) = self.options.lookup.clone() else { return };
        // Before it begins, so that its end isn't missed.
        let ended = self.lookup.ended.wait();
        if !self.lookup.is_under_way.swap(true, Ordering::AcqRel) && !start(self.clone(), lookup) {
            return;
        }
        let _ = rt::timeout(LOOKUP_PATIENCE, ended).await;
    }
}

fn finish(shared: &Shared) {
    shared.lookup.is_under_way.store(false, Ordering::Release);
    shared.lookup.ended.set();
    shared.lookup.ended.clear();
}

/// Whether the thread could be started.
fn start(shared: Arc<Shared>, lookup: Lookup) -> bool {
    let theirs = shared.clone();
    let work = move || {
        let found = (lookup.0)();
        if !found.is_empty() {
            theirs.set_addresses(found);
        }
        finish(&theirs);
    };
    let started = std::thread::Builder::new().name("weft-lookup".into()).spawn(work);
    if let Err(error) = &started {
        tracing::warn!(%error, "{} is looked for where it was: no thread", shared.options.name);
        finish(&shared);
    }
    started.is_ok()
}
