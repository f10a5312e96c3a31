//! What goes into a compiler and what comes out.

/// A kernel's text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// What it is called in errors, dumps and file names; letters, digits and `_`.
    pub name: String,
    /// The text. One that does not include `prelude.h` itself gets it first.
    pub text: String,
    /// Macros to define, as `("WL_BLOCK_THREADS", "128")`.
    pub defines: Vec<(String, String)>,
}

impl Source {
    /// A text with no macros defined.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Source {
        Source {
            name: name.into(),
            text: text.into(),
            defines: Vec::new(),
        }
    }

    /// Defines a macro.
    pub fn define(mut self, name: impl Into<String>, value: impl ToString) -> Source {
        self.defines.push((name.into(), value.to_string()));
        self
    }

    /// The text as it is compiled.
    pub(crate) fn full_text(&self) -> String {
        if self.text.contains("#include \"prelude.h\"") {
            return self.text.clone();
        }
        format!(
            "#include \"prelude.h\"\n#line 1 \"{}\"\n{}",
            self.name, self.text
        )
    }

    /// The macros as compiler options.
    pub(crate) fn define_options(&self) -> impl Iterator<Item = String> + '_ {
        self.defines
            .iter()
            .map(|(name, value)| format!("-D{name}={value}"))
    }
}

/// A header that texts may include by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The name that follows `#include`, as `thread/value.h`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Compiled code, ready to be loaded by the kind of device it was compiled for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledImage {
    /// A cubin, or a shared library for the host target.
    pub bytes: Vec<u8>,
    /// What the compiler said.
    pub log: String,
}

impl CompiledImage {
    /// What each kernel uses, as far as the compiler's log says.
    pub fn usage(&self) -> Vec<KernelUsage> {
        KernelUsage::from_log(&self.log)
    }
}

/// What one kernel uses, as the assembler reported it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelUsage {
    /// The kernel's C name.
    pub kernel: String,
    /// Registers a thread.
    pub registers: u32,
    /// Stack frame a thread, in bytes.
    pub stack_bytes: u32,
    /// Bytes stored to memory for want of registers.
    pub spill_store_bytes: u32,
    /// Bytes loaded back.
    pub spill_load_bytes: u32,
    /// Static shared memory a block, in bytes.
    pub shared_bytes: u32,
}

impl KernelUsage {
    /// Reads the lines that `--ptxas-options=-v` adds to the log:
    ///
    /// ```text
    /// ptxas info    : Compiling entry function 'k' for 'sm_90'
    /// ptxas info    : Function properties for k
    ///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    /// ptxas info    : Used 12 registers, used 0 barriers, 1024 bytes smem
    /// ```
    fn from_log(log: &str) -> Vec<KernelUsage> {
        let mut all: Vec<KernelUsage> = Vec::new();
        for line in log.lines() {
            if let Some(rest) = line.split("Compiling entry function '").nth(1) {
                let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
                all.push(KernelUsage {
                    kernel,
                    ..Default::default()
                });
                continue;
            }
            let Some(usage) = all.last_mut() else {
                continue;
            };
            if line.contains("bytes stack frame") {
                usage.stack_bytes = number_before(line, " bytes stack frame");
                usage.spill_store_bytes = number_before(line, " bytes spill stores");
                usage.spill_load_bytes = number_before(line, " bytes spill loads");
            } else if line.contains("registers") && line.contains("Used") {
                usage.registers = number_before(line, " registers");
                usage.shared_bytes = number_before(line, " bytes smem");
            }
        }
        all
    }
}

/// The number that ends where `marker` begins, or 0.
fn number_before(line: &str, marker: &str) -> u32 {
    let Some(at) = line.find(marker) else {
        return 0;
    };
    let head = &line[..at];
    let digits = head.bytes().rev().take_while(u8::is_ascii_digit).count();
    head[head.len() - digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_assembler_log() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sum_3f' for 'sm_90'
ptxas info    : Function properties for sum_3f
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes stack size, 1024 bytes smem
ptxas info    : Compile time = 3.207 ms
";
        let expected = KernelUsage {
            kernel: "sum_3f".into(),
            registers: 40,
            stack_bytes: 16,
            spill_store_bytes: 4,
            spill_load_bytes: 8,
            shared_bytes: 1024,
        };
        assert_eq!(KernelUsage::from_log(log), [expected]);
    }

    #[test]
    fn the_prelude_comes_first_unless_the_text_includes_it() {
        assert!(
            Source::new("k", "x")
                .full_text()
                .starts_with("#include \"prelude.h\"\n#line 1 \"k\"\nx")
        );
        let own = "#define WL_BLOCK_THREADS 64\n#include \"prelude.h\"\n";
        assert_eq!(Source::new("k", own).full_text(), own);
    }
}
