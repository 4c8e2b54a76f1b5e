//! Operations on the whole file system.

use crate::abi::StatfsOut;
use crate::reply::put;
use crate::request::Request;
use crate::transport::Core;
use client::StatFs;
use types::Result;

pub(super) async fn statfs(core: &Core, rq: &Request) -> Result<usize> {
    let StatFs { block_size, blocks, blocks_free, files, files_free, name_max } =
        core.shared.client.statfs().await?;
    let reply = StatfsOut {
        blocks,
        bfree: blocks_free,
        bavail: blocks_free,
        files,
        ffree: files_free,
        bsize: block_size,
        namelen: name_max,
        frsize: block_size,
        ..Default::default()
    };
    Ok(put(&rq.out, 0, &reply))
}

pub(super) async fn syncfs(core: &Core) -> Result<usize> {
    core.shared.client.syncfs().await.map(|()| 0)
}
