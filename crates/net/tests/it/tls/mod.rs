//! Calls over connections whose ends prove who they are.

mod authentication;
mod calls;
mod support;
