//! What a user sees when the program is wrong: one sentence, never a panic's text.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;

/// Replaces the default hook: the details go to the log (`WARPLINE_LOG=error` or more),
/// the user gets a sentence.
pub fn install() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let place = info
            .location()
            .map_or_else(|| "unknown".to_string(), ToString::to_string);
        let message = info.payload_as_str().unwrap_or("no message");
        tracing::error!(place, message, backtrace = %Backtrace::capture(), "panic");
        eprintln!(
            "warpline: internal error; run again with WARPLINE_LOG=error for the details to report"
        );
    }));
}
