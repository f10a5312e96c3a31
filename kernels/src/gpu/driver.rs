//! The NVIDIA driver library, loaded without a panic, and the calls that need no
//! context.
//!
//! cudarc loads the library on its first call and panics if it, or a function, is
//! not there. So it is looked at here first, under the same names and in the same
//! order, with every function that this crate calls.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use libloading::os::unix::Library;

use crate::error::{DriverError, Error, Missing, Result};

/// Every driver function that is called in this crate.
const FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncGetParamInfo",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocFromPoolAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

const FIX: &str = "Install the NVIDIA driver, version 570 or newer; in a container, run it with the NVIDIA \
                   container runtime, which puts the host's libcuda.so.1 into it.";

/// Makes every other function of this module callable. Gives the name the library
/// was loaded by.
pub(super) fn load() -> Result<&'static str> {
    static LOADED: OnceLock<String> = OnceLock::new();
    if let Some(name) = LOADED.get() {
        return Ok(name);
    }
    let name = find()?;
    // SAFETY: the library and this function are there.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    Ok(LOADED.get_or_init(|| name))
}

/// Looks at the library that cudarc will load.
fn find() -> Result<String> {
    let missing = |looked_in, fix: &str| -> Error {
        Missing {
            what: "the NVIDIA driver library (libcuda)".into(),
            looked_in,
            fix: fix.into(),
        }
        .into()
    };
    let names = ["cuda", "nvcuda"]
        .into_iter()
        .flat_map(cudarc::get_lib_name_candidates);
    let mut last = None;
    for name in names {
        // SAFETY: the driver library's initialisers may run anywhere. It is closed
        // again only if nobody else loads it.
        let library = match unsafe { Library::new(&name) } {
            Ok(library) => library,
            Err(error) => {
                last = Some(error.to_string());
                continue;
            }
        };
        // SAFETY: the address is only tested for, not called.
        let is_there =
            |function: &&&str| unsafe { library.get::<usize>(function.as_bytes()) }.is_ok();
        let absent: Vec<&str> = FUNCTIONS.iter().filter(|f| !is_there(f)).copied().collect();
        if absent.is_empty() {
            std::mem::forget(library); // cudarc keeps it for good, too
            return Ok(name);
        }
        return Err(missing(
            vec![format!(
                "{name}, which is too old: it lacks {}",
                absent.join(", ")
            )],
            "Update the NVIDIA driver to version 570 or newer.",
        ));
    }
    Err(missing(
        last.into_iter()
            .map(|error| format!("the loader's path: {error}"))
            .collect(),
        FIX,
    ))
}

/// A driver call's result as ours.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is valid for writes; the driver gives a static string
        // that ends in 0, or null.
        unsafe {
            let found = ask(result, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
            found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    Err(DriverError {
        call,
        code: result as u32,
        name: text(sys::cuGetErrorName).unwrap_or_else(|| format!("{result:?}")),
        text: text(sys::cuGetErrorString).unwrap_or_else(|| "no description".into()),
    }
    .into())
}

/// The driver's CUDA version, as 13.0 is (13, 0).
pub(super) fn version() -> Result<(u32, u32)> {
    let mut version: c_int = 0;
    // SAFETY: the pointer is valid for writes.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}

/// How many devices there are.
pub(super) fn device_count() -> Result<usize> {
    let mut count: c_int = 0;
    // SAFETY: the pointer is valid for writes.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    Ok(count as usize)
}

/// The device of that number.
pub(super) fn device(ordinal: usize) -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: the pointer is valid for writes.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&mut device, ordinal as c_int)
    })?;
    Ok(device)
}

/// A number that describes the device.
pub(super) fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the pointer is valid for writes.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&mut value, attribute, device)
    })?;
    Ok(value as u32)
}

/// The device's memory in all.
pub(super) fn total_memory(device: sys::CUdevice) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: the pointer is valid for writes.
    check("cuDeviceTotalMem", unsafe {
        sys::cuDeviceTotalMem_v2(&mut bytes, device)
    })?;
    Ok(bytes)
}

/// The device's name.
pub(super) fn device_name(device: sys::CUdevice) -> Result<String> {
    let mut text = [0_u8; 256];
    // SAFETY: `text` has as many bytes as are said; one is kept as the final 0.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(text.as_mut_ptr().cast(), 255, device)
    })?;
    Ok(until_zero(&text))
}

/// Where the device sits on the bus.
pub(super) fn pci_bus_id(device: sys::CUdevice) -> Result<String> {
    let mut text = [0_u8; 64];
    // SAFETY: as above.
    check("cuDeviceGetPCIBusId", unsafe {
        sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 63, device)
    })?;
    Ok(until_zero(&text).to_lowercase())
}

/// The device's identity.
pub(super) fn uuid(device: sys::CUdevice) -> Result<String> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is valid for writes.
    check("cuDeviceGetUuid", unsafe {
        sys::cuDeviceGetUuid_v2(&mut uuid, device)
    })?;
    let mut text = String::from("GPU");
    for (i, byte) in uuid.bytes.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{:02x}", *byte as u8);
    }
    Ok(text)
}

fn until_zero(text: &[u8]) -> String {
    String::from_utf8_lossy(text)
        .split('\0')
        .next()
        .unwrap_or_default()
        .to_owned()
}
