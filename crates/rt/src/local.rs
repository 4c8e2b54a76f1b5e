//! Values that each core has its own of.

use crate::context::{self, Runtime};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::rc::Rc;

/// Values by their type. Types are few and fixed by the program.
pub(crate) type Locals = HashMap<TypeId, Rc<dyn Any>>;

/// This core's value of type `T`, made when it is first asked for and dropped when the core ends. On a simulated host it is the
/// host's, and dies with its process. Panics outside of a runtime.
///
/// A plain `thread_local!` would be shared by all hosts of a simulation.
pub fn local<T: Default + 'static>() -> Rc<T> {
    let runtime = context::current().expect("local needs rt::block_on or rt::start_core");
    if let Some(known) = with_locals(&runtime, |locals| locals.get(&TypeId::of::<T>()).cloned()) {
        return known.downcast().expect("values are kept by their type");
    }
    // Made outside of any borrow: it may ask for values itself.
    let made = Rc::new(T::default());
    with_locals(&runtime, |locals| locals.insert(TypeId::of::<T>(), made.clone()));
    made
}

fn with_locals<R>(runtime: &Runtime, f: impl FnOnce(&mut Locals) -> R) -> R {
    match runtime {
        Runtime::Core(core) => f(&mut core.locals.borrow_mut()),
        Runtime::Sim(world) => world.with_locals(f),
    }
}
