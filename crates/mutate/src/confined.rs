//! A test in a process of its own, with bounds.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::process::Command;

/// Set in the process that runs the test.
const CONFINED: &str = "WEFT_CONFINED_TEST";

/// Address space that a test may have: far above what decoders take, far below what a length of 32
/// bits can ask for.
const MEMORY_BYTES: u64 = 1 << 30;

/// CPU time that a test may take, seconds: far above what one takes on a slow machine, and it ends
/// an endless loop.
const CPU_SECONDS: u64 = 300;

/// Runs `test`, which is all that a test function does, in a process of its own that ends when it
/// takes more than its memory or its CPU time.
///
/// # Panics
/// When the test fails.
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

/// The name of the test function in which a closure is: `program::module::test::{{closure}}`.
fn test_of(closure: &str) -> &str {
    let path = closure.split("::{{closure}}").next().unwrap_or(closure);
    path.split_once("::").map_or(path, |(_, name)| name)
}

fn bound(resource: Resource, limit: u64) {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(resource, limit).expect("a limit can always be lowered");
}
