//! Sessions with leases on cores of their own, whose commands conflict all the time.

use crate::support::caching_client::{CachingClient, Sizes, lookup};
use crate::support::world::{ROOT, chmod};
use crate::support::{Chunks, Client, Store, create, on_cores, open_with};
use meta::SessionKind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use types::SessionId;

const CORES: usize = 3;
const FILES: usize = 40;

#[test]
fn every_change_completes() {
    let store = Store::new();
    let chunks = Arc::new(Chunks::default());
    let (writer, channels) = (store.writer(), chunks.channels());
    let meta = rt::block_on(async move {
        let meta = open_with(writer, channels).await;
        for session in 1..=CORES as u64 {
            meta.register_session(SessionId(session), SessionKind::Remote).await.unwrap();
        }
        meta
    })
    .unwrap();
    let (shared, done) = (meta.clone(), Arc::new(AtomicUsize::new(0)));
    on_cores(CORES, move |core| {
        let (client, done) = (Client::new(&shared, core as u64 + 1), done.clone());
        async move {
            let honest = CachingClient::new(client, Sizes::default());
            rt::spawn(honest.clone().answer_recalls());
            for i in 0..FILES {
                work(&honest, &format!("{core}-{i}")).await;
            }
            // The others may still need a lease of this one.
            done.fetch_add(1, Relaxed);
            while done.load(Relaxed) < CORES {
                rt::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    assert!(chunks.fenced.lock().is_empty(), "somebody was evicted");
    let names = rt::block_on(async move { Client::new(&meta, 9).list(ROOT).await });
    assert_eq!(names.unwrap().len(), CORES * FILES);
}

/// One more file in the directory that all share.
async fn work(honest: &Rc<CachingClient>, name: &str) {
    honest.change(create(ROOT, name)).await.unwrap();
    honest.ask(lookup(ROOT, name)).await.unwrap();
    honest.change(chmod(ROOT)).await.unwrap();
}

/// As a node's control socket requests it: on a core that ends after the request.
#[test]
fn an_eviction_goes_on_when_the_core_that_asked_for_it_has_ended() {
    /// About 30 s.
    const LOOKS: usize = 6000;
    let store = Store::new();
    let chunks = Arc::new(Chunks::default());
    let (writer, channels) = (store.writer(), chunks.channels());
    let meta = rt::block_on(async move {
        let meta = open_with(writer, channels).await;
        meta.register_session(SessionId(1), SessionKind::Remote).await.unwrap();
        meta
    })
    .unwrap();
    on_cores(2, move |core| {
        let meta = meta.clone();
        async move {
            if core == 1 {
                return meta.evict_session(SessionId(1)).unwrap();
            }
            rt::spawn(meta.clone().background());
            for _ in 0..LOOKS {
                if meta.session_list().is_empty() {
                    return;
                }
                rt::sleep(Duration::from_millis(5)).await;
            }
            panic!("the session is still there: {:?}", meta.session_list());
        }
    });
}
