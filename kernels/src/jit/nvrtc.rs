//! NVRTC, NVIDIA's run-time compiler, called through a binding of our own.
//!
//! cudarc's binding panics when the library is absent and looks for it by name
//! only. This one gives errors, looks where pip and toolkits put it, and needs no
//! driver, so texts can be compiled on a machine without a GPU.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL};

use super::{CompiledImage, Header, Source};
use crate::error::{CompileError, Error, Missing, Result};

/// Names the library file.
pub const FILE_VARIABLE: &str = "WARPLINE_NVRTC";
/// Names the folder that holds it, and its builtins beside it.
pub const FOLDER_VARIABLE: &str = "WARPLINE_NVRTC_DIR";

/// The options of every compilation, besides the architecture and macros.
/// Products and sums are rounded apart (no fmad), so that a float is the same as
/// on the CPU plan.
const OPTIONS: &[&str] = &[
    "--std=c++17",
    "--device-int128",
    // Lambdas carry no annotation of their own.
    "-default-device",
    "--fmad=false",
    "--ptxas-options=-v",
];

/// Compiles a text to a cubin for `arch`, as `sm_90`. Needs no driver.
pub fn compile_cubin(source: &Source, headers: &[Header], arch: &str) -> Result<CompiledImage> {
    Nvrtc::get()?.compile(source, headers, arch)
}

type Program = *mut c_void;
type Code = c_int;
type Strings = *const *const c_char;

/// The loaded library.
pub struct Nvrtc {
    version: (u32, u32),
    found_at: String,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        Strings,
        Strings,
    ) -> Code,
    compile: unsafe extern "C" fn(Program, c_int, Strings) -> Code,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    destroy: unsafe extern "C" fn(*mut Program) -> Code,
    error_text: unsafe extern "C" fn(Code) -> *const c_char,
    /// The functions above point into these.
    _libraries: Vec<Library>,
}

impl Nvrtc {
    /// The library, loaded on first use. What was not found is looked for again.
    pub fn get() -> Result<&'static Nvrtc> {
        static LOADED: OnceLock<Nvrtc> = OnceLock::new();
        if let Some(nvrtc) = LOADED.get() {
            return Ok(nvrtc);
        }
        let nvrtc = Nvrtc::find()?;
        Ok(LOADED.get_or_init(|| nvrtc))
    }

    /// Its version, as 13.0 is (13, 0).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The file or name that it was loaded by.
    pub fn found_at(&self) -> &str {
        &self.found_at
    }

    /// What goes into cache keys for it.
    pub fn identity(&self) -> String {
        format!(
            "nvrtc {}.{} {}",
            self.version.0,
            self.version.1,
            OPTIONS.join(" ")
        )
    }

    fn find() -> Result<Nvrtc> {
        let mut looked_in = Vec::new();
        for place in places() {
            match place.files() {
                Ok(files) if files.is_empty() => {
                    looked_in.push(format!("{place}: no libnvrtc.so there"))
                }
                Ok(files) => {
                    for file in files {
                        match Nvrtc::open(&file) {
                            Ok(nvrtc) => return Ok(nvrtc),
                            Err(why) => looked_in.push(format!("{}: {why}", file.display())),
                        }
                    }
                }
                Err(why) => looked_in.push(format!("{place}: {why}")),
            }
            if place.is_asked_for() {
                break; // a place that was named is not silently passed over
            }
        }
        Err(Missing {
            what: "the CUDA run-time compiler (libnvrtc)".into(),
            looked_in,
            fix: format!(
                "Install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, of the driver's CUDA version or \
                 older, and set {FOLDER_VARIABLE} to the folder that holds libnvrtc.so if it is not found."
            ),
        }
        .into())
    }

    fn open(file: &Path) -> Result<Nvrtc, String> {
        let mut libraries = Vec::new();
        // NVRTC opens its builtins by name only, so they are loaded first.
        let folder = file
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        for builtins in folder
            .map(|f| libraries_in(f, "libnvrtc-builtins.so"))
            .unwrap_or_default()
        {
            // SAFETY: a library of data; its initialisers do nothing but register.
            if let Ok(library) = unsafe { Library::open(Some(&builtins), RTLD_LAZY | RTLD_GLOBAL) }
            {
                libraries.push(library);
                break;
            }
        }
        // SAFETY: NVRTC's initialisers may run anywhere.
        let library = unsafe { Library::open(Some(file), RTLD_LAZY | RTLD_LOCAL) }
            .map_err(|e| e.to_string())?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field or binding it goes to has the type that nvrtc.h
                // gives the function, and `libraries` keeps it loaded.
                unsafe { *library.get($name).map_err(|e| e.to_string())? }
            };
        }
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code =
            function!("nvrtcVersion");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid for writes.
        let code = unsafe { version(&mut major, &mut minor) };
        if code != 0 {
            return Err(format!("nvrtcVersion gave {code}"));
        }
        Ok(Nvrtc {
            version: (major as u32, minor as u32),
            found_at: file.display().to_string(),
            create: function!("nvrtcCreateProgram"),
            compile: function!("nvrtcCompileProgram"),
            log_size: function!("nvrtcGetProgramLogSize"),
            log: function!("nvrtcGetProgramLog"),
            cubin_size: function!("nvrtcGetCUBINSize"),
            cubin: function!("nvrtcGetCUBIN"),
            destroy: function!("nvrtcDestroyProgram"),
            error_text: function!("nvrtcGetErrorString"),
            _libraries: {
                libraries.push(library);
                libraries
            },
        })
    }

    /// Compiles a text to a cubin for `arch`, as `sm_90`.
    pub fn compile(
        &self,
        source: &Source,
        headers: &[Header],
        arch: &str,
    ) -> Result<CompiledImage> {
        let text = c_string(&source.full_text())?;
        let name = c_string(&source.name)?;
        let header_texts = headers
            .iter()
            .map(|h| c_string(h.text))
            .collect::<Result<Vec<_>>>()?;
        let header_names = headers
            .iter()
            .map(|h| c_string(h.name))
            .collect::<Result<Vec<_>>>()?;
        let options = std::iter::once(format!("--gpu-architecture={arch}"))
            .chain(OPTIONS.iter().map(|option| option.to_string()))
            .chain(self.no_cache().map(str::to_owned))
            .chain(source.define_options())
            .map(|option| c_string(&option))
            .collect::<Result<Vec<_>>>()?;
        let (header_texts_raw, header_names_raw) =
            (pointers(&header_texts), pointers(&header_names));
        let options_raw = pointers(&options);

        let mut program = std::ptr::null_mut();
        // SAFETY: all strings end in 0 and live through the call, which copies them.
        let code = unsafe {
            (self.create)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                header_texts_raw.as_ptr(),
                header_names_raw.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        let program = Owned {
            nvrtc: self,
            program,
        };
        // SAFETY: the program is live; the options live through the call.
        let code = unsafe {
            (self.compile)(
                program.program,
                options.len() as c_int,
                options_raw.as_ptr(),
            )
        };
        let log = program.fetch("nvrtcGetProgramLog", self.log_size, self.log)?;
        let log = String::from_utf8_lossy(&log)
            .trim_end_matches('\0')
            .to_owned();
        if code != 0 {
            let log = if log.trim().is_empty() {
                self.text_of(code)
            } else {
                log
            };
            return Err(CompileError {
                kernel: source.name.clone(),
                compiler: format!("nvrtc {}.{} for {arch}", self.version.0, self.version.1),
                log,
                source_file: None,
                log_file: None,
            }
            .into());
        }
        let bytes = program.fetch("nvrtcGetCUBIN", self.cubin_size, self.cubin)?;
        Ok(CompiledImage { bytes, log })
    }

    /// NVRTC's own cache answers without the assembler's log, and ours makes it
    /// redundant. Versions before 13 have neither the cache nor the option.
    fn no_cache(&self) -> Option<&'static str> {
        (self.version >= (13, 0)).then_some("--no-cache")
    }

    fn check(&self, call: &str, code: Code) -> Result<()> {
        match code {
            0 => Ok(()),
            _ => Err(Error::Internal(format!(
                "{call} failed: {} ({code})",
                self.text_of(code)
            ))),
        }
    }

    fn text_of(&self, code: Code) -> String {
        // SAFETY: it takes any number and gives a static string.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: as above; the string ends in 0.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Nvrtc({}.{} from {})",
            self.version.0, self.version.1, self.found_at
        )
    }
}

struct Owned<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Owned<'_> {
    fn fetch(
        &self,
        call: &str,
        size_of: unsafe extern "C" fn(Program, *mut usize) -> Code,
        fill: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    ) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is live.
        let code = unsafe { size_of(self.program, &mut size) };
        self.nvrtc.check(call, code)?;
        let mut bytes = vec![0_u8; size];
        if size > 0 {
            // SAFETY: `bytes` has as many bytes as the library says it fills.
            self.nvrtc.check(call, unsafe {
                fill(self.program, bytes.as_mut_ptr().cast())
            })?;
        }
        Ok(bytes)
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is live and dies here.
        unsafe { (self.nvrtc.destroy)(&mut self.program) };
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Internal("a kernel's text contains a zero byte".into()))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).collect()
}

/// Where the library may be.
enum Place {
    File(PathBuf),
    AskedFolder(PathBuf),
    Folder(PathBuf),
    Loader,
}

impl Place {
    fn is_asked_for(&self) -> bool {
        matches!(self, Place::File(_) | Place::AskedFolder(_))
    }

    fn files(&self) -> Result<Vec<PathBuf>, std::io::Error> {
        match self {
            Place::File(file) => Ok(vec![file.clone()]),
            Place::AskedFolder(folder) | Place::Folder(folder) => {
                std::fs::read_dir(folder)?;
                Ok(libraries_in(folder, "libnvrtc.so"))
            }
            Place::Loader => Ok(["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
                .map(PathBuf::from)
                .into()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(file) => write!(f, "{FILE_VARIABLE}={}", file.display()),
            Place::AskedFolder(folder) => write!(f, "{FOLDER_VARIABLE}={}", folder.display()),
            Place::Folder(folder) => write!(f, "{}", folder.display()),
            Place::Loader => f.write_str("the loader's path"),
        }
    }
}

fn places() -> Vec<Place> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value: &OsString| !value.is_empty())
            .map(PathBuf::from)
    };
    let mut places = Vec::new();
    places.extend(set(FILE_VARIABLE).map(Place::File));
    places.extend(set(FOLDER_VARIABLE).map(Place::AskedFolder));
    places.push(Place::Loader);
    for toolkit in entries_of(Path::new("/usr/local"), "cuda") {
        places.push(Place::Folder(toolkit.join("lib64")));
    }
    if let Some(environment) = set("VIRTUAL_ENV") {
        for python in entries_of(&environment.join("lib"), "python3") {
            let nvidia = python.join("site-packages/nvidia");
            for folder in ["cu13/lib", "cuda_nvrtc/lib"] {
                places.push(Place::Folder(nvidia.join(folder)));
            }
        }
    }
    places
}

fn entries_of(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// The files named `stem` or `stem.1.2`, highest version first, then the bare name.
/// Variants such as `libnvrtc.alt.so.13` do not match.
fn libraries_in(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let version = |file: &Path| -> Option<Vec<u32>> {
        let name = file.file_name()?.to_str()?.strip_prefix(stem)?;
        name.split('.')
            .skip(1)
            .map(|part| part.parse().ok())
            .collect()
    };
    let mut files: Vec<PathBuf> = entries_of(folder, stem)
        .into_iter()
        .filter(|file| version(file).is_some())
        .collect();
    files.sort_by_key(|file| std::cmp::Reverse(version(file)));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_comes_first_and_variants_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "libnvrtc.so",
            "libnvrtc.so.12",
            "libnvrtc.so.13.0.88",
            "libnvrtc.alt.so.13",
            "libnvrtc.so.old",
        ];
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = libraries_in(folder.path(), "libnvrtc.so");
        let found: Vec<_> = found
            .iter()
            .map(|file| file.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(
            found,
            ["libnvrtc.so.13.0.88", "libnvrtc.so.12", "libnvrtc.so"]
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnvrtc.so.13");
        std::fs::write(&file, "not a library").unwrap();
        assert!(Nvrtc::open(&file).is_err());
    }
}
