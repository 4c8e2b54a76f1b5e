//! Looking up a peer's addresses before each attempt to connect: names may resolve to other
//! addresses than before.

use super::peer::Shared;
use crate::limits::LOOKUP_TIMEOUT;
use rt::sync::Event;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks up the addresses of a peer. It may block, as a DNS query does: it runs on its own thread.
#[derive(Clone)]
pub struct Lookup(Arc<dyn Fn() -> Vec<SocketAddr> + Send + Sync>);

impl Lookup {
    /// Makes a lookup from a function; an empty result leaves the addresses unchanged.
    pub fn new(find: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static) -> Lookup {
        Lookup(Arc::new(find))
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup")
    }
}

/// One lookup runs at a time for all cores, so a name server that doesn't answer blocks one thread.
#[derive(Default)]
pub(super) struct LookupState {
    is_under_way: AtomicBool,
    ended: Event,
}

impl Shared {
    /// Looks up the peer's addresses, if it has a lookup. One that takes too long completes later,
    /// and serves the next attempt.
    pub(super) async fn look_up(self: &Arc<Self>) {
        let Some(lookup) = self.options.lookup.clone() else { return };
        // Registered before the lookup begins, so that its end isn't missed.
        let ended = self.lookup.ended.wait();
        if !self.lookup.is_under_way.swap(true, Ordering::AcqRel) && !start(self.clone(), lookup) {
            return;
        }
        let _ = rt::timeout(LOOKUP_TIMEOUT, ended).await;
    }
}

fn finish(shared: &Shared) {
    shared.lookup.is_under_way.store(false, Ordering::Release);
    shared.lookup.ended.set();
    shared.lookup.ended.clear();
}

/// Starts a lookup; returns whether the thread could be started.
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
        tracing::warn!(%error, "the addresses of {} can't be looked up, the known ones are used: no thread", shared.options.name);
        finish(&shared);
    }
    started.is_ok()
}
