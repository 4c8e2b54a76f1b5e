//! A bounded amount of something, shared by the tasks of a core.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// An amount that tasks take permits from and return them to. Waiters are served in order, so small
/// requests don't starve a large one.
pub(crate) struct Budget {
    state: RefCell<State>,
}

struct State {
    total: usize,
    free: usize,
    closed: bool,
    next_id: u64,
    /// Bounded by the number of waiting tasks.
    queue: VecDeque<Waiter>,
}

struct Waiter {
    id: u64,
    amount: usize,
    granted: bool,
    waker: Waker,
}

/// A share of a budget; returned when dropped.
pub(crate) struct Permit {
    budget: Rc<Budget>,
    amount: usize,
}

impl State {
    fn enqueue(&mut self, amount: usize, cx: &Context<'_>) -> u64 {
        let (id, amount) = (self.next_id, amount.min(self.total));
        self.next_id += 1;
        self.queue.push_back(Waiter { id, amount, granted: false, waker: cx.waker().clone() });
        id
    }
}

impl Budget {
    pub(crate) fn new(total: usize) -> Rc<Budget> {
        let state = State { total, free: total, closed: false, next_id: 0, queue: VecDeque::new() };
        Rc::new(Budget { state: RefCell::new(state) })
    }

    /// Takes a share if no task is waiting and enough is free. A share larger than the total counts
    /// as the total.
    pub(crate) fn try_acquire(self: &Rc<Self>, amount: usize) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        let amount = amount.min(state.total);
        if state.closed || !state.queue.is_empty() || state.free < amount {
            return None;
        }
        state.free -= amount;
        Some(Permit { budget: self.clone(), amount })
    }

    /// Waits for a share; returns `None` when the budget is closed.
    pub(crate) async fn acquire(self: &Rc<Self>, amount: usize) -> Option<Permit> {
        if let Some(permit) = self.try_acquire(amount) {
            return Some(permit);
        }
        let mut turn = QueuePosition { budget: self, id: None };
        poll_fn(|cx| turn.poll(amount, cx)).await
    }

    /// Closes the budget: all waiting and later requests for a share fail.
    pub(crate) fn close(&self) {
        let waiting: Vec<Waker> = {
            let mut state = self.state.borrow_mut();
            state.closed = true;
            state.queue.iter().map(|waiter| waiter.waker.clone()).collect()
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn give_back(&self, amount: usize) {
        self.state.borrow_mut().free += amount;
        self.grant();
    }

    /// Grants free shares to the waiters at the head of the queue.
    fn grant(&self) {
        let mut woken = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            for waiter in state.queue.iter_mut().filter(|waiter| !waiter.granted) {
                if waiter.amount > state.free {
                    break;
                }
                state.free -= waiter.amount;
                waiter.granted = true;
                woken.push(waiter.waker.clone());
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A place in the queue; abandoned when dropped.
struct QueuePosition<'a> {
    budget: &'a Rc<Budget>,
    id: Option<u64>,
}

impl QueuePosition<'_> {
    fn poll(&mut self, amount: usize, cx: &mut Context<'_>) -> Poll<Option<Permit>> {
        if self.budget.state.borrow().closed {
            return Poll::Ready(None);
        }
        if self.id.is_none() {
            self.id = Some(self.budget.state.borrow_mut().enqueue(amount, cx));
            self.budget.grant();
        }
        self.poll_granted(cx)
    }

    fn poll_granted(&mut self, cx: &mut Context<'_>) -> Poll<Option<Permit>> {
        let mut state = self.budget.state.borrow_mut();
        let position = state.queue.iter().position(|waiter| Some(waiter.id) == self.id);
        let position = position.expect("a waiter stays in the queue until its turn ends");
        if !state.queue[position].granted {
            state.queue[position].waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let waiter = state.queue.remove(position).expect("the position was just found");
        self.id = None;
        Poll::Ready(Some(Permit { budget: self.budget.clone(), amount: waiter.amount }))
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        {
            let mut state = self.budget.state.borrow_mut();
            let position = state.queue.iter().position(|waiter| waiter.id == id);
            let left = position.and_then(|position| state.queue.remove(position));
            if let Some(left) = left.filter(|left| left.granted) {
                state.free += left.amount;
            }
        }
        self.budget.grant();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_large_share_is_not_starved_by_small_ones() {
        rt::block_on(async {
            let budget = Budget::new(10);
            let first = budget.acquire(6).await.unwrap();
            let order = Rc::new(RefCell::new(Vec::new()));
            for amount in [8, 2] {
                let (budget, order) = (budget.clone(), order.clone());
                rt::spawn(async move {
                    let _permit = budget.acquire(amount).await;
                    order.borrow_mut().push(amount);
                });
            }
            rt::yield_now().await;
            assert!(order.borrow().is_empty(), "2 would fit, but 8 came before");
            assert!(budget.try_acquire(1).is_none());
            drop(first);
            while order.borrow().len() < 2 {
                rt::yield_now().await;
            }
            assert_eq!(*order.borrow(), [8, 2]);
            assert!(budget.try_acquire(10).is_some(), "everything is given back");
        })
        .unwrap();
    }

    #[test]
    fn an_abandoned_wait_does_not_block_the_queue() {
        rt::block_on(async {
            let budget = Budget::new(4);
            let all = budget.acquire(100).await.unwrap();
            let short = std::time::Duration::from_millis(1);
            assert!(rt::timeout(short, budget.acquire(4)).await.is_none());
            drop(all);
            assert!(budget.try_acquire(4).is_some());
        })
        .unwrap();
    }

    #[test]
    fn closing_wakes_all_waiters() {
        rt::block_on(async {
            let budget = Budget::new(1);
            let held = budget.acquire(1).await;
            let refused = Rc::new(Cell::new(false));
            let (waiting, seen) = (budget.clone(), refused.clone());
            rt::spawn(async move { seen.set(waiting.acquire(1).await.is_none()) });
            rt::yield_now().await;
            budget.close();
            while !refused.get() {
                rt::yield_now().await;
            }
            drop(held);
            assert!(budget.acquire(1).await.is_none());
        })
        .unwrap();
    }
}
