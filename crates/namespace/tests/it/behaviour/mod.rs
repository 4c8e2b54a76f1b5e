//! Behaviour of each group of commands, one file a group.

mod access_control;
mod attributes;
mod background;
mod chunks;
mod flags;
mod inline_content;
mod moves;
mod names;
mod orphans;
mod patterns;
mod permissions;
mod promises;
mod readdir;
mod rename;
mod xattrs;
