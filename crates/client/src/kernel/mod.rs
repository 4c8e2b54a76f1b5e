//! What the session knows of the caches of the kernel that uses it.

pub(crate) mod estale;
pub(crate) mod invalidation;
pub(crate) mod page_cache;
pub(crate) mod page_fill;
