//! `O_APPEND` by several clients.

use crate::cluster::{Program, RDONLY, RDWR, with_cluster_of_seed};
use std::collections::BTreeMap;

/// Records that each client appends.
const RECORDS: u32 = 12;
/// Bytes of a record: so many that the file leaves the metadata store after some.
const RECORD: usize = 700;

#[test]
fn records_that_three_clients_append_never_overlap() {
    for seed in 1..=4 {
        with_cluster_of_seed(seed, |cluster| async move {
            let clients = cluster.clients::<3>().await;
            let mut files = vec![clients[0].make("log").await];
            for client in &clients[1..] {
                files.push(client.open_named("log", RDWR).await);
            }
            let programs = clients.iter().zip(&files).enumerate().map(|(index, (client, file))| async move {
                for number in 0..RECORDS {
                    let mut record = vec![b'a' + index as u8; RECORD];
                    record[..4].copy_from_slice(&number.to_le_bytes());
                    client.append(file, &record).await;
                }
            });
            rt::join_all(programs.collect()).await;
            let reader = cluster.client().await;
            let log = reader.open_named("log", RDONLY).await;
            let bytes = reader.bytes(&log).await;
            assert_eq!(bytes.len(), 3 * RECORDS as usize * RECORD);
            let mut next: BTreeMap<u8, u32> = BTreeMap::new();
            for record in bytes.chunks(RECORD) {
                let author = record[4];
                assert!(record[4..].iter().all(|&byte| byte == author));
                let number = u32::from_le_bytes(record[..4].try_into().unwrap());
                let expected = next.entry(author).or_default();
                assert_eq!(number, *expected);
                *expected += 1;
            }
        });
    }
}
