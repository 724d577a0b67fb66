//! Memory that all workers of a step see, and the zeroed allocations behind it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use bytemuck::Pod;

/// A slice that several workers read and write at once, each its own part.
///
/// The one place where a `&mut` is split without the compiler seeing that the parts are disjoint. What makes every use
/// sound is one rule: between two barriers, an element is either written by one worker, or only read.
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to different threads, so it needs what sending them needs; reading a part
// from several threads needs `Sync`.
unsafe impl<T: Send + Sync> Sync for SharedSlice<'_, T> {}
// SAFETY: as for `&mut [T]`.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares `slice` for as long as it is borrowed.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Where the first element lies, for hints to the processor.
    #[inline(always)]
    pub(crate) fn address(&self) -> *const T {
        self.start
    }

    /// The elements of `range`, to read.
    ///
    /// # Safety
    ///
    /// Until the next barrier no worker writes to `range`, and this one drops the result before it does.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: in bounds by the check; not written meanwhile, which the caller owes.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.end - range.start) }
    }

    /// The elements of `range`, to write.
    ///
    /// # Safety
    ///
    /// Until the next barrier no other worker touches `range`, and this one drops the result before it asks for any
    /// part of `range` again.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, range: Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: in bounds by the check; not aliased, which the caller owes.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// Writes one element.
    ///
    /// # Safety
    ///
    /// Until the next barrier no other worker touches the element, and this one holds no slice with it.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        assert!(index < self.len, "element {index} of a shared slice of {}", self.len);
        // SAFETY: in bounds by the check; not aliased, which the caller owes. `T` is plain data wherever it is used, and
        // an assignment drops what was there in any case.
        unsafe { *self.start.add(index) = value }
    }

    #[inline(always)]
    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a shared slice of {}", self.len);
    }
}

/// Zeroed memory on a cache line boundary. Large ones cost nothing until they are touched: the system maps zero pages
/// lazily, each where the first thread to write it runs.
pub(crate) struct AlignedBuffer<T: Pod> {
    start: NonNull<T>,
    len: usize,
    /// What was allocated: `start` is the first aligned place in it. `None` when `len` is zero.
    allocation: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: it owns its elements, which are plain data.
unsafe impl<T: Pod + Send> Send for AlignedBuffer<T> {}
// SAFETY: as for `Vec<T>`.
unsafe impl<T: Pod + Sync> Sync for AlignedBuffer<T> {}

impl<T: Pod> AlignedBuffer<T> {
    /// Two cache lines: what the adjacent-line prefetcher fetches together.
    const ALIGN: usize = 128;

    /// A large page.
    const LARGE_PAGE: usize = 2 << 20;

    /// `len` zeroes, or `None` when the system does not give the memory.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        Self::allocate(len, Self::ALIGN)
    }

    /// As [`AlignedBuffer::zeroed`], in large pages where the system has them and `len` fills one: for what is written
    /// through soon and streamed often. A cache of which each layer begins to fill a little would pay for whole pages.
    pub(crate) fn zeroed_in_large_pages(len: usize) -> Option<Self> {
        let large = len.saturating_mul(size_of::<T>()) >= Self::LARGE_PAGE;
        Self::allocate(len, if large { Self::LARGE_PAGE } else { Self::ALIGN })
    }

    fn allocate(len: usize, align: usize) -> Option<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= Self::ALIGN) };
        if len == 0 {
            return Some(Self::default());
        }
        // The standard allocator clears memory of a larger alignment by writing to it, so we align within a larger piece.
        let used = len.checked_mul(size_of::<T>())?;
        let bytes = used.checked_add(align)?;
        let layout = Layout::from_size_align(bytes, 1).ok()?;
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let offset = base.align_offset(align);
        // SAFETY: the offset is below `align`, and so many bytes more than `len` elements take were allocated.
        let start = unsafe { base.add(offset) };
        if align == Self::LARGE_PAGE {
            ask_for_large_pages(start, used);
        }
        let start = start.cast();
        Some(Self { start, len, allocation: Some((base, layout)) })
    }
}

/// Asks for large pages under memory that is not touched yet: streams then miss the address cache less. A refusal costs
/// speed only.
fn ask_for_large_pages(start: NonNull<u8>, len: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: advice on memory that we own; it changes no contents.
    unsafe {
        libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, len);
}

impl<T: Pod> Default for AlignedBuffer<T> {
    /// No elements.
    fn default() -> Self {
        Self { start: NonNull::dangling(), len: 0, allocation: None }
    }
}

impl<T: Pod> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        if let Some((base, layout)) = self.allocation {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

impl<T: Pod> Deref for AlignedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated, and all-zero bytes are a value of a `Pod`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        for len in [0, 1, 31, 1000] {
            let mut buffer = AlignedBuffer::<f32>::zeroed(len).unwrap();
            assert!(buffer.iter().all(|&v| v == 0.0) && buffer.len() == len);
            buffer.fill(1.0);
            assert!(len == 0 || buffer.as_ptr().addr().is_multiple_of(128));
        }
        for len in [0, 1, 2 << 20] {
            let mut buffer = AlignedBuffer::<u16>::zeroed_in_large_pages(len).unwrap();
            assert!(buffer.iter().all(|&v| v == 0) && buffer.len() == len);
            buffer.fill(1);
            assert!(len < 1 << 20 || buffer.as_ptr().addr().is_multiple_of(2 << 20));
        }
        assert!(AlignedBuffer::<f32>::zeroed(usize::MAX / 2).is_none());
    }

    #[test]
    fn threads_write_their_own_parts() {
        let mut data = vec![0usize; 100];
        let shared = SharedSlice::new(&mut data);
        std::thread::scope(|scope| {
            for part in 0..4 {
                let shared = &shared;
                // SAFETY: each thread has its own 25 elements.
                scope.spawn(move || unsafe { shared.write(part * 25..(part + 1) * 25) }.fill(part));
            }
        });
        assert!(data.iter().enumerate().all(|(i, &part)| part == i / 25));
    }

    #[test]
    #[should_panic(expected = "of a shared slice of 4")]
    fn a_range_outside_is_a_panic() {
        let mut data = [0u8; 4];
        let shared = SharedSlice::new(&mut data);
        // SAFETY: one thread only.
        unsafe { shared.read(2..5) };
    }
}
