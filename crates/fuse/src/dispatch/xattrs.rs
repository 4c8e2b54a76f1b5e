//! Extended attributes.

use crate::abi::GetxattrOut;
use crate::reply::put;
use crate::request::Request;
use crate::transport::Core;
use types::{Errno, Result};
use wire::XattrMode;

/// Name of an attribute that no file has, and that is answered without a request to a service: see
/// `transport/uring.rs`. The kernel lets every user read attributes of `system.`.
pub(crate) const WAKE_XATTR: &str = "system.weft_wake";

pub(super) async fn get(core: &Core, rq: &Request, name: &[u8], size: u32) -> Result<usize> {
    if name == WAKE_XATTR.as_bytes() {
        return Err(Errno::ENODATA.into());
    }
    let value = core.shared.client.getxattr(rq.credentials(), rq.ino(), name).await?;
    answer(rq, &value, size)
}

pub(super) async fn list(core: &Core, rq: &Request, size: u32) -> Result<usize> {
    let names = core.shared.client.listxattr(rq.ino()).await?;
    let mut joined = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in &names {
        joined.extend_from_slice(name);
        joined.push(0);
    }
    answer(rq, &joined, size)
}

pub(super) async fn set(
    core: &Core,
    rq: &Request,
    name: &[u8],
    value: &[u8],
    flags: u32,
    kill_sgid: bool,
) -> Result<usize> {
    let mode = match flags as i32 {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Errno::EINVAL.into()),
    };
    core.shared.client.setxattr(rq.credentials(), rq.ino(), name, value, mode, kill_sgid).await.map(|()| 0)
}

pub(super) async fn remove(core: &Core, rq: &Request, name: &[u8]) -> Result<usize> {
    core.shared.client.removexattr(rq.credentials(), rq.ino(), name).await.map(|()| 0)
}

/// Answers a request of size 0 with the size of the value, any other one with its bytes.
fn answer(rq: &Request, value: &[u8], size: u32) -> Result<usize> {
    if size == 0 {
        return Ok(put(&rq.out, 0, &GetxattrOut { size: value.len() as u32, padding: 0 }));
    }
    if value.len() > (size as usize).min(rq.out.len()) {
        return Err(Errno::ERANGE.into());
    }
    rq.out.copy_from(0, value);
    Ok(value.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{self, InHeader};
    use rt::IoBuf;

    #[test]
    fn a_request_of_size_0_returns_the_size() {
        let empty = IoBuf::alloc(8).slice(0..0);
        let rq =
            Request { header: InHeader::default(), args: empty.clone(), data: empty, out: IoBuf::alloc(64) };
        assert_eq!(answer(&rq, b"value", 0).unwrap(), 8);
        assert_eq!(abi::read(rq.out.as_slice()), Some(GetxattrOut { size: 5, padding: 0 }));
        assert_eq!(answer(&rq, b"value", 5).unwrap(), 5);
        assert_eq!(&rq.out.as_slice()[..5], b"value");
        assert_eq!(answer(&rq, b"value", 4).unwrap_err().errno, Errno::ERANGE);
        assert_eq!(answer(&rq, &[0; 100], 4096).unwrap_err().errno, Errno::ERANGE);
    }
}
