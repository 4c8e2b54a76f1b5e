//! Behaviour of each group of commands, one file a group.

mod access_control;
mod async_creates;
mod attributes;
mod background;
mod chunks;
mod flags;
mod inline_content;
mod names;
mod orphans;
mod patterns;
mod permissions;
mod readdir;
mod rename;
mod stripe_moves;
mod xattrs;
