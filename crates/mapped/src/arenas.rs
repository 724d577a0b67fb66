//! How many arenas glibc's allocator keeps: each thread that allocates while others do gets one of its own, up to eight for
//! each processor, and what a large request leaves free in one is of no use to the next, which another thread prepares.

/// Has the allocator keep at most two arenas from now on, so that freed memory is used again, or goes back to the system.
/// Call it before there are threads: the arenas that there are stay. Does nothing where the allocator is not glibc's.
pub fn keep_few_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number inside the allocator, under its own lock; it may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
