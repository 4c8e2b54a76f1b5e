//! Clients.

use client::{Client, ClientOptions};
use routing::{MetaChannels, StorageChannels};
use std::sync::Arc;
use types::{MapHandle, SessionId};

/// Returns the options of a client that shares the cluster with others and uses no write-behind.
/// For other clients, tests override fields: `ClientOptions { write_behind: true, ..options(..) }`.
pub fn options(
    session: SessionId,
    map: &MapHandle,
    meta: impl Into<MetaChannels>,
    storage: StorageChannels,
) -> ClientOptions {
    ClientOptions {
        session,
        meta: meta.into(),
        storage,
        map: map.clone(),
        server_cache: false,
        write_behind: false,
        wsync: false,
        only_session: false,
    }
}

/// Creates a client, registers its session, and starts its background tasks on this core.
pub async fn start(options: ClientOptions) -> Arc<Client> {
    let client = Client::new(options);
    client.register().await.unwrap();
    rt::spawn(client.clone().background());
    client
}
