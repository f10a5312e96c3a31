//! Compiling in a child process, because a compiler that works for a stranger cannot be
//! interrupted: the child has limits of time and memory, and may die of them.
//!
//! The child is a program of ours that calls [`serve`]. It gets the module on standard
//! input and writes the machine code to standard output.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine;
use crate::error::{Error, Result};
use crate::loader::MODULE_BYTES_MAX;

/// Processor time that a module may take to compile.
const CPU_SECONDS_MAX: u64 = 30;
/// Time on the clock.
const WALL_MAX: Duration = Duration::from_secs(60);
/// Address space of the child.
const MEMORY_MAX: u64 = 4 << 30;
/// Machine code that is taken from it.
const CODE_BYTES_MAX: u64 = 256 << 20;
/// How much of what it says goes into a message.
const STDERR_MAX: u64 = 2_000;

/// Who compiles.
#[derive(Debug, Clone)]
pub enum Compiler {
    /// A child process: this program with these arguments, which calls [`serve`].
    Child {
        /// The program.
        program: PathBuf,
        /// Its arguments.
        args: Vec<String>,
    },
    /// This process. Only for modules that are trusted: nothing bounds it.
    InProcess,
}

impl Compiler {
    /// Machine code for a module that the loader has checked.
    pub(crate) fn compile(
        &self,
        engine: &wasmtime::Engine,
        wasm: &[u8],
        deterministic: bool,
    ) -> Result<Vec<u8>> {
        match self {
            Compiler::InProcess => engine
                .precompile_module(wasm)
                .map_err(|error| Error::Compile {
                    problem: format!("{error:#}"),
                }),
            Compiler::Child { program, args } => {
                let mut command = Command::new(program);
                command.args(args);
                in_child(command, wasm, deterministic)
            }
        }
    }
}

fn in_child(mut command: Command, wasm: &[u8], deterministic: bool) -> Result<Vec<u8>> {
    let system = |what| {
        move |error: std::io::Error| Error::System {
            what,
            problem: error.to_string(),
        }
    };
    let mut child = command
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(system("start the compiler of user functions"))?;
    let (mut stdin, stdout, stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut code = Vec::new();
    let mut said = Vec::new();
    let ended = std::thread::scope(|scope| {
        // A child that dies early leaves a broken pipe: its status says more than that.
        scope.spawn(move || {
            if let Some(pipe) = stdin.as_mut() {
                let _ = pipe.write_all(&[u8::from(deterministic)]);
                let _ = pipe.write_all(wasm);
            }
        });
        scope.spawn(|| read(stdout, CODE_BYTES_MAX, &mut code));
        scope.spawn(|| read(stderr, STDERR_MAX, &mut said));
        wait(&mut child)
    });
    let problem = match ended.map_err(system("wait for the compiler of user functions"))? {
        None => format!("it took longer than {} s", WALL_MAX.as_secs()),
        Some(status) if status.success() && !code.is_empty() => return Ok(code),
        Some(status) => {
            let said = String::from_utf8_lossy(&said);
            match said.lines().find_map(|line| line.strip_prefix("problem: ")) {
                Some(problem) => problem.to_string(),
                None => format!(
                    "the compiler ended with {status}, which happens beyond {CPU_SECONDS_MAX} s \
                     of processor time or {} MiB of memory",
                    MEMORY_MAX >> 20
                ),
            }
        }
    };
    Err(Error::Compile { problem })
}

fn read(pipe: Option<impl Read>, most: u64, into: &mut Vec<u8>) {
    if let Some(pipe) = pipe {
        // What is cut off or fails to come shows in the child's status or in the code.
        let _ = pipe.take(most).read_to_end(into);
    }
}

/// The child's status; none when it had to be killed for taking too long.
fn wait(child: &mut Child) -> std::io::Result<Option<std::process::ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > WALL_MAX {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The child's side: limits itself, reads a module, writes machine code. Returns the
/// process's exit code.
pub fn serve() -> u8 {
    match limit_self().and_then(|()| serve_one()) {
        Ok(()) => 0,
        Err(problem) => {
            eprintln!("problem: {problem}");
            1
        }
    }
}

fn serve_one() -> std::result::Result<(), String> {
    let mut input = Vec::new();
    std::io::stdin()
        .take(MODULE_BYTES_MAX as u64 + 2)
        .read_to_end(&mut input)
        .map_err(|error| error.to_string())?;
    let (deterministic, wasm) = input.split_first().ok_or("no module on standard input")?;
    let engine = engine::new(*deterministic != 0).map_err(|error| error.to_string())?;
    // One line: wasmtime's messages about a module may have several.
    let code = engine
        .precompile_module(wasm)
        .map_err(|error| format!("{error:#}").replace('\n', " "))?;
    std::io::stdout()
        .write_all(&code)
        .map_err(|error| error.to_string())
}

/// Bounds this process before it looks at the module.
fn limit_self() -> std::result::Result<(), String> {
    for (what, most) in [
        (libc::RLIMIT_CPU, CPU_SECONDS_MAX),
        (libc::RLIMIT_AS, MEMORY_MAX),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_CORE, 0),
    ] {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: the struct is valid for the call, which only reads it.
        if unsafe { libc::setrlimit(what, &limit) } != 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
    }
    Ok(())
}
