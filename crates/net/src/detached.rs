//! Work that continues after its caller has stopped waiting for it.

use rt::sync::Event;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

struct Outcome<T> {
    value: RefCell<Option<T>>,
    is_ready: Event,
}

/// Runs a future as its own task on this core. The returned future waits for the task to end;
/// dropping it doesn't stop the task.
pub fn run_detached<T: 'static>(work: impl Future<Output = T> + 'static) -> impl Future<Output = T> {
    let outcome = Rc::new(Outcome { value: RefCell::new(None), is_ready: Event::new() });
    let result = outcome.clone();
    // Boxed first: a future that is part of another one is copied whole each time the outer one is
    // moved.
    let work = Box::pin(work);
    rt::spawn(async move {
        let value = work.await;
        *result.value.borrow_mut() = Some(value);
        result.is_ready.set();
    });
    async move {
        loop {
            outcome.is_ready.wait().await;
            if let Some(value) = outcome.value.borrow_mut().take() {
                return value;
            }
        }
    }
}
