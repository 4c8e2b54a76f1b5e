//! Work that goes on when nobody waits for it any more.

use rt::sync::Event;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

struct Outcome<T> {
    value: RefCell<Option<T>>,
    is_there: Event,
}

/// Runs a future as a task of its own on this core; what is returned waits for its end, and may be
/// dropped before.
pub fn run_apart<T: 'static>(work: impl Future<Output = T> + 'static) -> impl Future<Output = T> {
    let outcome = Rc::new(Outcome { value: RefCell::new(None), is_there: Event::new() });
    let told = outcome.clone();
    // On the heap before anything else: a future that is part of another one is copied whole each
    // time that one is handed on.
    let work = Box::pin(work);
    rt::spawn(async move {
        let value = work.await;
        *told.value.borrow_mut() = Some(value);
        told.is_there.set();
    });
    async move {
        loop {
            outcome.is_there.wait().await;
            if let Some(value) = outcome.value.borrow_mut().take() {
                return value;
            }
        }
    }
}
