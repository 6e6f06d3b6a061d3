//! The GPUs that the driver shows.

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;
use serde::Serialize;

/// A GPU.
#[derive(Debug, Clone, Serialize)]
pub struct Gpu {
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Compute capability, as "9.0".
    pub capability: String,
}

type Init = unsafe extern "C" fn(u32) -> c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h).
const CAPABILITY: [c_int; 2] = [75, 76];

/// All GPUs, in the driver's order.
///
/// # Errors
/// A message with the driver's status, as cuda.h numbers them.
pub fn all(driver: &Library) -> Result<Vec<Gpu>, String> {
    let call = |what: &str, status: c_int| match status {
        0 => Ok(()),
        100 => Err("the driver shows no GPU (CUDA_ERROR_NO_DEVICE)".to_string()),
        803 => Err("the driver's library and its kernel module are of different versions".to_string()),
        status => Err(format!("{what} failed with CUDA status {status}")),
    };
    let missing = |error: libloading::Error| format!("the driver's library is not whole: {error}");
    // SAFETY: the types are those of cuda.h; every pointer is to a local of that type.
    unsafe {
        let init = driver.get::<Init>(c"cuInit").map_err(missing)?;
        let count_of = driver.get::<Count>(c"cuDeviceGetCount").map_err(missing)?;
        let get = driver.get::<Get>(c"cuDeviceGet").map_err(missing)?;
        let name_of = driver.get::<Name>(c"cuDeviceGetName").map_err(missing)?;
        let memory_of = driver.get::<Memory>(c"cuDeviceTotalMem_v2").map_err(missing)?;
        let attribute = driver.get::<Attribute>(c"cuDeviceGetAttribute").map_err(missing)?;
        call("cuInit", init(0))?;
        let mut count = 0;
        call("cuDeviceGetCount", count_of(&mut count))?;
        let mut gpus = Vec::new();
        for index in 0..count {
            let (mut device, mut memory, mut capability) = (0, 0usize, [0; 2]);
            let mut name: [c_char; 128] = [0; 128];
            call("cuDeviceGet", get(&mut device, index))?;
            call("cuDeviceGetName", name_of(name.as_mut_ptr(), name.len() as c_int - 1, device))?;
            call("cuDeviceTotalMem", memory_of(&mut memory, device))?;
            for (value, which) in capability.iter_mut().zip(CAPABILITY) {
                call("cuDeviceGetAttribute", attribute(value, which, device))?;
            }
            gpus.push(Gpu {
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                memory_bytes: memory as u64,
                capability: format!("{}.{}", capability[0], capability[1]),
            });
        }
        Ok(gpus)
    }
}
