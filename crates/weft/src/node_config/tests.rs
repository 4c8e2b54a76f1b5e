//! Tests of configuration and cluster files.

use super::*;

#[test]
fn a_machine_without_a_default_route_announces_its_own_addresses() {
    let listen = ["0.0.0.0:7500".parse().unwrap(), "10.9.0.1:7501".parse().unwrap()];
    let announced = |machine: &[&str]| {
        let machine: Vec<IpAddr> = machine.iter().map(|ip| ip.parse().unwrap()).collect();
        addresses_of(&listen, &machine).join(" ")
    };
    assert_eq!(announced(&["10.0.0.5", "10.1.0.5"]), "10.0.0.5:7500 10.1.0.5:7500 10.9.0.1:7501");
    assert_eq!(announced(&["fd00::5", "10.0.0.5"]), "10.0.0.5:7500 10.9.0.1:7501");
    assert_eq!(announced(&["fd00::5"]), "[fd00::5]:7500 10.9.0.1:7501");
    assert_eq!(announced(&[]), "127.0.0.1:7500 10.9.0.1:7501");
}

fn sample() -> NodeConfig {
    NodeConfig {
        cluster: "01234567".into(),
        node: NodeId(2),
        name: "oss1".into(),
        rack: Some("r1".into()),
        roles: vec![Role::Storage],
        listen: vec!["0.0.0.0:7500".parse().unwrap()],
        addresses: vec!["10.0.0.2:7500".into()],
        management: vec!["mgmt1:7500".into()],
        networks: vec!["10.0.0.0/8,fd00::/8".into()],
        protection: Protection::Authenticated,
        threads: None,
        numa: None,
        api: vec![],
        api_names: vec![],
        durability: Default::default(),
        backups: None,
        targets: vec![],
    }
}

#[test]
fn a_node_file_is_short_and_read_back_with_its_targets() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path();
    assert_eq!(NodeConfig::read(dir).unwrap_err().errno, Errno::ENOENT);
    sample().create(dir, "scratch \"1\"").unwrap();
    assert_eq!(NodeConfig::read(dir).unwrap(), sample());
    let target = TargetConfig { path: "/disk \"1\"".into(), pool: "nvme".into(), numa: Some(1), new: true };
    target.append(dir).unwrap();
    target.append(dir).unwrap();
    let text = fs::read_to_string(path(dir)).unwrap();
    assert!(text.lines().count() < 32, "{text}");
    assert_eq!(NodeConfig::read(dir).unwrap().targets, std::slice::from_ref(&target));
    mark_targets_created(dir, std::slice::from_ref(&target.path)).unwrap();
    let made = TargetConfig { new: false, ..target.clone() };
    assert_eq!(NodeConfig::read(dir).unwrap().targets, std::slice::from_ref(&made));
    made.append(dir).unwrap();
    assert_eq!(NodeConfig::read(dir).unwrap().targets, std::slice::from_ref(&made));
    target.append(dir).unwrap();
    assert_eq!(NodeConfig::read(dir).unwrap().targets, std::slice::from_ref(&target), "asked for again");
    let before = fs::read_to_string(path(dir)).unwrap();
    let other = TargetConfig { path: "/disk2".into(), ..made };
    other.append(dir).unwrap();
    remove_targets(dir, std::slice::from_ref(&other.path)).unwrap();
    assert_eq!(fs::read_to_string(path(dir)).unwrap(), before, "the rest stays as it was written");
    let elsewhere = TargetConfig { numa: Some(0), ..target };
    assert_eq!(elsewhere.append(dir).unwrap_err().errno, Errno::EEXIST);
    fs::write(path(dir), text + "mood = \"good\"\n").unwrap();
    assert_eq!(NodeConfig::read(dir).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn management_addresses_can_be_changed_in_both_files() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().unwrap();
    sample().create(base.path(), "scratch").unwrap();
    let (node, client) = (path(base.path()), base.path().join("client.toml"));
    let file = ClusterFile {
        name: "scratch".into(),
        cluster: sample().cluster,
        management: vec!["mgmt1:7500".into()],
        networks: vec![],
        rack: None,
        protection: Protection::Tls,
        public_socket: true,
        credentials: "-----BEGIN\nabc\n".into(),
    };
    file.write(&client).unwrap();
    let moved = ["10.0.0.9:7500".to_string(), "mgmt1:7500".to_string()];
    for file in [&node, &client] {
        assert_eq!(read_management_addresses(file, "01234567").unwrap(), ["mgmt1:7500"]);
        assert_eq!(read_management_addresses(file, "another"), None);
        let before = fs::read_to_string(file).unwrap();
        assert_eq!(write_management_addresses(file, "another", &moved).unwrap_err().errno, Errno::EINVAL);
        assert_eq!(fs::read_to_string(file).unwrap(), before);
        write_management_addresses(file, "01234567", &moved).unwrap();
        assert_eq!(read_management_addresses(file, "01234567").unwrap(), moved);
        let lines = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with("management")).map(String::from).collect()
        };
        assert_eq!(lines(&fs::read_to_string(file).unwrap()), lines(&before), "the rest stays");
    }
    assert_eq!(NodeConfig::read(base.path()).unwrap().management, moved);
    assert_eq!(ClusterFile::read(&client).unwrap(), ClusterFile { management: moved.into(), ..file });
    assert_eq!(fs::metadata(&client).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&node).unwrap().permissions().mode() & 0o777, 0o644);
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    write_management_addresses(&node, "01234567", &["mgmt2:7500".into()]).unwrap();
    let mode = fs::metadata(&node).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o666, "the mode that the administrator gave it, whatever the umask");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2, "no draft is left");
    fs::write(&client, "cut").unwrap();
    assert_eq!(read_management_addresses(&client, "01234567"), None);
}

#[test]
fn a_renewal_and_a_change_of_addresses_do_not_undo_each_other() {
    const ROUNDS: u16 = 50;
    let base = tempfile::tempdir().unwrap();
    let (path, cluster) = (base.path().join("client.toml"), "01234567-89ab-4def-8123-456789abcdef");
    let now_s = rt::now().secs;
    let authority = identity::Authority::create(cluster, "scratch", now_s).unwrap();
    let issue =
        |number| authority.issue_to_client("a", identity::Validity::of_client(now_s), number).unwrap();
    let both = [issue(1), issue(2)];
    let file = ClusterFile {
        name: "scratch".into(),
        cluster: cluster.into(),
        management: vec!["mgmt1:7500".into()],
        networks: vec![],
        rack: None,
        protection: Protection::Tls,
        public_socket: true,
        credentials: both[0].to_text(),
    };
    file.write(&path).unwrap();
    // The draft of another mount, which writes the same file.
    let draft = path.with_extension("draft");
    fs::write(&draft, "half").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let moved = [format!("10.0.0.9:{}", 7500 + round)];
                write_management_addresses(&path, cluster, &moved).unwrap();
                assert_eq!(
                    read_management_addresses(&path, cluster).unwrap(),
                    moved,
                    "the renewal brought it back"
                );
            }
        });
        for round in 1..=usize::from(ROUNDS) {
            let renewed = &both[round % 2];
            ClusterFile::renew(&path, renewed).unwrap();
            let found = ClusterFile::read(&path).unwrap().credentials;
            assert!(found == renewed.to_text(), "the certificate of before is back");
        }
    });
    assert_eq!(fs::read_to_string(&draft).unwrap(), "half");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2, "no draft of this process is left");
}

#[test]
fn the_example_is_understood() {
    let base = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/node.toml");
    fs::copy(example, path(base.path())).unwrap();
    let read = NodeConfig::read(base.path()).unwrap();
    assert_eq!((read.numa, read.targets.len(), read.targets[0].numa), (Some(0), 1, Some(0)));
}

#[test]
fn a_cluster_file_of_the_first_version_is_understood() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/v0.1/client.toml");
    let file = ClusterFile::parse(&file, &fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((file.name.as_str(), file.protection), ("fixture", Protection::Tls));
    assert_eq!(file.management, ["127.0.0.1:7599"]);
}

#[test]
fn a_cluster_file_is_for_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("client.toml");
    let file = ClusterFile {
        name: "scratch".into(),
        cluster: "01234567".into(),
        management: vec!["mgmt1:7500".into()],
        networks: vec![],
        rack: Some("r1".into()),
        protection: Protection::Tls,
        public_socket: true,
        credentials: "-----BEGIN\nabc\n".into(),
    };
    file.write(&path).unwrap();
    assert_eq!(ClusterFile::read(&path).unwrap(), file);
    assert!(!fs::read_to_string(&path).unwrap().contains("public_socket"), "older versions don't know it");
    let closed = ClusterFile { public_socket: false, ..file.clone() };
    closed.write(&path).unwrap();
    assert_eq!(ClusterFile::read(&path).unwrap(), closed);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for mode in [0o640, 0o604, 0o602, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = ClusterFile::read(&path).unwrap_err();
        assert_eq!(error.errno, Errno::EACCES, "{mode:o}: {error}");
        assert!(error.hint.contains("chmod 600"), "{}", error.hint);
    }
    // A file without a key needn't be secret.
    let plain = ClusterFile { protection: Protection::Plain, credentials: String::new(), ..file };
    plain.write(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(ClusterFile::read(&path).unwrap(), plain);
    fs::write(&path, "x").unwrap();
    assert_eq!(ClusterFile::read(&path).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn addresses_are_those_that_others_can_use() {
    let route_target: SocketAddr = "127.0.0.1:7500".parse().unwrap();
    let listen = ["0.0.0.0:7501".parse().unwrap(), "10.1.1.1:7502".parse().unwrap()];
    let all = Networks::default();
    assert_eq!(
        announced_addresses(&listen, route_target, &all).unwrap(),
        ["127.0.0.1:7501", "10.1.1.1:7502"]
    );
    let only = Networks::parse(&["10.1.0.0/16".into()]).unwrap();
    assert_eq!(announced_addresses(&listen[1..], route_target, &only).unwrap(), ["10.1.1.1:7502"]);
    let none = Networks::parse(&["192.0.2.0/24".into()]).unwrap();
    let error = announced_addresses(&listen[1..], route_target, &none).unwrap_err();
    assert!(error.message.contains("no address in the networks 192.0.2.0/24"), "{error}");
    assert_eq!(resolve(&["127.0.0.1:7500".into()]).unwrap(), [route_target]);
    assert!(resolve(&["no port".into()]).is_err() && resolve(&[]).is_err());
}
