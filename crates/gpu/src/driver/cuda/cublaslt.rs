//! cuBLASLt as a partner to compare products with: loaded when it is asked for, from where the system finds it, and needed by
//! nothing.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::{result as blas, sys as blas_sys};
use cudarc::driver::{result, sys};

use super::{CudaDevice, CudaDriver, Events, Recorded, failed};
use crate::driver::Driver;
use crate::params::Address;
use crate::vendor::{Numbers, Product, VendorError};

/// What the library may use beside the operands: as much as it recommends for this generation, and more.
const WORKSPACE_BYTES: usize = 64 << 20;

/// `cublasOperation_t` of the library's header: the transpose. Its bindings lack it.
const CUBLAS_OP_T: i32 = 1;

/// The library on a device.
pub(crate) struct Library {
    driver: CudaDriver,
    handle: blas_sys::cublasLtHandle_t,
    workspace: Address,
}

/// Operands in device memory: copies of weights, rows, and their products.
pub(crate) struct Operands {
    weights: Vec<Address>,
    x: Address,
    y: Address,
}

/// Where `error` came from, in the library's words.
fn refused(what: &str) -> impl Fn(blas::CublasError) -> VendorError {
    move |error| VendorError::Failed { reason: format!("{what}: {error}") }
}

impl Library {
    /// Loads the library.
    pub(crate) fn open(device: &CudaDevice) -> Result<Self, VendorError> {
        // SAFETY: opens and closes the library, whose initialisers are its own.
        if !unsafe { blas_sys::is_culib_present() } {
            return Err(VendorError::Missing);
        }
        let mut driver = CudaDriver::open(device)?;
        let workspace = driver.allocate(WORKSPACE_BYTES as u64)?;
        // The context is current: `open` made it so.
        let handle = blas::create_handle().map_err(refused("cublasLtCreate"))?;
        Ok(Self { driver, handle, workspace })
    }

    /// Puts `weights` on the device so many times, and `x`.
    pub(crate) fn upload(
        &mut self,
        product: &Product,
        copies: usize,
        weights: &[u16],
        x: &[u16],
    ) -> Result<Operands, VendorError> {
        let mut operands = Operands { weights: Vec::with_capacity(copies), x: Address(0), y: Address(0) };
        for _ in 0..copies {
            let address = self.driver.allocate(size_of_val(weights) as u64)?;
            operands.weights.push(address);
            self.driver.upload(address, bytemuck::cast_slice(weights))?;
        }
        operands.x = self.driver.allocate(size_of_val(x) as u64)?;
        self.driver.upload(operands.x, bytemuck::cast_slice(x))?;
        operands.y = self.driver.allocate((product.rows * product.out_features * size_of::<u16>()) as u64)?;
        Ok(operands)
    }

    /// What [`Self::upload`] took.
    pub(crate) fn free(&mut self, operands: Operands) {
        let Operands { weights, x, y } = operands;
        weights.into_iter().chain([x, y]).for_each(|address| self.driver.free(address));
    }

    /// Seconds of one product: `launches` of them in a graph, over the copies of weights in turn, replayed so many times after
    /// one that does not count.
    pub(crate) fn time(
        &mut self,
        product: &Product,
        operands: &Operands,
        launches: usize,
        replays: usize,
    ) -> Result<Vec<f64>, VendorError> {
        let plan = Plan::new(self.handle, product)?;
        self.driver.enter()?;
        let stream = self.driver.stream;
        // What the library loads when it is first needed may not be loaded while a graph is recorded.
        plan.enqueue(self, operands.weights[0], operands)?;
        self.driver.synchronize()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the driver.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(failed)?;
        let enqueued = (0..launches).try_for_each(|index| {
            let weights = operands.weights[index % operands.weights.len()];
            plan.enqueue(self, weights, operands)
        });
        // SAFETY: as above; the capture ends whatever happened.
        let graph = unsafe { result::stream::end_capture(stream) };
        enqueued?;
        let graph = graph.map_err(failed)?;
        // SAFETY: the graph was just made.
        let recording = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: the graph is not needed any more.
        unsafe { result::graph::destroy(graph) }.map_err(failed)?;
        let recording = recording.map_err(failed)?;
        // The driver destroys it with its own.
        self.driver.recordings.push(Recorded::Graph(recording));
        let mut seconds = Vec::with_capacity(replays);
        for replay in 0..=replays {
            let mut events = Events(Vec::with_capacity(2));
            events.mark(stream)?;
            // SAFETY: just made, of operands that live.
            unsafe { result::graph::launch(recording, stream) }.map_err(failed)?;
            events.mark(stream)?;
            self.driver.synchronize()?;
            if replay > 0 {
                let nanoseconds = events.edges_ns()?.last().copied().unwrap_or(0);
                seconds.push(nanoseconds.max(1) as f64 / 1e9 / launches as f64);
            }
        }
        self.driver.forget_recordings();
        Ok(seconds)
    }

    /// What the last product left.
    pub(crate) fn download(&mut self, operands: &Operands, y: &mut [u16]) -> Result<(), VendorError> {
        Ok(self.driver.download(operands.y, bytemuck::cast_slice_mut(y))?)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = self.driver.enter();
        // SAFETY: made in `open`, and not used again.
        let _ = unsafe { blas::destroy_handle(self.handle) };
        self.driver.free(self.workspace);
    }
}

/// A product as the library sees it, and the way that it chose.
///
/// It counts by columns: a row-major matrix is its transpose. So `y = x · wᵀ`, all by rows, is `y = transposed(w) · x`, all by
/// columns.
struct Plan {
    product: blas_sys::cublasLtMatmulDesc_t,
    w: blas_sys::cublasLtMatrixLayout_t,
    x: blas_sys::cublasLtMatrixLayout_t,
    y: blas_sys::cublasLtMatrixLayout_t,
    way: Option<blas_sys::cublasLtMatmulAlgo_t>,
}

impl Plan {
    fn new(handle: blas_sys::cublasLtHandle_t, product: &Product) -> Result<Self, VendorError> {
        use blas_sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        use blas_sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let numbers = match product.numbers {
            Numbers::F16 => blas_sys::cudaDataType::CUDA_R_16F,
            Numbers::BF16 => blas_sys::cudaDataType::CUDA_R_16BF,
        };
        let &Product { rows, out_features: n, in_features: k, .. } = product;
        let layout = |rows: usize, columns: usize| {
            let made = blas::create_matrix_layout(numbers, rows as u64, columns as u64, rows as i64);
            made.map_err(refused("cublasLtMatrixLayoutCreate"))
        };
        let (product_of, none) = (ptr::null_mut(), ptr::null_mut());
        let mut plan = Self { product: product_of, w: none, x: none, y: none, way: None };
        plan.product = blas::create_matmul_desc(
            blas_sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            blas_sys::cudaDataType::CUDA_R_32F,
        )
        .map_err(refused("cublasLtMatmulDescCreate"))?;
        let transposed = CUBLAS_OP_T;
        // SAFETY: the description was just made, and the attribute is of this type.
        unsafe {
            let from = (&raw const transposed).cast();
            blas::set_matmul_desc_attribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, from, size_of_val(&transposed))
        }
        .map_err(refused("cublasLtMatmulDescSetAttribute"))?;
        (plan.w, plan.x, plan.y) = (layout(k, n)?, layout(k, rows)?, layout(n, rows)?);
        let preference = blas::create_matmul_pref().map_err(refused("cublasLtMatmulPreferenceCreate"))?;
        let workspace = WORKSPACE_BYTES as u64;
        // SAFETY: all were made above and live; the attribute is of this type.
        let found = unsafe {
            let from = (&raw const workspace).cast();
            let most = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            blas::set_matmul_pref_attribute(preference, most, from, size_of_val(&workspace)).and_then(|()| {
                blas::get_matmul_algo_heuristic(handle, plan.product, plan.w, plan.x, plan.y, plan.y, preference)
            })
        };
        // SAFETY: made above, and not used again.
        let _ = unsafe { blas::destroy_matmul_pref(preference) };
        plan.way = Some(found.map_err(refused("cublasLtMatmulAlgoGetHeuristic"))?.algo);
        Ok(plan)
    }

    fn enqueue(&self, library: &Library, weights: Address, operands: &Operands) -> Result<(), VendorError> {
        let (one, zero) = (1f32, 0f32);
        let at = |address: Address| address.0 as *mut c_void;
        let way = self.way.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the operands were allocated as large as the layouts say, the workspace as large as the preference did; the
        // factors are read before the call returns, since they lie with the host.
        unsafe {
            blas::matmul(
                library.handle,
                self.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                at(weights),
                self.w,
                at(operands.x),
                self.x,
                at(operands.y),
                self.y,
                at(operands.y),
                self.y,
                way,
                at(library.workspace),
                WORKSPACE_BYTES,
                library.driver.stream.cast(),
            )
        }
        .map_err(refused("cublasLtMatmul"))
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for layout in [self.w, self.x, self.y] {
            if !layout.is_null() {
                // SAFETY: made in `new`, and not used again.
                let _ = unsafe { blas::destroy_matrix_layout(layout) };
            }
        }
        if !self.product.is_null() {
            // SAFETY: as above.
            let _ = unsafe { blas::destroy_matmul_desc(self.product) };
        }
    }
}
