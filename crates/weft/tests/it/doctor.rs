//! `weft doctor` on this machine.

use serde_json::Value;
use std::net::TcpListener;
use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).arg("doctor").args(arguments).output().unwrap()
}

/// Returns state and text of the findings of one check.
fn findings(output: &Output, check: &str) -> Vec<(String, String)> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_string();
    let of_check = report["findings"].as_array().unwrap().iter().filter(|f| f["check"] == check);
    of_check.map(|finding| (text(finding, "state"), text(finding, "what"))).collect()
}

#[test]
fn a_port_in_use_and_a_lost_management_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let target = dir.path().to_str().unwrap();
    let arguments = ["--json", "--listen", &address, "--target-dir", target, "--management", &address];
    let output = doctor(&arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let ports = findings(&output, "port");
    assert_eq!(ports.len(), 1);
    assert!(ports[0].0 == "error" && ports[0].1.contains(&std::process::id().to_string()), "{ports:?}");
    assert_eq!(findings(&output, "management")[0].0, "good");
    assert_eq!(findings(&output, "disk").len(), 1);
    drop(busy);
    let output = doctor(&arguments);
    assert_eq!(findings(&output, "port")[0].0, "good");
    assert_eq!(findings(&output, "management")[0].0, "error");
    assert_eq!(findings(&output, "kernel")[0].0, "good");
}

#[test]
fn hints_are_printed_for_people() {
    let output = doctor(&["--target-dir", "/proc", "--listen", "192.0.2.1:7500"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.starts_with("state"), "{text}");
    assert!(text.contains("error: 192.0.2.1:7500 can't be listened on"), "{text}");
    assert!(text.contains("hint: ip address"), "{text}");
}
