//! Calls over connections whose ends prove who they are.

mod authentication;
mod authorization;
mod calls;
mod support;
