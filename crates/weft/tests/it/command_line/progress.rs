//! Progress is drawn on a terminal and disappears from it; elsewhere nothing of it is printed.

use super::{stderr_text, stdout_text, stopped_node, weft};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

/// A command whose standard error is a terminal. It is killed on drop.
struct OnTerminal {
    child: Child,
    terminal: File,
    seen: Vec<u8>,
}

impl OnTerminal {
    fn start(arguments: &[&str]) -> OnTerminal {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        // Without this flag, it would become the terminal of the test, and its signals the test's.
        let no_control = rustix::fs::OFlags::NOCTTY.bits() as i32;
        let other_end = File::options().read(true).write(true).custom_flags(no_control).open(name).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(arguments)
            .env_remove("WEFT_DIR")
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(other_end)
            .spawn()
            .unwrap();
        OnTerminal { child, terminal: terminal.into(), seen: Vec::new() }
    }

    /// Reads more of what the terminal gets; false at the end, when no process has it open.
    fn read(&mut self) -> bool {
        let mut some = [0; 4096];
        let read = self.terminal.read(&mut some).unwrap_or(0);
        self.seen.extend_from_slice(&some[..read]);
        read > 0
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what a terminal shows in the end, as lines without spaces at their ends.
fn screen(sent: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0, 0);
    let mut letters = sent.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                if row == lines.len() {
                    lines.push(Vec::new());
                }
            }
            '\x1b' => {
                let mut sequence = String::new();
                for letter in letters.by_ref() {
                    sequence.push(letter);
                    if letter.is_ascii_alphabetic() {
                        break;
                    }
                }
                match sequence.as_str() {
                    "[2K" => lines[row].clear(),
                    "[1A" => row -= 1,
                    "[1B" => row += 1,
                    other => panic!("{other:?} isn't understood"),
                }
            }
            letter => {
                let line: &mut Vec<char> = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = letter;
                column += 1;
            }
        }
    }
    let text = |line: Vec<char>| line.into_iter().collect::<String>().trim_end().to_string();
    lines.into_iter().map(text).filter(|line| !line.is_empty()).collect()
}

#[test]
fn progress_is_on_a_terminal_and_disappears() {
    let base = tempfile::tempdir().unwrap();
    let node = stopped_node(base.path());
    let line = ["fsck", "--json", "--dir", &node];
    let mut command = OnTerminal::start(&line);
    // The whole result fits the pipe.
    while command.read() {}
    let (text, mut result) = (command.text(), String::new());
    command.child.stdout.take().unwrap().read_to_string(&mut result).unwrap();
    assert!(command.child.wait().unwrap().success(), "{text}");
    assert!(text.contains("checking the file system") && text.contains(" of 64"), "{text:?}");
    assert_eq!(screen(&text), [""; 0], "{text:?}");
    let elsewhere = weft(&line);
    assert!(result.contains("\"verdict\": \"clean\""), "{result}");
    assert_eq!(result, stdout_text(&elsewhere), "a terminal changes the result");
    assert_eq!(stderr_text(&elsewhere), "", "there is no terminal");
}

#[test]
fn an_interrupt_clears_the_progress_and_ends_the_command() {
    let base = tempfile::tempdir().unwrap();
    let node = base.path().join("node").to_str().unwrap().to_string();
    // Nothing listens at its address, so a machine that joins waits for it.
    let line = ["cluster", "init", "--name", "c", "--address", "127.0.0.1:7598", "--json", "--dir", &node];
    let made: serde_json::Value = serde_json::from_slice(&weft(&line).stdout).unwrap();
    let new = base.path().join("new");
    let mut command =
        OnTerminal::start(&["node", "join", made["token"].as_str().unwrap(), "--dir", new.to_str().unwrap()]);
    while !command.text().contains("asking management at 127.0.0.1:7598") {
        assert!(command.read(), "it ended: {}", command.text());
    }
    kill_process(Pid::from_child(&command.child), Signal::INT).unwrap();
    while command.read() {}
    let status = command.child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}: {}", command.text());
    assert_eq!(screen(&command.text()), [""; 0], "{:?}", command.text());
    assert!(!new.exists());
}
