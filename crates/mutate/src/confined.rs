//! Runs a test in a separate process with resource limits.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::process::Command;

/// Set in the process that runs the test.
const CONFINED: &str = "WEFT_CONFINED_TEST";

/// Address space limit of a test: far more than decoders need, far less than an allocation with a
/// corrupt 32-bit length.
const MEMORY_BYTES: u64 = 1 << 30;

/// CPU time limit of a test, in seconds: far more than a test needs on a slow machine. It ends
/// endless loops.
const CPU_SECONDS: u64 = 300;

/// Runs `test`, the whole body of a test function, in a separate process that ends when it exceeds
/// its memory or CPU time limit.
///
/// # Panics
/// Panics if the test fails.
///
/// ```no_run
/// #[test]
/// fn damaged_images_are_refused() {
///     mutate::confined(|| mutate::damage(b"image", 1000, |bytes| drop(std::str::from_utf8(bytes))));
/// }
/// ```
pub fn confined<T: FnOnce()>(test: T) {
    if std::env::var_os(CONFINED).is_some() {
        bound(Resource::As, MEMORY_BYTES);
        bound(Resource::Cpu, CPU_SECONDS);
        return test();
    }
    let name = test_of(std::any::type_name::<T>());
    let program = std::env::current_exe().expect("a test program knows its path");
    let outcome = Command::new(program)
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(CONFINED, "1")
        .output()
        .expect("a test program can be started again");
    let said = [outcome.stdout, outcome.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(outcome.status.success(), "{name}: {}\n{}", outcome.status, said.concat());
    assert!(said[0].contains("1 passed"), "{name} is not the name of the test\n{}", said.concat());
}

/// Returns the name of the test function that contains a closure:
/// `program::module::test::{{closure}}`.
fn test_of(closure: &str) -> &str {
    let path = closure.split("::{{closure}}").next().unwrap_or(closure);
    path.split_once("::").map_or(path, |(_, name)| name)
}

fn bound(resource: Resource, limit: u64) {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(resource, limit).expect("a limit can always be lowered");
}
