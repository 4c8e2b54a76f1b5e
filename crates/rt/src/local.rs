//! Values local to a core or to a process.

use crate::context::{self, Runtime};
use parking_lot::Mutex;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Values by their type. The program's types bound their number.
pub(crate) type Locals = BTreeMap<TypeId, Rc<dyn Any>>;

/// This core's value of type `T`, made on first use and dropped when the core ends. On a simulated
/// host it belongs to the host, and is dropped with its process. Panics outside of a runtime.
///
/// A plain `thread_local!` would be shared by all hosts of a simulation.
pub fn local<T: Default + 'static>() -> Rc<T> {
    let runtime = context::current().expect("local needs rt::block_on or rt::start_core");
    if let Some(known) = with_locals(&runtime, |locals| locals.get(&TypeId::of::<T>()).cloned()) {
        return known.downcast().expect("values are kept by their type");
    }
    // Made outside of any borrow: its constructor may use local values itself.
    let made = Rc::new(T::default());
    with_locals(&runtime, |locals| locals.insert(TypeId::of::<T>(), made.clone()));
    made
}

/// The process's value of type `T`, made on first use. On a simulated host it belongs to the host,
/// and is dropped with its process.
///
/// A plain `static` would be shared by all hosts of a simulation, and by concurrent simulations.
pub fn process_wide<T: Default + Send + Sync + 'static>() -> Arc<T> {
    static VALUES: Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>> = Mutex::new(BTreeMap::new());
    if context::with_sim(|_| ()).is_some() {
        return local::<OfHost<T>>().0.clone();
    }
    if let Some(known) = VALUES.lock().get(&TypeId::of::<T>()).cloned() {
        return known.downcast().expect("values are kept by their type");
    }
    // Made outside of the lock: its constructor may use process-wide values itself. If another
    // thread is faster, this one is dropped.
    let made: Arc<dyn Any + Send + Sync> = Arc::new(T::default());
    let kept = VALUES.lock().entry(TypeId::of::<T>()).or_insert(made).clone();
    kept.downcast().expect("values are kept by their type")
}

/// A process-wide value of a simulated host.
#[derive(Default)]
struct OfHost<T>(Arc<T>);

fn with_locals<R>(runtime: &Runtime, f: impl FnOnce(&mut Locals) -> R) -> R {
    match runtime {
        Runtime::Core(core) => f(&mut core.locals.borrow_mut()),
        Runtime::Sim(world) => world.with_locals(f),
    }
}
