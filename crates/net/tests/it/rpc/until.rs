//! Waiting for another task or thread.

use std::time::Duration;

/// Checks before the wait fails, 5 ms apart: two minutes, enough for a busy machine.
const MAX_CHECKS: usize = 24_000;

/// Waits until a condition is true.
pub async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..MAX_CHECKS {
        if condition() {
            return;
        }
        rt::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never became true");
}

/// Waits until a condition is true, on a thread without a core.
pub fn until_blocking(mut condition: impl FnMut() -> bool + 'static) {
    rt::block_on(async move { until(&mut condition).await }).unwrap();
}
