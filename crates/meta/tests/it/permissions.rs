//! Who may do what, on sessions of other processes.

use crate::support::world::{ROOT, simulated};
use crate::support::{Client, create, errno};
use types::{Credentials, Errno, InodeId, Result, SetAttr};
use wire::{MetaOp, MetaReply};

async fn call_as(client: &Client, who: Credentials, op: MetaOp) -> Result<MetaReply> {
    client.respond_to(who, 0, op).await.map(|response| response.reply)
}

fn introduce(ino: InodeId, groups: Vec<u32>, privileged: bool) -> MetaOp {
    MetaOp::Introduce { ino, groups, privileged }
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
        call_as(&client, user, introduce(dir, vec![4, 500], false)).await.unwrap();
        call_as(&client, user, create(dir, "a")).await.unwrap();
        // Another process of the same user may have other groups, and so may other sessions.
        let other = Credentials { pid: 8, ..user };
        assert_eq!(errno(call_as(&client, other, create(dir, "b")).await), Errno::EACCES);
        let two = world.client(2).await;
        assert_eq!(errno(call_as(&two, user, create(dir, "b")).await), Errno::EACCES);
        let chown = MetaOp::Setattr { ino: dir, set: SetAttr { uid: Some(1000), ..SetAttr::default() } };
        assert_eq!(errno(call_as(&client, user, chown.clone()).await), Errno::EPERM);
        call_as(&client, other, introduce(dir, vec![], true)).await.unwrap();
        call_as(&client, other, chown).await.unwrap();
        let crowd = introduce(dir, vec![1; 5000], false);
        assert_eq!(errno(call_as(&client, user, crowd).await), Errno::E2BIG);
    });
}

#[test]
fn who_was_introduced_long_ago_is_forgotten_and_may_be_introduced_again() {
    simulated(|world| async move {
        let client = world.client(1).await;
        let dir = client.mkdir(ROOT, "d").await.unwrap().ino;
        let user = |pid| Credentials { uid: 1000, gid: 1000, pid };
        for pid in 0..=1024 {
            call_as(&client, user(pid), introduce(dir, vec![0], true)).await.unwrap();
        }
        assert_eq!(errno(call_as(&client, user(0), create(dir, "a")).await), Errno::EACCES);
        call_as(&client, user(1), create(dir, "a")).await.unwrap();
        call_as(&client, user(0), introduce(dir, vec![], true)).await.unwrap();
        call_as(&client, user(0), create(dir, "b")).await.unwrap();
    });
}

#[test]
fn the_session_of_the_services_own_process_is_its_kernels_business() {
    simulated(|world| async move {
        let local = Client::new(&world.meta, 9);
        let user = Credentials { uid: 1000, gid: 1000, pid: 7 };
        call_as(&local, user, create(ROOT, "a")).await.unwrap();
    });
}
