//! Ctrl-C and SIGTERM become a request to cancel; a limit on file sizes becomes an error.

use lifecycle::Cancel;

use crate::exit::Exit;

/// Watches for SIGINT and SIGTERM until the runtime ends. The first asks the attempt to
/// stop, so that it can tidy up and report; the second leaves at once.
pub fn cancel_on_signals(cancel: Cancel) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // With a handler, a write beyond `ulimit -f` is an error that can be told and tidied up
    // after. Without one it is the end of the process. The handler outlives its listener.
    drop(signal(SignalKind::from_raw(libc::SIGXFSZ))?);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if cancel.is_cancelled() {
                std::process::exit(Exit::Cancelled.code().into());
            }
            eprintln!("warpline: cancelling; press Ctrl-C again to leave at once");
            cancel.cancel();
        }
    });
    Ok(())
}
