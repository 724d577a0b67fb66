//! What glibc's allocator keeps. How many arenas glibc's allocator keeps: each thread that allocates while others do gets one of its own, up to eight for
//! each processor, and what a large request leaves free in one is of no use to the next, which another thread prepares.

/// Has the allocator keep at most `count` arenas from now on, so that freed memory is used again, or goes back to the
/// system. With few arenas, threads that allocate at once wait for each other more often. Call it before there are
/// threads, because the arenas that exist stay. Does nothing where the allocator is not glibc's.
pub fn keep_few_arenas(count: u8) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number inside the allocator, under its own lock; it may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, i32::from(count));
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = count;
}

/// Gives the memory that was freed, and that the allocator keeps for later, back to the system. Does nothing where the
/// allocator is not glibc's.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: looks at what is free, under the allocator's own locks; it may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
