//! Handling of panics.

use std::panic;

/// From now on a panic of any thread ends the process, with its message on standard error and in
/// the log. A process that lost a thread would never answer some requests. If the process ends and
/// is restarted (`Restart=` in its unit), all clients continue.
pub fn abort_on_panic() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        tracing::error!("this process aborts because of a bug in weft: {info}");
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    /// Set in the process that the test starts, which is itself.
    const PANICS: &str = "WEFT_TEST_PANICS";

    #[test]
    fn a_panic_of_a_thread_ends_the_process_with_its_message() {
        if std::env::var_os(PANICS).is_some() {
            abort_on_panic();
            let thread = std::thread::spawn(|| panic!("this request is too much"));
            let _ = thread.join();
            std::thread::sleep(Duration::from_secs(60));
        }
        let name = "assembly::panics::tests::a_panic_of_a_thread_ends_the_process_with_its_message";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ended = command.args([name, "--exact", "--nocapture"]).env(PANICS, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("this request is too much"), "{said}");
    }
}
