//! Waiting for what another task or thread does.

use std::time::Duration;

/// Looks before it is given up, 5 ms apart: two minutes, however busy the machine is.
const LOOKS: usize = 24_000;

/// Waits until something becomes true.
pub async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if condition() {
            return;
        }
        rt::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never became true");
}

/// Waits until something becomes true, on a thread without a core.
pub fn until_blocking(mut condition: impl FnMut() -> bool + 'static) {
    rt::block_on(async move { until(&mut condition).await }).unwrap();
}
