//! The shared libraries that a GPU needs: where they are, and their versions.

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;
use serde::Serialize;

/// A library that may be there.
pub struct Wanted {
    /// What people call it.
    pub name: &'static str,
    /// File names, the preferred first.
    files: &'static [&'static str],
    /// Asks it for its version, as its own function tells it.
    version: fn(&Library) -> Option<String>,
    /// A function that it must have.
    symbol: &'static CStr,
    /// How to get it.
    pub get: &'static str,
}

/// A library that was looked for.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    pub name: &'static str,
    /// Its file; none: it is nowhere, or doesn't load.
    pub path: Option<PathBuf>,
    /// As the library tells it.
    pub version: Option<String>,
    /// Why a file that is there can't be used.
    pub problem: Option<String>,
}

/// NVIDIA's driver, through which all else works.
pub const DRIVER: Wanted = Wanted {
    name: "driver",
    files: &["libcuda.so.1"],
    version: |library| {
        by_pointer(library, c"cuDriverGetVersion").map(|v| format!("CUDA {}.{}", v / 1000, v % 1000 / 10))
    },
    symbol: c"cuInit",
    get: "install NVIDIA's driver, 525 or later; in a container start it with --gpus all",
};

/// What the training step needs beside the driver, and NCCL between GPUs.
pub const LIBRARIES: [Wanted; 4] = [
    Wanted {
        name: "NVRTC",
        files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
        version: nvrtc_version,
        symbol: c"nvrtcCompileProgram",
        get: "pip install nvidia-cuda-nvrtc, or the CUDA toolkit 12 or 13",
    },
    Wanted {
        name: "cuBLASLt",
        files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
        version: |library| by_value(library, c"cublasLtGetVersion").map(dotted),
        symbol: c"cublasLtMatmul",
        get: "pip install nvidia-cublas, or the CUDA toolkit 12 or 13",
    },
    Wanted {
        name: "cuDNN",
        files: &["libcudnn.so.9", "libcudnn.so"],
        version: |library| by_value(library, c"cudnnGetVersion").map(dotted),
        symbol: c"cudnnBackendExecute",
        get: "pip install nvidia-cudnn-cu13 (or -cu12), 9.0 or later",
    },
    Wanted {
        name: "NCCL",
        files: &["libnccl.so.2", "libnccl.so"],
        version: |library| by_pointer(library, c"ncclGetVersion").map(|v| dotted(v as usize)),
        symbol: c"ncclCommInitRank",
        get: "pip install nvidia-nccl-cu13 (or -cu12)",
    },
];

/// major · 10,000 + minor · 100 + patch, as NVIDIA's libraries write it.
fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

/// `int f(int *version)`, 0 on success.
fn by_pointer(library: &Library, symbol: &CStr) -> Option<c_int> {
    let mut version = 0;
    // SAFETY: the library's header declares the function so.
    let status = unsafe {
        let f = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(symbol).ok()?;
        f(&mut version)
    };
    (status == 0).then_some(version)
}

/// `size_t f(void)`.
fn by_value(library: &Library, symbol: &CStr) -> Option<usize> {
    // SAFETY: the library's header declares the function so.
    Some(unsafe { library.get::<unsafe extern "C" fn() -> usize>(symbol).ok()?() })
}

fn nvrtc_version(library: &Library) -> Option<String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: nvrtc.h: nvrtcResult nvrtcVersion(int *major, int *minor).
    let status = unsafe {
        let f = library.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(c"nvrtcVersion").ok()?;
        f(&mut major, &mut minor)
    };
    (status == 0).then(|| format!("{major}.{minor}"))
}

/// Folders where libraries stand beside those of the loader's own search.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/compat",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",
    ]
    .map(PathBuf::from)
    .to_vec();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).map(|home| PathBuf::from(home).join("lib64")));
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        let Some(environment) = std::env::var_os(variable) else { continue };
        for python in entries(&PathBuf::from(environment).join("lib")) {
            // NVIDIA's wheels: site-packages/nvidia/<library>/lib.
            let wheels = entries(&python.join("site-packages/nvidia"));
            folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
        }
    }
    folders
}

/// What stands in a folder, by name; nothing if it can't be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    paths
}

impl Wanted {
    /// Looks for the library: where the loader looks, then in the usual folders, then in
    /// the wheels of an active Python environment. The handle keeps it loaded.
    pub fn find(&self) -> (Found, Option<Library>) {
        let mut found = Found { name: self.name, path: None, version: None, problem: None };
        let by_name = self.files.iter().map(PathBuf::from);
        let in_folders = folders().into_iter().flat_map(|f| self.files.iter().map(move |file| f.join(file)));
        for candidate in by_name.chain(in_folders.filter(|path| path.exists())) {
            // SAFETY: runs the library's initializers; these are NVIDIA's own libraries by name.
            let library = match unsafe { Library::new(&candidate) } {
                Ok(library) => library,
                Err(error) => {
                    // One that isn't there is no problem of that one.
                    let text = error.to_string();
                    if candidate.is_absolute() || !text.contains("cannot open shared object file") {
                        found.problem.get_or_insert(text);
                    }
                    continue;
                }
            };
            match address(&library, self.symbol) {
                Some(address) => {
                    found.path = Some(file_of(address).unwrap_or(candidate));
                    found.version = (self.version)(&library);
                    found.problem = None;
                    return (found, Some(library));
                }
                None => {
                    let symbol = self.symbol.to_string_lossy();
                    let file = loaded(&candidate).unwrap_or(candidate);
                    found.problem.get_or_insert(format!("{}: it has no {symbol}", file.display()));
                }
            }
        }
        (found, None)
    }
}

fn address(library: &Library, symbol: &CStr) -> Option<*const c_void> {
    // SAFETY: the symbol is not called, only its address is taken.
    unsafe { library.get::<*const c_void>(symbol).ok().map(|s| *s) }
}

/// The file under which a library of this name is loaded.
fn loaded(name: &Path) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let end = format!("/{}", name.file_name()?.to_string_lossy());
    maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).find(|path| path.ends_with(&end)).map(PathBuf::from)
}

/// The file that an address is from.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: dladdr fills the struct or returns 0; the name lives as long as its library.
    let name = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    let path = PathBuf::from(name.to_string_lossy().into_owned());
    Some(path.canonicalize().unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(dotted(91_400), "9.14.0");
        assert_eq!(dotted(22_803), "2.28.3");
        assert_eq!(dotted(130_002), "13.0.2");
    }

    /// A library that every Linux has, looked for in the same way.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_is_found_with_its_file_or_not_at_all() {
        let libc = Wanted {
            name: "C",
            files: &["libnot-there.so", "libc.so.6"],
            version: |_| None,
            symbol: c"qsort",
            get: "",
        };
        let (found, library) = libc.find();
        assert!(library.is_some() && found.problem.is_none(), "{found:?}");
        assert!(found.path.is_some_and(|p| p.is_absolute() && p.to_string_lossy().contains("libc")));
        let (found, library) = Wanted { files: &["libnot-there.so"], ..libc }.find();
        assert!(library.is_none() && found.path.is_none(), "{found:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_without_its_functions_is_no_library() {
        let wrong =
            Wanted { name: "C", files: &["libc.so.6"], version: |_| None, symbol: c"cudnnBackendExecute", get: "" };
        let (found, library) = wrong.find();
        assert!(library.is_none() && found.path.is_none());
        assert!(found.problem.is_some_and(|p| p.contains("cudnnBackendExecute")));
    }
}
