//! Permissions in sessions of other processes.

use crate::support::world::{ROOT, simulated};
use crate::support::{Client, create, errno};
use types::{Credentials, Errno, InodeId, Result, SetAttr};
use wire::{MetaOp, MetaReply, PatternChange};

async fn call_as(client: &Client, who: Credentials, op: MetaOp) -> Result<MetaReply> {
    client.respond_to(who, 0, op).await.map(|response| response.reply)
}

fn introduce(ino: InodeId, groups: Vec<u32>) -> MetaOp {
    MetaOp::SupplyGroups { ino, groups }
}

async fn call_privileged(client: &Client, who: Credentials, op: MetaOp) -> Result<MetaReply> {
    client.respond_privileged(who, op).await.map(|response| response.reply)
}

#[test]
fn a_user_may_do_what_its_ids_and_its_groups_allow() {
    simulated(|world| async move {
        let client = world.client(1).await;
        let dir = client.mkdir(ROOT, "d").await.unwrap().ino;
        let set = SetAttr { mode: Some(0o770), gid: Some(500), ..SetAttr::default() };
        client.call(MetaOp::Setattr { ino: dir, set }).await.unwrap();
        let user = Credentials { uid: 1000, gid: 1000, pid: 7 };
        assert_eq!(errno(call_as(&client, user, create(dir, "a")).await), Errno::EACCES);
        call_as(&client, user, introduce(dir, vec![4, 500])).await.unwrap();
        call_as(&client, user, create(dir, "a")).await.unwrap();
        // Another process of the same user may have other groups, and so may other sessions.
        let other = Credentials { pid: 8, ..user };
        assert_eq!(errno(call_as(&client, other, create(dir, "b")).await), Errno::EACCES);
        let two = world.client(2).await;
        assert_eq!(errno(call_as(&two, user, create(dir, "b")).await), Errno::EACCES);
        let chown = MetaOp::Setattr { ino: dir, set: SetAttr { uid: Some(1000), ..SetAttr::default() } };
        assert_eq!(errno(call_as(&client, user, chown.clone()).await), Errno::EPERM);
        call_privileged(&client, other, chown.clone()).await.unwrap();
        let back = MetaOp::Setattr { ino: dir, set: SetAttr { uid: Some(0), ..SetAttr::default() } };
        let errno_of_next = errno(call_as(&client, other, back).await);
        assert_eq!(errno_of_next, Errno::EPERM, "capabilities count for the request that came with them");
        let crowd = introduce(dir, vec![1; 5000]);
        assert_eq!(errno(call_as(&client, user, crowd).await), Errno::E2BIG);
    });
}

#[test]
fn groups_of_the_oldest_users_are_dropped_and_may_be_reported_again() {
    simulated(|world| async move {
        let client = world.client(1).await;
        let dir = client.mkdir(ROOT, "d").await.unwrap().ino;
        let set = SetAttr { mode: Some(0o770), gid: Some(500), ..SetAttr::default() };
        client.call(MetaOp::Setattr { ino: dir, set }).await.unwrap();
        let user = |pid| Credentials { uid: 1000, gid: 1000, pid };
        for pid in 0..=1024 {
            call_as(&client, user(pid), introduce(dir, vec![500])).await.unwrap();
        }
        assert_eq!(errno(call_as(&client, user(0), create(dir, "a")).await), Errno::EACCES);
        call_as(&client, user(1), create(dir, "a")).await.unwrap();
        call_as(&client, user(0), introduce(dir, vec![500])).await.unwrap();
        call_as(&client, user(0), create(dir, "b")).await.unwrap();
    });
}

#[test]
fn the_kernel_checks_permissions_of_the_local_session() {
    simulated(|world| async move {
        let local = Client::new(&world.meta, 9);
        let user = Credentials { uid: 1000, gid: 1000, pid: 7 };
        call_as(&local, user, create(ROOT, "a")).await.unwrap();
        let file = local.create(ROOT, "b").await.unwrap().ino;
        let mut unchecked = vec![MetaOp::Migrate { ino: file, pool: None, scheme: Some("single".into()) }];
        unchecked.push(MetaOp::SetPattern { dir: ROOT, change: PatternChange::default() });
        // The kernel takes them for attributes that every user with write permission may set.
        for op in unchecked {
            assert_eq!(errno(call_as(&local, user, op.clone()).await), Errno::EPERM);
            call_privileged(&local, user, op).await.unwrap();
        }
    });
}
