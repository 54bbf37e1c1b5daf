//! How much memory a piece of work holds at most: an allocator that counts, for each thread.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(change: impl FnOnce(usize) -> usize) {
    // Not while a thread ends.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        let now = change(now);
        held.set((now, most.max(now)));
    });
}

// SAFETY: everything is left to the system's allocator; the counters neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|held| held.wrapping_add(layout.size()));
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(|held| held.wrapping_add(layout.size()));
        System.alloc_zeroed(layout)
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(|held| held.wrapping_sub(layout.size()));
        System.dealloc(place, layout);
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist for a moment.
        count(|held| held.wrapping_add(size));
        count(|held| held.wrapping_sub(layout.size()));
        System.realloc(place, layout, size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the work gives, and the most bytes that it held.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    // An offset keeps what the work frees of others above zero.
    const GROUND: usize = usize::MAX / 2;
    let before = HELD.get();
    HELD.set((GROUND, GROUND));
    let done = work();
    let most = HELD.get().1 - GROUND;
    HELD.set(before);
    (done, most)
}
